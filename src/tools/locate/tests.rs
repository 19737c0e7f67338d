use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;
use crate::tools::place::MARKER;

/// A runner as an image holds it, whose Listener is a script.
pub(crate) fn runner() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("bin")).unwrap();
    for name in NEEDED {
        write(dir.path(), name, b"#!/bin/sh\nexit 0\n");
    }
    dir
}

fn write(dir: &Path, name: &str, contents: &[u8]) {
    fs::write(dir.join(name), contents).unwrap();
    fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o755)).unwrap();
}

/// The head of a program for `machine` that asks for `loader`.
fn program(machine: u16, loader: &str) -> Vec<u8> {
    let mut elf = vec![0; 64 + 56];
    elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
    elf[18..20].copy_from_slice(&machine.to_le_bytes());
    elf[32] = 64; // program headers begin
    elf[54] = 56; // size of one
    elf[56] = 1; // count
    elf[64] = 3; // PT_INTERP
    elf[64 + 8] = 64 + 56; // offset
    elf[64 + 32] = u8::try_from(loader.len() + 1).unwrap();
    elf.extend(loader.as_bytes());
    elf.push(0);
    elf
}

fn why(dir: &Path) -> String {
    inspect(dir).unwrap_err().why.to_string()
}

#[test]
fn a_runner_of_an_image_is_usable_configured_or_not() {
    let dir = runner();
    assert_eq!(
        inspect(dir.path()).unwrap(),
        Runner { home: dir.path().to_owned(), version: None, marker: None }
    );
    write(dir.path(), ".runner", b"{}");
    assert!(inspect(dir.path()).is_ok());
}

type Spoil = Box<dyn Fn(&Path)>;

#[test]
fn why_a_folder_is_unusable_is_said_in_words() {
    let foreign = if elf::machine_of_host() == Machine::Arm64 { 62 } else { 183 };
    let own = if elf::machine_of_host() == Machine::Arm64 { 183 } else { 62 };
    let table: Vec<(Spoil, &str)> = vec![
        (Box::new(|d| fs::remove_dir_all(d).unwrap()), "does not exist"),
        (
            Box::new(|d| {
                fs::remove_dir_all(d).unwrap();
                fs::write(d, "").unwrap();
            }),
            "is not a folder",
        ),
        (
            Box::new(|d| {
                fs::remove_dir_all(d).unwrap();
                fs::create_dir(d).unwrap();
            }),
            "is an empty folder",
        ),
        (Box::new(|d| fs::remove_file(d.join(LISTENER)).unwrap()), "has no bin/Runner.Listener"),
        (Box::new(|d| write(d, LISTENER, b"")), "has an empty bin/Runner.Listener"),
        (Box::new(|d| fs::remove_file(d.join("config.sh")).unwrap()), "has no config.sh"),
        (Box::new(|d| write(d, "run.sh", b"")), "has an empty run.sh"),
        (Box::new(|d| write(d, "bin/runsvc.sh", b"")), "has an empty bin/runsvc.sh"),
        (
            Box::new(|d| {
                fs::set_permissions(d.join(LISTENER), fs::Permissions::from_mode(0o644)).unwrap();
            }),
            "not executable",
        ),
        (Box::new(|d| write(d, LISTENER, b"what is this? a text")), "neither a program nor"),
        (Box::new(|d| write(d, LISTENER, &program(62, "")[..30])), "is damaged"),
        (
            Box::new(move |d| write(d, LISTENER, &program(foreign, "/bin/sh"))),
            if foreign == 183 {
                "holds an arm64 runner on an x64 machine"
            } else {
                "holds an x64 runner on an arm64 machine"
            },
        ),
        (
            Box::new(move |d| write(d, LISTENER, &program(own, "/lib/ld-nowhere.so"))),
            "needs the dynamic loader /lib/ld-nowhere.so, which is missing",
        ),
        (Box::new(|d| fs::create_dir(d.join(".garm-bootstrap.partial-1")).unwrap()), "half done"),
        (Box::new(|d| write(d, MARKER, &marker(false))), "half done"),
    ];
    for (spoil, words) in table {
        let dir = runner();
        let home = dir.path().join("home");
        fs::create_dir_all(home.join("bin")).unwrap();
        for name in NEEDED {
            fs::copy(dir.path().join(name), home.join(name)).unwrap();
        }
        spoil(&home);
        assert!(why(&home).contains(words), "{} / {words}", why(&home));
    }
}

fn marker(whole: bool) -> Vec<u8> {
    let marker = Marker { whole, ..Marker::new(Some("2.336.0".into()), 1, 2) };
    serde_json::to_vec(&marker).unwrap()
}

#[test]
fn a_program_for_this_machine_with_its_loader_is_usable() {
    let dir = runner();
    let own = fs::read("/proc/self/exe").unwrap();
    write(dir.path(), LISTENER, &own);
    inspect(dir.path()).unwrap();
}

#[test]
fn a_marker_that_says_whole_counts_more_than_a_stale_growing_tree() {
    let dir = runner();
    write(dir.path(), MARKER, &marker(true));
    fs::create_dir(dir.path().join(".garm-bootstrap.partial-1")).unwrap();
    assert_eq!(inspect(dir.path()).unwrap().version.as_deref(), Some("2.336.0"));
}

#[test]
fn the_version_is_found_without_a_marker_and_bin_may_be_a_link() {
    let dir = runner();
    let at = |name: &str| dir.path().join(name);
    fs::rename(at("bin"), at("bin.2.335.1")).unwrap();
    symlink("bin.2.335.1", at("bin")).unwrap();
    assert_eq!(inspect(dir.path()).unwrap().version.as_deref(), Some("2.335.1"));
    let deps = br#"{"libraries": {"A/1.0": {}, "Runner.Listener/2.336.0": {"type": "project"}}}"#;
    write(dir.path(), "bin/Runner.Listener.deps.json", deps);
    assert_eq!(inspect(dir.path()).unwrap().version.as_deref(), Some("2.336.0"));
}

#[test]
fn the_home_comes_first_and_the_assets_then_and_else_both_reasons_are_told() {
    let (home, assets, empty) = (runner(), runner(), tempfile::tempdir().unwrap());
    let (home, assets, empty) = (home.path(), assets.path(), empty.path());
    assert!(matches!(find(home, Some(assets)), Found::InHome(r) if r.home == home));
    assert!(matches!(find(empty, Some(assets)), Found::InAssets(r) if r.home == assets));
    let missing = empty.join("missing");
    let Found::Nothing(reasons) = find(empty, Some(&missing)) else { panic!("found something") };
    assert_eq!(reasons.len(), 2);
    assert!(reasons[0].to_string().ends_with("is an empty folder"), "{}", reasons[0]);
    assert!(matches!(find(empty, Some(&empty.join("."))), Found::Nothing(r) if r.len() == 1));
}

#[test]
fn a_pipe_in_the_place_of_a_description_holds_nobody_up() {
    let dir = runner();
    let description = dir.path().join("bin/Runner.Listener.deps.json");
    let _ = fs::remove_file(&description);
    nix::unistd::mkfifo(&description, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(inspect(dir.path()).unwrap().version, None);
}
