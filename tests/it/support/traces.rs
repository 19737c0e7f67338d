//! What a boot has left in the file system and in the list of processes.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::read;

/// Everything below `root`, by its path from there.
pub fn files_below(root: &Path) -> BTreeSet<String> {
    let (mut found, mut folders) = (BTreeSet::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            found.insert(path.strip_prefix(root).unwrap().to_string_lossy().into_owned());
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            }
        }
    }
    found
}

/// The command lines of processes that run in `dir` or out of it.
pub fn processes_of(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let path = entry.path();
        let inside =
            |link: &str| fs::read_link(path.join(link)).is_ok_and(|to| to.starts_with(dir));
        if inside("cwd") || inside("exe") {
            found.push(read(&path.join("cmdline")).replace('\0', " "));
        }
    }
    found
}
