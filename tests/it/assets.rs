//! A runner in a folder of the image, and a job that does its worst to it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use garm_sim::{InstanceSpec, Sim};

use crate::support::{Boot, Ended, calls_to, need_root, one_job, read, runner, scripted, tree};

/// Tells how many names a library has, and for how many files there it may write; then spoils and deletes
/// whatever it may.
const SPOIL: &str = "stat -c %h bin/Runner.Listener.dll >_sim/names
    find bin externals -type f -writable | wc -l >_sim/writable
    chmod -R 777 bin externals 2>/dev/null
    find bin externals -type f -exec sh -c 'echo spoilt >>\"$0\"' {} \\; 2>/dev/null
    rm -rf bin externals
    test ! -e externals";

/// A boot of root for the user `runner`, with the runner in a folder of root's.
fn boot(sim: &Sim, flags: &[&str]) -> (Ended, PathBuf) {
    need_root();
    let instance = sim.create(InstanceSpec::default());
    let boot = Boot::of(&instance).as_root();
    let assets = boot.path("assets");
    fs::create_dir(&assets).unwrap();
    sim.unpack_runner(&assets).unwrap();
    let before = facts(&assets);
    let boot = boot.flag("assets", &assets).args(flags);
    let ended = boot.run().expect_job(sim);
    assert_eq!(facts(&assets), before, "{}", ended.story(sim));
    assert!(calls_to(sim, garm_sim::Endpoint::Download).is_empty(), "{}", ended.story(sim));
    (ended, assets)
}

/// Inode, owner, group, mode and contents of everything in `folder`.
fn facts(folder: &Path) -> Vec<(PathBuf, [u64; 4], Vec<u8>)> {
    let fact = |path: PathBuf| {
        let full = folder.join(&path);
        let meta = fs::symlink_metadata(&full).unwrap();
        let contents = if meta.is_file() { fs::read(&full).unwrap() } else { Vec::new() };
        let (uid, gid, mode) = (meta.uid().into(), meta.gid().into(), meta.mode().into());
        (path, [meta.ino(), uid, gid, mode], contents)
    };
    tree(folder).into_iter().map(fact).collect()
}

fn number(ended: &Ended, name: &str) -> u64 {
    read(&ended.home().join("_sim").join(name)).trim().parse().unwrap()
}

#[test]
fn a_job_that_spoils_all_it_may_spoils_nothing_in_the_image() {
    let sim = scripted(one_job().job_command(SPOIL));
    let (ended, _) = boot(&sim, &[]);
    assert_eq!(number(&ended, "names"), 2, "a hard link: {}", ended.story(&sim));
    assert_eq!(number(&ended, "writable"), 0, "{}", ended.story(&sim));
}

#[test]
fn a_runner_that_goes_on_after_its_job_has_a_copy_of_its_own() {
    let sim = scripted(one_job().job_command(SPOIL));
    let (ended, _) = boot(&sim, &["--ephemeral=false"]);
    assert_eq!(number(&ended, "names"), 1, "{}", ended.story(&sim));
    assert!(number(&ended, "writable") > 5, "{}", ended.story(&sim));
}

#[test]
fn the_folders_of_a_shared_runner_are_the_users() {
    let sim = scripted(one_job());
    let (ended, assets) = boot(&sim, &[]);
    for name in ["", "bin", "externals", "run.sh", "config.sh"] {
        let meta = fs::metadata(ended.home().join(name)).unwrap();
        assert_eq!(meta.uid(), runner().uid.as_raw(), "{name}");
    }
    let listener = |folder: &Path| fs::metadata(folder.join("bin/Runner.Listener")).unwrap();
    assert_eq!(listener(&ended.home()).ino(), listener(&assets).ino());
    assert_eq!(listener(&assets).mode() & 0o7777, 0o755);
}
