//! Whatever entries an archive claims: what is admitted stays inside the tree.
#![no_main]

use std::path::{Component, Path};

use garm_bootstrap::tools::policy::{Admitted, Claim, Limits, Policy};
use libfuzzer_sys::fuzz_target;
use tar::EntryType;

// Entries are separated by a byte that no sensible name has: type, mode, path, target.
fuzz_target!(|data: &[u8]| {
    let mut policy = Policy::new(Limits { entries: 1000, bytes: 1 << 20 });
    for entry in data.split(|byte| *byte == 0xff) {
        let [kind, mode_high, mode_low, rest @ ..] = entry else { continue };
        let mut names = rest.splitn(2, |byte| *byte == 0xfe);
        let claim = Claim {
            kind: EntryType::new(*kind),
            mode: u32::from(*mode_high) << 8 | u32::from(*mode_low),
            size: rest.len() as u64,
            path: names.next().unwrap_or_default(),
            target: names.next(),
        };
        match policy.admit(&claim) {
            Ok(Admitted::Folder(path) | Admitted::File(path)) => inside(&path, 0),
            Ok(Admitted::Link { path, target }) => {
                inside(&path, 0);
                inside(&target, path.components().count() - 1);
            }
            Ok(Admitted::Nothing) | Err(_) => {}
        }
    }
});

/// `path` does not leave the tree from a folder of that depth.
fn inside(path: &Path, mut depth: usize) {
    for part in path.components() {
        match part {
            Component::Normal(_) => depth += 1,
            Component::ParentDir => {
                depth = depth.checked_sub(1).expect("it climbs out of the tree")
            }
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => panic!("{} is absolute", path.display()),
        }
    }
}
