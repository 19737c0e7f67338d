//! The archive policy: every entry of an archive with the layout of a runner's (2.336: four Node trees,
//! most of the files in npm's own packages, paths that begin with `./`).

use std::path::Path;

use garm_bootstrap::tools::policy::{Admitted, Claim, Limits, Policy};
use tar::EntryType;

use crate::Workload;

const NODES: [&str; 4] = ["node20", "node20_alpine", "node24", "node24_alpine"];
const LINKS: [(&str, &str); 3] = [
    ("npm", "../lib/node_modules/npm/bin/npm-cli.js"),
    ("npx", "../lib/node_modules/npm/bin/npx-cli.js"),
    ("corepack", "../lib/node_modules/corepack/dist/corepack.js"),
];
const ASSEMBLIES: usize = 300;
const HEADERS: usize = 220;
const PACKAGES: usize = 190;
/// Of one package of npm's.
const FILES: [&str; 7] = [
    "LICENSE",
    "README.md",
    "package.json",
    "lib/index.js",
    "lib/options.js",
    "lib/internal/parse-arguments.js",
    "dist/commonjs/index.d.ts",
];
const FOLDERS: [&str; 5] = ["", "lib/", "lib/internal/", "dist/", "dist/commonjs/"];

pub(crate) fn workload() -> Workload {
    let entries = entries();
    let (elements, expected) = (entries.len() as u64, expected(&entries));
    Workload { name: "archive-policy", elements, expected, work: Box::new(move || judge(&entries)) }
}

struct Entry {
    path: String,
    kind: EntryType,
    mode: u32,
    size: u64,
    target: Option<&'static str>,
}

/// What the unpacker asks of the policy; the bytes of all admitted paths.
fn judge(entries: &[Entry]) -> u64 {
    let mut policy = Policy::new(Limits::default());
    let mut bytes = 0;
    for entry in entries {
        let Entry { path, kind, mode, size, target } = entry;
        let target = target.map(str::as_bytes);
        let claim = Claim { path: path.as_bytes(), kind: *kind, mode: *mode, size: *size, target };
        bytes += match policy.admit(&claim) {
            Ok(Admitted::File(path)) if policy.count(&path, *size).is_ok() => length(&path),
            Ok(Admitted::Folder(path) | Admitted::Link { path, .. }) => length(&path),
            _ => 0,
        };
    }
    bytes
}

fn length(path: &Path) -> u64 {
    path.as_os_str().len() as u64
}

/// Each path without what `./` and a last `/` add to it.
fn expected(entries: &[Entry]) -> u64 {
    entries.iter().map(|entry| entry.path[2..].trim_end_matches('/').len() as u64).sum()
}

fn entries() -> Vec<Entry> {
    let mut entries = vec![folder("./".to_owned()), folder("./bin/".to_owned())];
    entries.extend((0..ASSEMBLIES).map(|n| file(format!("./bin/Runner.Assembly{n}.dll"), 0o644)));
    entries.push(folder("./externals/".to_owned()));
    for node in NODES {
        let root = format!("./externals/{node}/");
        for part in ["", "bin/", "include/", "include/node/", "lib/", "lib/node_modules/"] {
            entries.push(folder(format!("{root}{part}")));
        }
        entries.push(file(format!("{root}bin/node"), 0o755));
        for (name, target) in LINKS {
            entries.push(link(format!("{root}bin/{name}"), target));
        }
        entries.extend((0..HEADERS).map(|n| file(format!("{root}include/node/v8-{n}.h"), 0o644)));
        for package in 0..PACKAGES {
            let home = format!("{root}lib/node_modules/npm/node_modules/package-{package}/");
            entries.extend(FOLDERS.iter().map(|name| folder(format!("{home}{name}"))));
            entries.extend(FILES.iter().map(|name| file(format!("{home}{name}"), 0o644)));
        }
    }
    entries
}

fn folder(path: String) -> Entry {
    Entry { path, kind: EntryType::Directory, mode: 0o755, size: 0, target: None }
}

fn link(path: String, target: &'static str) -> Entry {
    Entry { path, kind: EntryType::Symlink, mode: 0o777, size: 0, target: Some(target) }
}

fn file(path: String, mode: u32) -> Entry {
    Entry { path, kind: EntryType::Regular, mode, size: 57_000, target: None }
}
