mod gnu_tar;
mod hostile;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use bytes::Bytes;

use super::*;

/// An archive that is built entry by entry, with headers that a decent builder would refuse.
struct Archive(tar::Builder<Vec<u8>>);

impl Archive {
    fn new() -> Self {
        Self(tar::Builder::new(Vec::new()))
    }

    fn raw(mut self, path: &[u8], kind: u8, mode: u32, target: &[u8], contents: &[u8]) -> Self {
        let mut header = tar::Header::new_gnu();
        let gnu = header.as_gnu_mut().unwrap();
        gnu.name[..path.len()].copy_from_slice(path);
        gnu.linkname[..target.len()].copy_from_slice(target);
        header.set_entry_type(tar::EntryType::new(kind));
        header.set_mode(mode);
        header.set_size(contents.len() as u64);
        header.set_cksum();
        self.0.append(&header, contents).unwrap();
        self
    }

    fn file(self, path: &str, contents: &[u8]) -> Self {
        self.raw(path.as_bytes(), b'0', 0o644, b"", contents)
    }

    fn gz(self) -> Vec<u8> {
        gzip(&self.0.into_inner().unwrap())
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn order(cancel: &CancellationToken) -> Order<'_> {
    Order { expected: None, owner: None, limits: Limits::default(), cancel }
}

/// An archive of one file.
pub(crate) fn archive_of(path: &str, contents: &[u8]) -> Vec<u8> {
    Archive::new().file(path, contents).gz()
}

fn unpack_bytes(bytes: &[u8], into: &Path) -> Result<Unpacked, UnpackError> {
    unpack(bytes, into, &order(&CancellationToken::new()))
}

fn error_of(bytes: &[u8]) -> UnpackError {
    let dir = tempfile::tempdir().unwrap();
    unpack_bytes(bytes, dir.path()).unwrap_err()
}

fn noise(count: usize) -> Vec<u8> {
    let mut state = 1u32;
    let step = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..count).map(step).collect()
}

#[test]
fn a_runner_archive_becomes_a_tree_with_its_modes_and_links() {
    let large = noise(3 << 20);
    let archive = Archive::new()
        .raw(b"./", b'5', 0o755, b"", b"")
        .raw(b"./bin/", b'5', 0o755, b"", b"")
        .raw(b"./bin/Runner.Listener", b'0', 0o755, b"", &large)
        .file("./run.sh", b"#!/bin/bash\n")
        .file("./empty", b"")
        .raw(b"./closed/", b'5', 0o500, b"", b"")
        .file("./closed/inside", b"x")
        .raw(b"./open", b'0', 0o666, b"", b"x")
        .raw(b"./externals/node/bin/npm", b'2', 0o777, b"../lib/npm.js", b"")
        .file("./externals/node/lib/npm.js", b"js")
        .gz();
    let dir = tempfile::tempdir().unwrap();
    let unpacked = unpack_bytes(&archive, dir.path()).unwrap();
    assert_eq!((unpacked.files, unpacked.bytes), (7, (3 << 20) + 12 + 1 + 1 + 2));
    assert_eq!(unpacked.compressed_bytes, archive.len() as u64);
    let mode = |path: &str| fs::metadata(dir.path().join(path)).unwrap().mode() & 0o7777;
    assert_eq!(fs::read(dir.path().join("bin/Runner.Listener")).unwrap(), large);
    assert_eq!(fs::read(dir.path().join("externals/node/bin/npm")).unwrap(), b"js");
    let modes = ["bin", "bin/Runner.Listener", "run.sh", "closed", "open"].map(mode);
    assert_eq!(modes, [0o755, 0o755, 0o644, 0o500, 0o666], "{modes:?}");
}

#[test]
fn root_gives_everything_to_the_owner_and_anyone_else_keeps_it() {
    let owner = Account::somebody();
    let archive = Archive::new()
        .file("implied/file", b"x")
        .raw(b"told", b'5', 0o700, b"", b"")
        .raw(b"link", b'2', 0o777, b"told", b"")
        .gz();
    let dir = tempfile::tempdir().unwrap();
    let cancel = CancellationToken::new();
    unpack(&archive[..], dir.path(), &Order { owner: Some(&owner), ..order(&cancel) }).unwrap();
    let root = nix::unistd::geteuid().is_root();
    let ours = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    for path in ["implied", "implied/file", "told", "link"] {
        let meta = fs::symlink_metadata(dir.path().join(path)).unwrap();
        let expected = if root { (4711, 4712) } else { ours };
        assert_eq!((meta.uid(), meta.gid()), expected, "{path}");
    }
}

