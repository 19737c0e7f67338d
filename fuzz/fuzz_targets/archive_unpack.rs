//! Whatever bytes an archive has: nothing outside of its folder changes, and nothing special is made.
#![no_main]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use garm_bootstrap::tools::policy::Limits;
use garm_bootstrap::tools::unpack::{Order, unpack};
use libfuzzer_sys::fuzz_target;
use tokio_util::sync::CancellationToken;

const BLOCK: usize = 512;

// The first byte chooses: the rest is the compressed file as it is, or a tar file to be compressed, whose
// header checksums are put right so that mutations get past them.
fuzz_target!(|data: &[u8]| {
    let Some((choice, rest)) = data.split_first() else { return };
    let archive = if choice & 1 == 0 { rest.to_vec() } else { compressed(with_checksums(rest)) };
    let outer = tempfile::tempdir_in("/dev/shm").expect("memory for a folder");
    let inner = outer.path().join("tree");
    fs::create_dir(&inner).expect("a folder in memory");
    let limits = Limits { entries: 100, bytes: 1 << 20 };
    let cancel = CancellationToken::new();
    let order = Order { expected: None, owner: None, limits, cancel: &cancel };
    let _ = unpack(&archive[..], &inner, &order);
    assert_eq!(fs::read_dir(outer.path()).expect("our own folder").count(), 1);
    harmless(&inner);
});

fn with_checksums(tar: &[u8]) -> Vec<u8> {
    let mut tar = tar.to_vec();
    for block in tar.chunks_exact_mut(BLOCK).filter(|block| &block[257..262] == b"ustar") {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    tar
}

fn compressed(tar: Vec<u8>) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&tar).and_then(|()| gzip.finish()).expect("writing to memory")
}

fn harmless(folder: &Path) {
    for entry in fs::read_dir(folder).expect("our own folder") {
        let path = entry.expect("an entry").path();
        let meta = fs::symlink_metadata(&path).expect("an entry");
        let kind = meta.file_type();
        assert!(!kind.is_fifo() && !kind.is_char_device() && !kind.is_block_device());
        assert!(kind.is_symlink() || meta.mode() & 0o7000 == 0, "mode {:o}", meta.mode());
        if kind.is_dir() {
            harmless(&path);
        }
    }
}
