//! The libraries that the runner needs from the system, and the script that installs them.
//!
//! Owns: which libraries those are, whether one is missing, and the runs of
//! `bin/installdependencies.sh`. Must not: start a program to look (`ldd` and `ldconfig` are not
//! everywhere, and the script takes 10 to 60 s even when all is there), or know a distribution.
//!
//! What is needed: what the .NET libraries in `bin/` are linked against (`DT_NEEDED`), and what .NET
//! opens by name while it runs (ICU, OpenSSL, Kerberos), which no header tells.

mod install;
pub mod linker_cache;
mod search;

use std::fmt;
use std::path::Path;

pub use self::install::{DependenciesError, INSTALL_SCRIPT, Installed, Installer};
pub use self::search::Search;

use self::search::Libraries;
use super::locate::LISTENER;
use crate::host::elf;

/// The libraries of .NET that the runner's own config.sh looks at.
const LINKED: [&str; 3] = [
    "bin/libcoreclr.so",
    "bin/libSystem.Security.Cryptography.Native.OpenSsl.so",
    "bin/libSystem.IO.Compression.Native.so",
];
/// Any of these says that the Listener is a .NET program, even where a script starts it.
const DOTNET: [&str; 3] = ["bin/libcoreclr.so", "bin/libhostfxr.so", "bin/Runner.Listener.dll"];
/// What .NET opens at run time: a name for people, and the files of which one is enough. A name that
/// ends in a dot stands for any version.
const OPENED: [(&str, &[&str]); 3] = [
    ("libicu", &["libicuuc.so."]),
    ("libssl", &["libssl.so.3", "libssl.so.1.1"]),
    ("libgssapi_krb5", &["libgssapi_krb5.so.2"]),
];

/// A library that is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Library {
    /// As it is asked for (`liblttng-ust.so.1`), or the family's name (`libicu`).
    pub name: String,
    /// The file, from the home, that needs it.
    pub needed_by: String,
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (needed by {})", self.name, self.needed_by)
    }
}

/// The names of `missing` for a sentence.
pub fn names(missing: &[Library]) -> String {
    missing.iter().map(|library| library.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// The libraries that the runner in `home` needs and that are in none of the places of `search`.
/// Files that cannot be read are taken to need nothing.
pub fn missing_libraries(home: &Path, search: &Search) -> Vec<Library> {
    let wants = wants(home, search);
    if wants.is_empty() {
        return Vec::new();
    }
    let libraries = Libraries::of(search);
    let mut missing: Vec<Library> = Vec::new();
    for want in wants {
        let known = missing.iter().any(|library| library.name == want.library.name);
        if !known && !want.any_of.iter().any(|name| libraries.has(name, &home.join("bin"))) {
            missing.push(want.library);
        }
    }
    missing
}

struct Want {
    library: Library,
    any_of: Vec<String>,
}

fn wants(home: &Path, search: &Search) -> Vec<Want> {
    let listener = elf::read(&home.join(LISTENER)).ok().flatten();
    let is_static = listener.as_ref().is_some_and(|elf| elf.interpreter.is_none());
    let is_dynamic = listener.is_some() && !is_static;
    let dotnet = is_dynamic || DOTNET.iter().any(|file| home.join(file).exists());
    let mut wants = Vec::new();
    for file in LINKED.iter().copied().chain(is_dynamic.then_some(LISTENER)) {
        let needed = elf::read(&home.join(file)).ok().flatten().map_or(Vec::new(), |e| e.needed);
        wants.extend(needed.into_iter().map(|name| Want {
            library: Library { name: name.clone(), needed_by: file.to_owned() },
            any_of: vec![name],
        }));
    }
    if dotnet && !is_static {
        for (family, files) in OPENED {
            if family == "libicu" && search.globalization_invariant {
                continue;
            }
            wants.push(Want {
                library: Library { name: family.to_owned(), needed_by: LISTENER.to_owned() },
                any_of: files.iter().map(|file| (*file).to_owned()).collect(),
            });
        }
    }
    wants
}

#[cfg(test)]
mod tests;