#[test]
fn the_checksum_is_of_every_byte_and_a_wrong_one_is_an_error_with_both() {
    let cancel = CancellationToken::new();
    let mut archive = Archive::new().file("a", b"x").gz();
    archive.extend(b"tail");
    let right = Sha256::new(
        sha2::Digest::finalize(sha2::Digest::chain_update(
            <sha2::Sha256 as sha2::Digest>::new(),
            &archive,
        ))
        .into(),
    );
    let dir = tempfile::tempdir().unwrap();
    let unpacked =
        unpack(&archive[..], dir.path(), &Order { expected: Some(right), ..order(&cancel) });
    assert_eq!(unpacked.unwrap().sha256, right);

    let dir = tempfile::tempdir().unwrap();
    let wrong = Sha256::new([7; 32]);
    let error =
        unpack(&archive[..], dir.path(), &Order { expected: Some(wrong), ..order(&cancel) });
    let text = error.unwrap_err().to_string();
    assert!(text.contains(&right.to_string()) && text.contains(&wrong.to_string()), "{text}");
}

#[test]
fn an_archive_of_several_gzip_members_is_read_to_its_end() {
    let tar = Archive::new().file("a", b"one").file("b", b"two").0.into_inner().unwrap();
    let (first, second) = tar.split_at(700);
    let dir = tempfile::tempdir().unwrap();
    let bytes = [gzip(first), gzip(second)].concat();
    assert_eq!(unpack_bytes(&bytes, dir.path()).unwrap().files, 2);
}

#[test]
fn an_error_page_is_named_and_nothing_is_made_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let error = unpack_bytes(b"Not Found", dir.path()).unwrap_err().to_string();
    assert_eq!(error, "unpack the runner: not a gzip archive, but text: \"Not Found\"");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn gzip_of_something_else_is_damaged() {
    let error = error_of(&gzip(&noise(2000)));
    assert!(matches!(error, UnpackError::Corrupt { .. }), "{error}");
}

#[test]
fn an_archive_cut_off_anywhere_breaks_off_and_a_flipped_byte_is_damage() {
    let archive = Archive::new().file("a", &noise(100_000)).file("b", b"two").gz();
    for at in [20, 1000, archive.len() / 2, archive.len() - 9, archive.len() - 1] {
        let error = error_of(&archive[..at]);
        assert!(matches!(error, UnpackError::Truncated { .. }), "{at}: {error:?}");
    }
    for at in [5000, archive.len() / 2, archive.len() - 6] {
        let mut flipped = archive.clone();
        flipped[at] ^= 0x10;
        let error = error_of(&flipped);
        let known = matches!(error, UnpackError::Corrupt { .. } | UnpackError::Truncated { .. });
        assert!(known, "{at}: {error:?}");
    }
}

#[test]
fn a_whole_gzip_stream_of_half_an_archive_breaks_off() {
    let tar = Archive::new().file("a", &noise(10_000)).0.into_inner().unwrap();
    for at in [100, 600, 5000] {
        let error = error_of(&gzip(&tar[..at]));
        assert!(matches!(error, UnpackError::Truncated { .. }), "{at}: {error:?}");
    }
}

#[test]
fn a_failing_input_is_told_from_a_damaged_archive() {
    struct Failing<'a>(&'a [u8]);
    impl Pieces for Failing<'_> {
        fn next(&mut self) -> io::Result<Bytes> {
            match self.0.next()? {
                end if end.is_empty() => {
                    Err(io::Error::new(io::ErrorKind::ConnectionReset, "reset by peer"))
                }
                piece => Ok(piece),
            }
        }
    }
    let archive = Archive::new().file("a", &noise(100_000)).gz();
    let dir = tempfile::tempdir().unwrap();
    let cancel = CancellationToken::new();
    let error = unpack(Failing(&archive[..50_000]), dir.path(), &order(&cancel)).unwrap_err();
    assert_eq!(error.to_string(), "read the archive after 50000 bytes: reset by peer");
}

#[test]
fn a_cancelled_unpacking_stops() {
    let archive = Archive::new().file("a", b"x").gz();
    let dir = tempfile::tempdir().unwrap();
    let cancel = CancellationToken::new();
    cancel.cancel();
    let error = unpack(&archive[..], dir.path(), &order(&cancel)).unwrap_err();
    assert!(matches!(error, UnpackError::Cancelled), "{error}");
}

#[test]
fn a_folder_that_holds_something_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), "mine").unwrap();
    let error = unpack_bytes(&Archive::new().file("a", b"x").gz(), dir.path()).unwrap_err();
    assert!(matches!(error, UnpackError::NotEmpty { .. }), "{error}");
    assert_eq!(fs::read(dir.path().join("a")).unwrap(), b"mine");
}
