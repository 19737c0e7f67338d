//! `cargo xtask roots`: the Debian images that the container tests start from.
//!
//! No registry is asked. `debootstrap` makes the smallest Debian from the mirror that this machine's apt uses; it
//! becomes the image [`DEBIAN`], and with systemd and cloud-init in it [`SYSTEMD`]. podman's own store is the cache: what
//! is there under this version is not made again. An image gets its name when it is whole, so a run that was broken
//! off leaves nothing that would be taken for one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::shell;

/// What the runner image starts from. The number grows when [`RUNNER_PACKAGES`] change.
const DEBIAN: &str = "localhost/gb-debian:1";
/// The same, with a real init. The number grows when [`SYSTEMD_PACKAGES`] change.
const SYSTEMD: &str = "localhost/gb-systemd:2";
/// What .NET needs; the names with a version in them are patterns, as apt-get takes them.
const RUNNER_PACKAGES: [&str; 5] =
    ["ca-certificates", "^libicu[0-9]+$", "^libssl3(t64)?$", "libkrb5-3", "zlib1g"];
const SYSTEMD_PACKAGES: [&str; 9] =
    ["systemd", "systemd-sysv", "dbus", "cloud-init", "iproute2", "procps", "curl", "wget", "sudo"];
/// runc starts nothing whose limits are above those of whoever asks.
const PODMAN_RUN: [&str; 7] =
    ["--runtime", "runc", "run", "--ulimit", "nofile=1024:2048", "--ulimit", "nproc=4096:8192"];

/// Makes the images that are missing.
pub(crate) fn run() -> Result<()> {
    // Two runs beside each other would both do the work, and then fight for the name.
    let lock = File::create(std::env::temp_dir().join("garm-bootstrap-roots.lock"))?;
    lock.lock().context("wait for another run that makes the same images")?;
    // Images of the runner that tests have built and kept (tests/it/support/image.rs).
    shell::run(podman().args([
        "image",
        "prune",
        "--all",
        "--force",
        "--filter=label=garm-bootstrap.kept-for-tests",
        "--filter=until=24h",
    ]))?;
    if !has(DEBIAN)? {
        make_debian()?;
    }
    if !has(SYSTEMD)? {
        install(DEBIAN, &SYSTEMD_PACKAGES, SYSTEMD)?;
    }
    println!("{DEBIAN} and {SYSTEMD} are there");
    Ok(())
}

fn has(image: &str) -> Result<bool> {
    let status = podman().args(["image", "exists", image]).status().context("start podman")?;
    match status.code() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        _ => bail!("podman cannot say whether there is an image {image}: {status}"),
    }
}

fn make_debian() -> Result<()> {
    let suite = suite()?;
    let mirror = mirror(Path::new("/etc/apt"), &suite)?;
    let folder = tempfile::tempdir_in("/var/tmp")?;
    let root = folder.path().join("root");
    shell::run(
        Command::new("debootstrap").arg("--variant=minbase").arg(&suite).arg(&root).arg(&mirror),
    )?;
    let bare = format!("{DEBIAN}-bare");
    import(&root, &bare)?;
    install(&bare, &RUNNER_PACKAGES, DEBIAN)?;
    shell::run(podman().args(["rmi", &bare]))
}

/// A folder as an image.
fn import(root: &Path, image: &str) -> Result<()> {
    let mut tar = Command::new("tar");
    let leave_out = ["--exclude=./var/cache/apt/archives/*.deb", "--exclude=./var/lib/apt/lists/*"];
    tar.args(leave_out).arg("-C").arg(root).args(["-c", "."]).stdout(Stdio::piped());
    let mut tar = tar.spawn().context("start tar")?;
    let packed = tar.stdout.take().context("tar has a stdout")?;
    let imported = shell::run(podman().args(["import", "--quiet", "-", image]).stdin(packed));
    ensure!(tar.wait()?.success(), "tar could not pack {}", root.display());
    imported
}

