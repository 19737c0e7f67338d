//! Where the dynamic loader finds libraries, on glibc and on musl.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::linker_cache;
use crate::host::elf::{self, Machine};

/// Searched last, as the loaders do. Triplets are Debian's.
const FOLDERS: [&str; 16] = [
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/lib64",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib/arm-linux-gnueabihf",
    "/usr/lib/arm-linux-gnueabihf",
    "/usr/local/lib/x86_64-linux-gnu",
    "/usr/local/lib/aarch64-linux-gnu",
    "/usr/local/lib/arm-linux-gnueabihf",
    "/opt/lib",
];
/// An `include` in an `include`… is followed so deep.
const INCLUDES: usize = 4;

/// What the search depends on.
#[derive(Debug, Clone)]
pub struct Search {
    /// `/`, but in a test.
    pub root: PathBuf,
    /// The `LD_LIBRARY_PATH` that the runner will have.
    pub library_path: Option<OsString>,
    /// Whether the runner will have `DOTNET_SYSTEM_GLOBALIZATION_INVARIANT`: ICU is not needed then.
    pub globalization_invariant: bool,
}

/// .NET's own switch for running without libicu.
const INVARIANT: &str = "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT";

impl Search {
    /// On this machine; `get` gives the variables that the runner will have.
    pub fn here(get: impl Fn(&str) -> Option<String>) -> Self {
        let invariant = get(INVARIANT);
        Self {
            library_path: get("LD_LIBRARY_PATH").map(OsString::from),
            globalization_invariant: invariant
                .is_some_and(|value| value == "1" || value.eq_ignore_ascii_case("true")),
            ..Self::default()
        }
    }
}

impl Default for Search {
    fn default() -> Self {
        let root = PathBuf::from("/");
        Self { root, library_path: None, globalization_invariant: false }
    }
}

/// The libraries of the system.
pub(super) struct Libraries {
    root: PathBuf,
    machine: Machine,
    cached: Vec<(String, String)>,
    folders: Vec<PathBuf>,
}

impl Libraries {
    pub(super) fn of(search: &Search) -> Self {
        let root = search.root.clone();
        let read = |path: &str| fs::read(inside(&root, Path::new(path))).unwrap_or_default();
        let cached = linker_cache::parse(&read("/etc/ld.so.cache"));
        let listed = search.library_path.iter().flat_map(std::env::split_paths);
        let mut folders: Vec<PathBuf> =
            listed.filter(|f| f.is_absolute()).map(|f| inside(&root, &f)).collect();
        read_conf(&root, Path::new("/etc/ld.so.conf"), INCLUDES, &mut folders);
        for arch in ["x86_64", "aarch64", "armhf"] {
            // musl's own list: folders with colons or line ends between them.
            let list = read(&format!("/etc/ld-musl-{arch}.path"));
            let list = String::from_utf8_lossy(&list).into_owned();
            let names = list.split([':', '\n']).map(str::trim).filter(|f| f.starts_with('/'));
            folders.extend(names.map(|f| inside(&root, Path::new(f))));
        }
        folders.extend(FOLDERS.iter().map(|f| inside(&root, Path::new(f))));
        Self { root, machine: elf::machine_of_host(), cached, folders }
    }

    /// Whether a library of this machine's kind is called `name` (any version of it, where `name`
    /// ends in a dot), in `bin` or one of the system's places.
    pub(super) fn has(&self, name: &str, bin: &Path) -> bool {
        let any_version = name.ends_with('.');
        let fits = |found: &str| if any_version { found.starts_with(name) } else { found == name };
        let cached = self.cached.iter().filter(|(found, _)| fits(found));
        let mut cached = cached.map(|(_, path)| inside(&self.root, Path::new(path)));
        if self.is_library(&bin.join(name)) || cached.any(|path| self.is_library(&path)) {
            return true;
        }
        if !any_version {
            return self.folders.iter().any(|folder| self.is_library(&folder.join(name)));
        }
        let bin = bin.to_owned();
        self.folders.iter().chain([&bin]).any(|folder| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            let mut named = entries.filter(|e| e.file_name().to_str().is_some_and(fits));
            named.any(|entry| self.is_library(&entry.path()))
        })
    }

    /// On a machine with libraries for two processors both have the same names.
    fn is_library(&self, path: &Path) -> bool {
        fs::metadata(path).is_ok_and(|meta| meta.is_file())
            && matches!(elf::read(path), Ok(Some(elf)) if elf.machine == self.machine)
    }
}

/// The folders that an `ld.so.conf` (ld.so(8)) lists, and those of the files that it includes.
fn read_conf(root: &Path, path: &Path, depth: usize, folders: &mut Vec<PathBuf>) {
    let text = fs::read(inside(root, path)).unwrap_or_default();
    for line in String::from_utf8_lossy(&text).lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        match line.strip_prefix("include").filter(|rest| rest.starts_with([' ', '\t'])) {
            Some(pattern) if depth > 0 => {
                let here = path.parent().unwrap_or(Path::new("/"));
                for file in matching(root, &here.join(pattern.trim())) {
                    read_conf(root, &file, depth - 1, folders);
                }
            }
            None if line.starts_with('/') => folders.push(inside(root, Path::new(line))),
            Some(_) | None => {}
        }
    }
}

/// The files that `pattern` means: a path, whose last part may have one `*`.
fn matching(root: &Path, pattern: &Path) -> Vec<PathBuf> {
    let name = pattern.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some((before, after)) = name.split_once('*') else { return vec![pattern.to_owned()] };
    let folder = pattern.parent().unwrap_or(Path::new("/"));
    let entries = fs::read_dir(inside(root, folder)).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(before) && name.ends_with(after))
        .map(|name| folder.join(name))
        .collect();
    found.sort();
    found
}

/// The absolute `path` below `root`.
fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}
