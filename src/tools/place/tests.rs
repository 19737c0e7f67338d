use super::*;

fn marker() -> Marker {
    Marker::new(Some("2.336.0".into()), 2, 3)
}

fn build(staging: &Staging) {
    fs::create_dir(staging.path().join("bin")).unwrap();
    fs::write(staging.path().join("bin/Runner.Listener"), "new").unwrap();
    fs::write(staging.path().join("run.sh"), "new").unwrap();
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_home_that_is_not_there_yet_appears_whole_and_in_one_step() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("srv/ci/home");
    let staging = Staging::beside(&home, None, Some(1)).unwrap();
    assert_eq!(fs::metadata(staging.path()).unwrap().mode() & 0o777, 0o700);
    build(&staging);
    assert!(!home.exists());
    staging.commit(&marker()).unwrap();
    assert_eq!(names(&home), [MARKER, "bin", "run.sh"]);
    assert_eq!(names(home.parent().unwrap()), ["home"]);
    assert_eq!(fs::metadata(&home).unwrap().mode() & 0o777, 0o755);
    assert_eq!(Marker::read(&home), Some(marker()));
}

#[test]
fn an_empty_home_is_replaced_and_keeps_its_mode() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    fs::create_dir(&home).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o750)).unwrap();
    let staging = Staging::beside(&home, None, None).unwrap();
    assert!(!staging.path().starts_with(&home));
    build(&staging);
    staging.commit(&marker()).unwrap();
    assert_eq!(fs::metadata(&home).unwrap().mode() & 0o777, 0o750);
}

#[test]
fn a_home_with_other_files_keeps_them_and_gets_the_new_tree() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    fs::create_dir_all(home.join("bin")).unwrap();
    fs::write(home.join("bin/stale"), "old").unwrap();
    fs::write(home.join("run.sh"), "old").unwrap();
    fs::write(home.join(".env"), "mine").unwrap();
    let staging = Staging::beside(&home, None, None).unwrap();
    assert!(staging.path().starts_with(home.canonicalize().unwrap()));
    build(&staging);
    staging.commit(&marker()).unwrap();
    assert_eq!(names(&home), [".env", MARKER, "bin", "run.sh"]);
    assert_eq!(names(&home.join("bin")), ["Runner.Listener"]);
    assert_eq!(fs::read_to_string(home.join("run.sh")).unwrap(), "new");
    assert_eq!(fs::read_to_string(home.join(".env")).unwrap(), "mine");
}

#[test]
fn a_mount_point_is_filled_from_inside() {
    let mounted = Path::new("/dev/shm");
    assert!(is_mount_point(mounted), "/dev/shm is expected to be a mount of its own");
    let dir = tempfile::tempdir().unwrap();
    assert!(!is_mount_point(&dir.path().canonicalize().unwrap()));
    let list = "36 35 98:0 /mnt1 /mnt\\040two rw,noatime master:1 - ext3 /dev/root rw\nshort\n";
    assert_eq!(mount_points(list).collect::<Vec<_>>(), ["/mnt two"]);
}

/// A mount that ends with the test.
pub(crate) struct Mount(PathBuf);

impl Mount {
    pub(crate) fn tmpfs(at: &Path, options: &str) -> Self {
        let flags = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("tmpfs"), at, Some("tmpfs"), flags, Some(options)).unwrap();
        Self(at.to_owned())
    }

    pub(crate) fn bind(from: &Path, at: &Path) -> Self {
        let flags = nix::mount::MsFlags::MS_BIND;
        nix::mount::mount(Some(from), at, None::<&str>, flags, None::<&str>).unwrap();
        Self(at.to_owned())
    }

    fn make_read_only(&self) {
        let flags = nix::mount::MsFlags::MS_REMOUNT | nix::mount::MsFlags::MS_RDONLY;
        nix::mount::mount(None::<&str>, &self.0, None::<&str>, flags, None::<&str>).unwrap();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH).unwrap();
    }
}

/// Mounts are root's; for anyone else a parent that cannot be written to stands for one.
#[test]
fn a_home_that_cannot_be_renamed_is_filled_from_inside() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    fs::create_dir(&home).unwrap();
    let root = nix::unistd::geteuid().is_root();
    let mount = root.then(|| Mount::bind(&home, &home));
    if !root {
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o555)).unwrap();
    }
    let staging = Staging::beside(&home, None, None).unwrap();
    assert!(staging.path().starts_with(home.canonicalize().unwrap()));
    build(&staging);
    staging.commit(&marker()).unwrap();
    assert_eq!(names(&home), [MARKER, "bin", "run.sh"]);
    drop(mount);
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_disk_that_fills_up_or_is_read_only_is_named_and_left_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    fs::create_dir(&home).unwrap();
    if !nix::unistd::geteuid().is_root() {
        for folder in [&home, &dir.path().to_owned()] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o555)).unwrap();
        }
        let error = Staging::beside(&home, None, None).unwrap_err().to_string();
        assert!(error.contains("permission denied: run as root"), "{error}");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        return;
    }
    let mount = Mount::tmpfs(&home, "size=64k");
    fs::write(home.join("mine"), "x").unwrap();
    let staging = Staging::beside(&home, None, None).unwrap();
    let (cancel, contents) = (tokio_util::sync::CancellationToken::new(), vec![1; 1 << 20]);
    let order = crate::tools::unpack::Order {
        expected: None,
        owner: None,
        limits: crate::tools::policy::Limits::default(),
        cancel: &cancel,
    };
    let archive = crate::tools::unpack::tests::archive_of("large", &contents);
    let error = crate::tools::unpack::unpack(&archive[..], staging.path(), &order).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("/large: the disk is full: free some space"), "{text}");
    drop(staging);
    assert_eq!(names(&home), ["mine"]);

    mount.make_read_only();
    let error = Staging::beside(&home, None, None).unwrap_err().to_string();
    assert!(error.contains("home as the runner's home: the file system is read-only"), "{error}");
}

