//! The packages: a .deb and an .rpm from the same files.
//!
//! They are written by this program itself and not by cargo-deb and cargo-generate-rpm: the formats are an
//! `ar` of two tars, and a crate; installing those two tools would cost CI three minutes of processor time.
//! The binary is the static one of `dist`. Two runs at the same commit make the same bytes.

mod deb;
mod rpm;

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use flate2::{Compression, GzBuilder};
use garm_bootstrap::config::settings::{self, Kind, Setting};

use crate::{dist, man, shell};

/// Of a package: a file, by its path from the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) mode: u32,
    pub(crate) contents: Vec<u8>,
    pub(crate) kind: FileKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileKind {
    Plain,
    /// A person's changes of it are kept.
    Config,
    Doc,
    License,
}

/// What is known of the build.
#[derive(Debug, Clone)]
pub(crate) struct Build {
    pub(crate) version: String,
    /// As Rust names it.
    pub(crate) arch: String,
    /// Seconds since 1970: the time of the commit.
    pub(crate) time: u32,
}

/// Makes both from the binary of `dist`; their paths.
pub(crate) fn run() -> Result<[PathBuf; 2]> {
    let binary = dist::run()?;
    let dir = binary.parent().context("the binary is in a folder")?;
    let build = Build::here();
    let files = files(dir)?;
    let made = [deb::write(dir, &build, &files)?, rpm::write(dir, &build, &files)?];
    for package in &made {
        println!("{}: {} kB", package.display(), fs::metadata(package)?.len() / 1000);
    }
    Ok(made)
}

impl Build {
    fn here() -> Self {
        let time = shell::read(
            Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(shell::root()),
        );
        // Outside of a repository (an unpacked source archive) there is no commit.
        let time = time.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1_700_000_000);
        let arch = std::env::consts::ARCH.to_owned();
        Self { version: env!("CARGO_PKG_VERSION").to_owned(), arch, time }
    }
}

/// Everything that is installed, in the order of its paths.
fn files(dist: &Path) -> Result<Vec<File>> {
    let root = shell::root();
    let read = |path: PathBuf| fs::read(&path).with_context(|| format!("read {}", path.display()));
    let mut files = vec![
        file("usr/bin/garm-bootstrap", 0o755, read(dist.join("garm-bootstrap"))?, FileKind::Plain),
        file(
            "usr/lib/systemd/system/garm-bootstrap.service",
            0o644,
            unit(&read(root.join("systemd/garm-bootstrap.service"))?)?,
            FileKind::Plain,
        ),
        file("etc/garm-bootstrap/config.toml", 0o644, config().into_bytes(), FileKind::Config),
        file(
            "usr/share/doc/garm-bootstrap/copyright",
            0o644,
            read(root.join("packaging/deb/copyright"))?,
            FileKind::License,
        ),
        file(
            "usr/share/doc/garm-bootstrap/changelog.gz",
            0o644,
            gzip(&read(root.join("CHANGELOG.md"))?)?,
            FileKind::Doc,
        ),
    ];
    for entry in fs::read_dir(dist.join("man"))? {
        let entry = entry?;
        let path = format!("usr/share/man/man1/{}.gz", entry.file_name().to_string_lossy());
        files.push(file(&path, 0o644, gzip(&fs::read(entry.path())?)?, FileKind::Doc));
    }
    for (_, name, path) in man::COMPLETIONS {
        let script = read(dist.join("completions").join(name))?;
        files.push(file(path, 0o644, script, FileKind::Plain));
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn file(path: &str, mode: u32, contents: Vec<u8>, kind: FileKind) -> File {
    File { path: path.to_owned(), mode, contents, kind }
}

/// The unit, with the binary where a package puts it.
fn unit(text: &[u8]) -> Result<Vec<u8>> {
    let text = String::from_utf8(text.to_vec()).context("the unit is text")?;
    let packaged = text.replace("/usr/local/bin/garm-bootstrap", "/usr/bin/garm-bootstrap");
    ensure!(packaged != text, "the unit does not start /usr/local/bin/garm-bootstrap");
    Ok(packaged.into_bytes())
}

/// Every setting, commented out. It holds no secret, and a boot of a plain user reads it, too.
fn config() -> String {
    let mut text = String::from(
        "# Settings of garm-bootstrap (TOML). The keys are the names of the flags; flags and the\n\
         # environment beat what stands here. A token never stands here: see token-file.\n",
    );
    let written = |setting: &&&Setting| setting.kind != Kind::Secret && setting.name != "config";
    for setting in settings::ALL.iter().filter(written) {
        let value = match setting.kind {
            Kind::Switch => "true".to_owned(),
            Kind::List | Kind::Commas => format!("[\"{}\"]", setting.value),
            Kind::Value | Kind::Secret => format!("\"{}\"", setting.value),
        };
        let (help, default, name) = (setting.help, setting.default, setting.name);
        let _ = write!(text, "\n# {help}\n# Default: {default}\n#{name} = {value}\n");
    }
    text
}

/// Without a name and a time, so that the same text gives the same bytes.
fn gzip(contents: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    encoder.write_all(contents)?;
    Ok(encoder.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build() -> Build {
        Build { version: "1.2.3".into(), arch: "x86_64".into(), time: 1_700_000_000 }
    }

    #[test]
    fn the_same_files_make_the_same_bytes() {
        let files = [file("usr/bin/x", 0o755, b"x".to_vec(), FileKind::Plain)];
        let made = || {
            let dir = tempfile::tempdir().unwrap();
            let deb = deb::write(dir.path(), &build(), &files).unwrap();
            let rpm = rpm::write(dir.path(), &build(), &files).unwrap();
            assert_eq!(deb.file_name().unwrap(), "garm-bootstrap_1.2.3_amd64.deb");
            assert_eq!(rpm.file_name().unwrap(), "garm-bootstrap-1.2.3-1.x86_64.rpm");
            (fs::read(deb).unwrap(), fs::read(rpm).unwrap())
        };
        assert_eq!(made(), made());
    }

    #[test]
    fn the_config_file_sets_nothing_and_names_every_setting() {
        let text = config();
        let values: toml::Table = text.parse().unwrap();
        assert!(values.is_empty(), "{values:?}");
        for setting in settings::ALL.iter().filter(|s| s.kind != Kind::Secret && s.name != "config")
        {
            assert!(text.contains(&format!("\n#{} = ", setting.name)), "{}", setting.name);
        }
        // With the hashes taken away it is what the program reads.
        let written: String = text
            .lines()
            .filter(|line| !line.starts_with("# "))
            .fold(String::new(), |all, line| all + line.trim_start_matches('#') + "\n");
        let values: toml::Table = written.parse().unwrap();
        assert_eq!(values.len(), settings::ALL.len() - 2);
    }
}
