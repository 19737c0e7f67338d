//! Which processes are below a given one.

use std::fs;

use nix::unistd::Pid;

use crate::host::processes::parent_in;

/// All processes that `root` has started, and those that they have, as /proc shows them now. Empty
/// where /proc is not mounted.
pub(super) fn of(root: Pid) -> Vec<Pid> {
    let parents = parents();
    let mut found = vec![root.as_raw()];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(parents.iter().filter(|(_, ppid)| *ppid == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.into_iter().skip(1).map(Pid::from_raw).collect()
}

/// Every process with its parent.
fn parents() -> Vec<(i32, i32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read(entry.path().join("stat")).ok()?;
            Some((pid, parent_in(&String::from_utf8_lossy(&stat))?.as_raw()))
        })
        .collect()
}