#[test]
fn a_marker_that_an_archive_brings_is_not_believed_and_not_followed() {
    for filled in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        if filled {
            fs::create_dir(&home).unwrap();
            fs::write(home.join("other"), "").unwrap();
        }
        let staging = Staging::beside(&home, None, None).unwrap();
        build(&staging);
        std::os::unix::fs::symlink("run.sh", staging.path().join(MARKER)).unwrap();
        staging.commit(&marker()).unwrap();
        assert_eq!(Marker::read(&home), Some(marker()));
        assert_eq!(fs::read_to_string(home.join("run.sh")).unwrap(), "new");
    }
}

#[test]
fn what_is_not_committed_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let staging = Staging::beside(&dir.path().join("home"), None, None).unwrap();
    build(&staging);
    staging.clear().unwrap();
    assert!(names(staging.path()).is_empty());
    build(&staging);
    let read_only = fs::Permissions::from_mode(0o500);
    fs::set_permissions(staging.path().join("bin"), read_only).unwrap();
    drop(staging);
    assert!(names(dir.path()).is_empty());
}

#[test]
fn what_a_dead_run_left_is_removed_and_what_a_live_one_builds_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let stale = dir.path().join(format!(".home.partial-{}", std::process::id()));
    fs::create_dir_all(stale.join("bin")).unwrap();
    let first = Staging::beside(&home, None, None).unwrap();
    assert!(names(first.path()).is_empty());
    let second = Staging::beside(&home, None, None).unwrap();
    assert!(first.path().exists() && second.path() != first.path());
    assert_eq!(names(dir.path()).len(), 2);
    let inside = home.join(".garm-bootstrap.partial-1");
    fs::create_dir_all(&inside).unwrap();
    sweep(&home);
    assert!(first.path().exists() && !inside.exists());
}

#[test]
fn a_home_that_is_being_changed_says_that_it_is_not_whole() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    fs::create_dir(&home).unwrap();
    fs::write(home.join("other"), "").unwrap();
    let staging = Staging::beside(&home, None, None).unwrap();
    build(&staging);
    staging.put_marker(&marker().unfinished()).unwrap();
    assert!(!Marker::read(&home).unwrap().whole);
}

#[test]
fn too_little_room_is_said_with_figures_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let error = Staging::beside(&dir.path().join("home"), None, Some(u64::MAX)).unwrap_err();
    assert!(error.to_string().contains("MB are free"), "{error}");
    assert!(names(dir.path()).is_empty());
}

#[test]
fn a_home_that_is_a_file_and_one_under_a_file_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Staging::beside(&file, None, None).unwrap_err();
    assert!(error.to_string().ends_with("it is not a folder"), "{error}");
    let error = Staging::beside(&file.join("home"), None, None).unwrap_err();
    assert!(error.to_string().contains("file"), "{error}");
}

#[test]
fn a_full_or_read_only_disk_is_said_with_what_to_do() {
    for (errno, words) in [
        (Errno::ENOSPC, "the disk is full: free some space"),
        (Errno::EROFS, "read-only: choose another home"),
        (Errno::EACCES, "permission denied: run as root"),
    ] {
        let source = io::Error::from_raw_os_error(errno as i32);
        let error = PlaceError::Home { home: "/srv/home".into(), source }.to_string();
        assert!(error.contains("/srv/home") && error.contains(words), "{error}");
    }
}

#[test]
fn root_gives_the_home_to_its_owner_and_anyone_else_keeps_it() {
    let owner = Account::somebody();
    let root = nix::unistd::geteuid().is_root();
    let expected = if root { 4711 } else { nix::unistd::geteuid().as_raw() };
    let dir = tempfile::tempdir().unwrap();
    for (home, filled) in [("fresh/home", false), ("filled", true)] {
        let home = dir.path().join(home);
        if filled {
            fs::create_dir(&home).unwrap();
            fs::write(home.join("other"), "").unwrap();
        }
        let staging = Staging::beside(&home, Some(&owner), None).unwrap();
        build(&staging);
        staging.commit(&marker()).unwrap();
        for path in [home.clone(), home.join(MARKER)] {
            assert_eq!(fs::metadata(&path).unwrap().uid(), expected, "{}", path.display());
        }
    }
    assert_eq!(fs::metadata(dir.path().join("fresh")).unwrap().uid(), expected);
}
