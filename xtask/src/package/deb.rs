//! The .deb: an `ar` archive of the format's version, a tar of control files and a tar of the files
//! (deb(5)).

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tar::{EntryType, Header};

use super::{Build, File, gzip};
use crate::shell;

const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

pub(super) fn write(dir: &Path, build: &Build, files: &[File]) -> Result<PathBuf> {
    let arch = match build.arch.as_str() {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let path = dir.join(format!("garm-bootstrap_{}_{arch}.deb", build.version));
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", gzip(&control(build, arch, files)?)?),
        ("data.tar.gz", gzip(&data(build, files)?)?),
    ];
    let mut archive = b"!<arch>\n".to_vec();
    for (name, contents) in members {
        let (time, size) = (build.time, contents.len());
        writeln!(archive, "{name:<16}{time:<12}{:<6}{:<6}{:<8}{size:<10}`", 0, 0, "100644")?;
        archive.extend_from_slice(&contents);
        if size % 2 == 1 {
            archive.push(b'\n');
        }
    }
    fs::write(&path, archive).with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}

fn control(build: &Build, arch: &str, files: &[File]) -> Result<Vec<u8>> {
    let source = shell::root().join("packaging/deb");
    let read = |name: &str| {
        fs::read_to_string(source.join(name)).with_context(|| format!("read packaging/deb/{name}"))
    };
    let size: usize = files.iter().map(|file| file.contents.len().div_ceil(1024)).sum();
    let text = read("control")?
        .replace("@VERSION@", &build.version)
        .replace("@ARCH@", arch)
        .replace("@SIZE@", &size.to_string());
    let mut tar = Tar::new(build.time);
    tar.folder("./")?;
    tar.file("./control", 0o644, text.as_bytes())?;
    tar.file("./conffiles", 0o644, read("conffiles")?.as_bytes())?;
    tar.file("./md5sums", 0o644, &md5sums(files)?)?;
    for script in SCRIPTS {
        tar.file(&format!("./{script}"), 0o755, read(script)?.as_bytes())?;
    }
    tar.finish()
}

/// What dpkg checks an installation by. The digest is no matter of safety, and coreutils have it.
fn md5sums(files: &[File]) -> Result<Vec<u8>> {
    let mut sums = Vec::new();
    for file in files.iter().filter(|file| file.kind != super::FileKind::Config) {
        let mut md5sum = Command::new("md5sum")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start md5sum")?;
        md5sum.stdin.take().context("its stdin is a pipe")?.write_all(&file.contents)?;
        let output = md5sum.wait_with_output()?;
        ensure!(output.status.success(), "md5sum ended with {}", output.status);
        let said = String::from_utf8(output.stdout)?;
        let digest = said.split_whitespace().next().unwrap_or_default();
        writeln!(sums, "{digest}  {}", file.path)?;
    }
    Ok(sums)
}

fn data(build: &Build, files: &[File]) -> Result<Vec<u8>> {
    let mut folders = BTreeSet::from(["./".to_owned()]);
    for file in files {
        for folder in Path::new(&file.path).ancestors().skip(1) {
            if !folder.as_os_str().is_empty() {
                folders.insert(format!("./{}/", folder.display()));
            }
        }
    }
    let mut tar = Tar::new(build.time);
    folders.iter().try_for_each(|folder| tar.folder(folder))?;
    for file in files {
        tar.file(&format!("./{}", file.path), file.mode, &file.contents)?;
    }
    tar.finish()
}

/// Everything is root's, and of one time.
struct Tar {
    builder: tar::Builder<Vec<u8>>,
    time: u32,
}

impl Tar {
    fn new(time: u32) -> Self {
        Self { builder: tar::Builder::new(Vec::new()), time }
    }

    fn folder(&mut self, path: &str) -> Result<()> {
        self.add(path, 0o755, EntryType::Directory, &[])
    }

    fn file(&mut self, path: &str, mode: u32, contents: &[u8]) -> Result<()> {
        self.add(path, mode, EntryType::Regular, contents)
    }

    fn add(&mut self, path: &str, mode: u32, kind: EntryType, contents: &[u8]) -> Result<()> {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_mtime(self.time.into());
        header.set_uid(0);
        header.set_gid(0);
        header.set_username("root")?;
        header.set_groupname("root")?;
        header.set_size(contents.len() as u64);
        // set_path would take the leading dot away, which dpkg's own archives have.
        let name = path.as_bytes();
        header
            .as_old_mut()
            .name
            .get_mut(..name.len())
            .context("a short path")?
            .copy_from_slice(name);
        header.set_cksum();
        self.builder.append(&header, contents)?;
        Ok(())
    }

    fn finish(self) -> Result<Vec<u8>> {
        Ok(self.builder.into_inner()?)
    }
}
