//! Facts about the operating system: its name and version, the processor, free disk space.

use std::path::Path;

/// Name and version as GARM's `system-info` takes them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Os {
    /// `NAME` of os-release (`Ubuntu`), which is what GARM's own scripts send.
    pub name: String,
    /// `VERSION_ID` of os-release (`24.04`).
    pub version: String,
}

impl Os {
    /// From `/etc/os-release`, else `/usr/lib/os-release` (os-release(5)); empty fields where neither is.
    pub fn read() -> Self {
        ["/etc/os-release", "/usr/lib/os-release"]
            .iter()
            .find_map(|path| std::fs::read(path).ok())
            .map(|bytes| Self::parse(&String::from_utf8_lossy(&bytes)))
            .unwrap_or_default()
    }

    /// From the text of an os-release file.
    pub fn parse(text: &str) -> Self {
        let value = |key: &str| {
            text.lines()
                .filter_map(|line| line.trim().split_once('='))
                .filter(|(k, _)| *k == key)
                .map(|(_, v)| unquote(v))
                .next_back()
        };
        Self {
            name: value("NAME").or_else(|| value("ID")).unwrap_or_default(),
            version: value("VERSION_ID").unwrap_or_default(),
        }
    }
}

/// A value as a shell would read it: quotes taken off, and backslash escapes in double quotes.
fn unquote(value: &str) -> String {
    let value = value.trim();
    let inside = |quote: char| value.strip_prefix(quote).and_then(|v| v.strip_suffix(quote));
    if let Some(plain) = inside('\'') {
        return plain.to_owned();
    }
    let mut out = String::new();
    let mut chars = inside('"').unwrap_or(value).chars();
    while let Some(c) = chars.next() {
        out.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    out
}

/// The processor as forges name it in their downloads: `x64`, `arm64`, `arm`; else as Rust names it.
pub fn forge_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Bytes that we may still write to the file system of `path` (its nearest existing parent); `None`
/// where the kernel does not say.
pub fn free_disk(path: &Path) -> Option<u64> {
    let existing = path.ancestors().find(|p| p.exists())?;
    let stat = nix::sys::statvfs::statvfs(existing).ok()?;
    // Pseudo file systems answer 0 blocks: unknown, not full.
    (stat.blocks() > 0).then(|| stat.blocks_available() as u64 * stat.fragment_size() as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn os_release_is_read_as_a_shell_would() {
        let os = Os::parse("# c\nID=debian\nNAME=\"Debian \\\"GNU\\\"/Linux\"\nVERSION_ID='12'\n");
        assert_eq!(os, Os { name: "Debian \"GNU\"/Linux".to_owned(), version: "12".to_owned() });
    }

    #[test]
    fn a_rolling_distribution_has_no_version() {
        assert_eq!(Os::parse("NAME=Arch\n").version, "");
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_a_panic(text: String) {
            let _ = Os::parse(&text);
        }
    }
}
