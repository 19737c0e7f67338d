//! Held against GNU tar: the same archive must become the same tree.

use tempfile::TempDir;

use super::*;
use crate::host::process::Program;

/// A tree as `(path, kind, mode, contents or target)`.
fn listing(root: &Path) -> Vec<(PathBuf, u32, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let contents = if meta.is_dir() {
                folders.push(path.clone());
                Vec::new()
            } else if meta.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else {
                fs::read(&path).unwrap()
            };
            found.push((path.strip_prefix(root).unwrap().to_owned(), meta.mode(), contents));
        }
    }
    found.sort();
    found
}

async fn gnu_tar(args: &[&str], dir: &Path) {
    let program = Program {
        path: "/usr/bin/tar".into(),
        args: args.iter().map(Into::into).collect(),
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        dir: dir.to_owned(),
        user: None,
    };
    let limit = std::time::Duration::from_secs(30);
    let finished = program.run(limit, &CancellationToken::new()).await.unwrap();
    assert!(finished.status.success(), "tar {args:?}: {}", finished.output.text());
}

fn benign_tree() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    let long = format!("{}/{}", "d".repeat(120), "n".repeat(180));
    fs::create_dir_all(at(&long).parent().unwrap()).unwrap();
    fs::create_dir_all(at("bin/deep/er")).unwrap();
    fs::create_dir_all(at("nothing inside")).unwrap();
    for (path, mode, size) in [
        ("bin/Runner.Listener", 0o755, 2 << 20),
        ("bin/deep/er/read-only", 0o444, 100),
        ("bin/all", 0o777, 512),
        ("private", 0o600, 511),
        ("empty", 0o640, 0),
        ("ünïcode name", 0o644, 513),
        (&*long, 0o644, 9),
    ] {
        fs::write(at(path), noise(size)).unwrap();
        fs::set_permissions(at(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::set_permissions(at("bin/deep"), fs::Permissions::from_mode(0o750)).unwrap();
    std::os::unix::fs::symlink("../private", at("bin/link")).unwrap();
    std::os::unix::fs::symlink(&long, at("long link")).unwrap();
    dir
}

#[tokio::test]
async fn gnu_tar_and_we_make_the_same_tree_of_every_format() {
    let tree = benign_tree();
    for format in ["gnu", "posix", "oldgnu"] {
        let work = tempfile::tempdir().unwrap();
        let archive = work.path().join("a.tar.gz").display().to_string();
        let (theirs, ours) = (work.path().join("theirs"), work.path().join("ours"));
        fs::create_dir(&theirs).unwrap();
        fs::create_dir(&ours).unwrap();
        gnu_tar(&["--format", format, "-czf", &archive, "."], tree.path()).await;
        gnu_tar(&["-xpzf", &archive], &theirs).await;
        let bytes = fs::read(&archive).unwrap();
        unpack_bytes(&bytes, &ours).unwrap();
        assert_eq!(listing(&ours), listing(&theirs), "{format}");
    }
}