/// `base` with `packages`, as `image`.
fn install(base: &str, packages: &[&str], image: &str) -> Result<()> {
    let name = format!("gb-roots-{}", std::process::id());
    // No service is started in there, and nothing is fsynced that is thrown away when it fails.
    let script = "set -e
export DEBIAN_FRONTEND=noninteractive
printf '#!/bin/sh\\nexit 101\\n' > /usr/sbin/policy-rc.d
chmod +x /usr/sbin/policy-rc.d
apt-get update
apt-get install -y --no-install-recommends -o Dpkg::Options::=--force-unsafe-io \"$@\"
apt-get clean
rm -rf /var/lib/apt/lists/* /usr/sbin/policy-rc.d";
    let mut run = podman();
    run.args(PODMAN_RUN).args(["--network", "host", "--name", &name]);
    // How this machine reaches its mirror: proxies, and what it lets an old snapshot do.
    run.args(["--volume", "/etc/apt/apt.conf.d:/etc/apt/apt.conf.d:ro"]);
    run.args([base, "sh", "-c", script, "sh"]).args(packages);
    let made = shell::run(&mut run)
        .and_then(|()| shell::run(podman().args(["commit", "--quiet", &name, image])));
    let removed = shell::run(podman().args(["rm", "--force", &name]));
    made.and(removed)
}

fn podman() -> Command {
    Command::new("podman")
}

/// The Debian release of this machine.
fn suite() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("read /etc/os-release")?;
    let value = |key: &str| {
        let line = release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.map(|value| value.trim_matches('"').to_owned())
    };
    ensure!(value("ID").as_deref() == Some("debian"), "these images are made on Debian only");
    value("VERSION_CODENAME").context("/etc/os-release has no VERSION_CODENAME")
}

/// Where apt gets the suite's packages from.
fn mirror(apt: &Path, suite: &str) -> Result<String> {
    let mut files: Vec<PathBuf> = vec![apt.join("sources.list")];
    files.extend(fs::read_dir(apt.join("sources.list.d"))?.flatten().map(|entry| entry.path()));
    let mut texts = files.iter().filter_map(|file| fs::read_to_string(file).ok());
    let found = texts.find_map(|text| mirror_in(&text, suite));
    found.with_context(|| format!("no file below {} names a mirror of {suite}", apt.display()))
}

/// From one-line entries (`deb [options] URI suite …`) or from stanzas (`URIs:`, `Suites:`).
fn mirror_in(text: &str, suite: &str) -> Option<String> {
    let line = |line: &str| {
        let mut words = line.split_whitespace().skip_while(|word| !word.contains("://"));
        let uri = line.starts_with("deb ").then(|| words.next()).flatten()?;
        (words.next()? == suite).then(|| uri.to_owned())
    };
    let stanza = |stanza: &str| {
        let field = |key: &str| stanza.lines().find_map(|line| line.strip_prefix(key));
        let here = field("Suites:")?.split_whitespace().any(|named| named == suite);
        let uri = field("URIs:")?.split_whitespace().next()?;
        here.then(|| uri.to_owned())
    };
    text.lines().find_map(line).or_else(|| text.split("\n\n").find_map(stanza))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_read_from_either_kind_of_sources() {
        let lines = "# deb http://no.example/debian bookworm main
deb [signed-by=/k.gpg] http://security.example/debian bookworm-security main
deb [signed-by=/k.gpg arch=amd64] http://mirror.example/debian bookworm main\n";
        let stanzas = "Types: deb\nURIs: http://security.example/debian\nSuites: bookworm-security\n
Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm-updates bookworm\nComponents: main\n";
        for text in [lines, stanzas] {
            let found = mirror_in(text, "bookworm");
            assert_eq!(found.as_deref(), Some("http://mirror.example/debian"));
            assert_eq!(mirror_in(text, "trixie"), None);
        }
    }
}
