use std::os::unix::fs::MetadataExt;

use super::*;
use crate::tools::place::tests::Mount;

fn order<'a>(user: &'a Account, cancel: &'a CancellationToken) -> Order<'a> {
    Order { owner: None, user, once: false, cancel }
}

fn assets() -> tempfile::TempDir {
    let dir = locate::tests::runner();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("externals/node/bin")).unwrap();
    fs::create_dir_all(at("_work/repo")).unwrap();
    for name in [".runner", ".credentials", ".credentials_rsaparams", ".env", ".path"] {
        fs::write(at(name), "x").unwrap();
    }
    fs::write(at("externals/node/tool"), vec![7; 300_000]).unwrap();
    fs::set_permissions(at("externals/node/tool"), Permissions::from_mode(0o555)).unwrap();
    fs::set_permissions(at("externals/node"), Permissions::from_mode(0o555)).unwrap();
    symlink("../tool", at("externals/node/bin/relative")).unwrap();
    symlink(at("externals/node/tool"), at("externals/node/bin/absolute")).unwrap();
    nix::unistd::mkfifo(&at("bin/fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    dir
}

#[test]
fn the_runner_comes_over_and_the_traces_of_an_earlier_use_do_not() {
    let (assets, dir) = (assets(), tempfile::tempdir().unwrap());
    let home = dir.path().join("home");
    let found = locate::inspect(assets.path()).unwrap();
    let cancel = CancellationToken::new();
    let runner = bring(&found, &home, &order(&Account::current(), &cancel)).unwrap();
    assert!(runner.marker.is_some_and(|m| m.whole && m.files == 8));
    let tool = fs::metadata(home.join("externals/node/tool")).unwrap();
    assert_eq!((tool.len(), tool.mode() & 0o777), (300_000, 0o555));
    assert_eq!(fs::metadata(home.join("externals/node")).unwrap().mode() & 0o777, 0o555);
    for link in ["relative", "absolute"] {
        let target = fs::read_link(home.join("externals/node/bin").join(link)).unwrap();
        assert!(target.is_relative(), "{}", target.display());
        assert!(home.join("externals/node/bin").join(link).exists());
    }
    for kept in [".env", ".path"] {
        assert!(home.join(kept).exists(), "{kept}");
    }
    for left in [".runner", ".credentials", ".credentials_rsaparams", "_work", "bin/fifo"] {
        assert!(!home.join(left).exists(), "{left}");
    }
}

#[test]
fn the_same_folder_is_used_as_it_is() {
    let assets = assets();
    let found = locate::inspect(assets.path()).unwrap();
    let home = assets.path().join("externals/..");
    let runner =
        bring(&found, &home, &order(&Account::current(), &CancellationToken::new())).unwrap();
    assert_eq!(runner, found);
    assert!(assets.path().join(".runner").exists());
}

#[test]
fn a_home_inside_the_assets_is_not_copied_into_itself() {
    let assets = assets();
    let home = assets.path().join("actions-runner");
    fs::create_dir(&home).unwrap();
    fs::write(home.join("mine"), "").unwrap();
    let found = locate::inspect(assets.path()).unwrap();
    bring(&found, &home, &order(&Account::current(), &CancellationToken::new())).unwrap();
    assert!(home.join("mine").exists() && !home.join("actions-runner").exists());
}

#[test]
fn a_cancelled_copy_leaves_nothing() {
    let (assets, dir) = (assets(), tempfile::tempdir().unwrap());
    let cancel = CancellationToken::new();
    cancel.cancel();
    let found = locate::inspect(assets.path()).unwrap();
    let error =
        bring(&found, &dir.path().join("home"), &order(&Account::current(), &cancel)).unwrap_err();
    assert!(matches!(error, CopyError::Cancelled), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn root_gives_the_copy_to_the_owner_and_anyone_else_keeps_it() {
    let owner = Account::somebody();
    let root = geteuid().is_root();
    let expected = if root { 4711 } else { geteuid().as_raw() };
    let (assets, dir) = (assets(), tempfile::tempdir().unwrap());
    let home = dir.path().join("home");
    let found = locate::inspect(assets.path()).unwrap();
    let cancel = CancellationToken::new();
    bring(&found, &home, &Order { owner: Some(&owner), ..order(&owner, &cancel) }).unwrap();
    for path in ["", "run.sh", "externals", "externals/node/bin/relative", MARKER] {
        let uid = fs::symlink_metadata(home.join(path)).unwrap().uid();
        assert_eq!(uid, expected, "{path}");
    }
}

/// The files of the image as they are, by path: inode, links left out.
fn image(folder: &Path) -> Vec<(PathBuf, u32, u32, u64, Vec<u8>)> {
    let plan = Plan::of(folder, Path::new("/nowhere")).unwrap();
    let fact = |file: &Regular| {
        let full = folder.join(&file.path);
        let meta = fs::metadata(&full).unwrap();
        (file.path.clone(), meta.uid(), meta.mode(), meta.ino(), fs::read(full).unwrap())
    };
    plan.files.iter().map(fact).collect()
}

/// Brings `assets` to a home for somebody, as root; which files are shared then.
fn shared(assets: &Path, home: &Path, once: bool) -> Vec<String> {
    assert!(geteuid().is_root(), "only root shares files: run the tests as root");
    let (owner, cancel) = (Account::somebody(), CancellationToken::new());
    let found = locate::inspect(assets).unwrap();
    let before = image(assets);
    let order = Order { owner: Some(&owner), once, ..order(&owner, &cancel) };
    let brought = bring(&found, home, &order).unwrap();
    assert_eq!(image(assets), before, "the image's folder is as it was");
    let sum = before.iter().map(|(.., contents)| contents.len() as u64).sum::<u64>();
    assert!(brought.marker.is_some_and(|marker| marker.bytes == sum));
    let mut names = Vec::new();
    for (path, .., inode, contents) in before {
        let meta = fs::metadata(home.join(&path)).unwrap();
        assert_eq!(fs::read(home.join(&path)).unwrap(), contents, "{}", path.display());
        if meta.ino() == inode {
            names.push(path.display().to_string());
        } else {
            assert_eq!(meta.uid(), owner.uid, "{}", path.display());
        }
    }
    names.sort();
    names
}

/// Assets whose files are readable for all, but for a few that may not be shared.
fn image_of_root() -> tempfile::TempDir {
    let assets = assets();
    let modes = [
        ("bin/Runner.Listener", 0o755),
        ("externals/node/tool", 0o555),
        ("externals/group", 0o664),
        ("externals/others", 0o646),
        ("externals/secret", 0o600),
        ("externals/program", 0o754),
        ("externals/setuid", 0o4755),
        ("externals/plain", 0o644),
        ("externals/theirs", 0o644),
        ("externals/another", 0o644),
        ("externals/not-for-the-group", 0o604),
        ("run.sh", 0o755),
    ];
    for (name, mode) in modes {
        let path = assets.path().join(name);
        if !path.exists() {
            fs::write(&path, name).unwrap();
        }
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    for (name, uid) in [("theirs", Account::somebody().uid), ("another", 4713)] {
        let path = assets.path().join("externals").join(name);
        std::os::unix::fs::chown(path, Some(uid), None).unwrap();
    }
    assets
}

#[test]
fn what_nobody_will_write_is_shared_and_all_else_is_copied() {
    let (assets, dir) = (image_of_root(), tempfile::tempdir().unwrap());
    let names = shared(assets.path(), &dir.path().join("home"), true);
    let expected = ["bin/Runner.Listener", "externals/node/tool", "externals/plain"];
    let found: Vec<&str> =
        names.iter().map(String::as_str).filter(|name| modes_are_set(name)).collect();
    assert_eq!(found, expected, "{names:?}");
    assert!(names.iter().all(|name| name.contains('/')), "none of the top folder: {names:?}");
}

/// Of those that `image_of_root` has given a mode.
fn modes_are_set(name: &str) -> bool {
    name == "bin/Runner.Listener" || name.starts_with("externals/")
}

#[test]
fn nothing_is_shared_if_the_folder_may_serve_another_boot() {
    let (assets, dir) = (image_of_root(), tempfile::tempdir().unwrap());
    assert_eq!(shared(assets.path(), &dir.path().join("home"), false), [""; 0]);
}

#[test]
fn nothing_is_shared_with_a_runner_that_is_root() {
    let (assets, dir) = (image_of_root(), tempfile::tempdir().unwrap());
    let found = locate::inspect(assets.path()).unwrap();
    let (root, cancel) = (Account::find("root").unwrap(), CancellationToken::new());
    let home = dir.path().join("home");
    bring(&found, &home, &Order { once: true, ..order(&root, &cancel) }).unwrap();
    let inode = |folder: &Path| fs::metadata(folder.join("externals/plain")).unwrap().ino();
    assert_ne!(inode(assets.path()), inode(&home));
}

#[test]
fn a_home_on_another_mount_is_a_copy() {
    let (assets, dir) = (image_of_root(), tempfile::tempdir().unwrap());
    let mounted = dir.path().join("mounted");
    fs::create_dir(&mounted).unwrap();
    for mount in [Mount::bind(&mounted, &mounted), Mount::tmpfs(&mounted, "size=8m")] {
        assert_eq!(shared(assets.path(), &mounted.join("home"), true), [""; 0]);
        drop(mount);
    }
}

#[test]
fn a_file_that_takes_no_link_is_copied() {
    // Something is mounted there, as a pod's configuration may be.
    let (assets, dir) = (image_of_root(), tempfile::tempdir().unwrap());
    let plain = assets.path().join("externals/plain");
    let mount = Mount::bind(&plain, &plain);
    let names = shared(assets.path(), &dir.path().join("home"), true);
    drop(mount);
    assert!(!names.contains(&"externals/plain".to_owned()), "{names:?}");
    assert!(names.contains(&"externals/node/tool".to_owned()), "{names:?}");
}

#[test]
fn shared_files_need_no_room() {
    let (assets, dir) = (image_of_root(), tempfile::tempdir().unwrap());
    let (owner, cancel) = (Account::somebody(), CancellationToken::new());
    let once = Order { once: true, ..order(&owner, &cancel) };
    let mut plan = Plan::of(assets.path(), dir.path()).unwrap();
    let all = plan.bytes_to_copy();
    plan.share(&Sharing::between(assets.path(), dir.path(), &once));
    assert!(plan.bytes_to_copy() + 300_000 <= all, "{} of {all}", plan.bytes_to_copy());
}
