//! `cargo xtask test`: everything that must hold before a change lands.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{demo, instructions, package, roots, shell};

/// Programs that the tests use, and the Debian packages that bring them.
const NEEDED: [(&str, &str); 16] = [
    ("strip", "binutils"),
    ("unshare", "util-linux"),
    ("tar", "tar"),
    ("gcc", "gcc"),
    ("useradd", "passwd"),
    ("curl", "curl"),
    ("groff", "groff-base"),
    ("rpm", "rpm"),
    ("cpio", "cpio"),
    ("podman", "podman"),
    ("runc", "runc"),
    ("debootstrap", "debootstrap"),
    ("kubectl", "kubernetes-client"),
    ("shellcheck", "shellcheck"),
    ("go", "golang-go"),
    ("valgrind", "valgrind"),
];
/// The account that runners have in the tests.
const USER: &str = "runner";

pub(crate) fn run() -> Result<()> {
    prepare()?;
    std::thread::scope(|scope| {
        // Most of its time is the mirror's, and passes while we compile.
        let roots = scope.spawn(roots::run);
        compile()?;
        roots.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    if shell::exists("cargo-nextest") {
        shell::run(shell::cargo().args(["nextest", "run", "--workspace", "--locked"]))?;
    } else {
        shell::run(shell::cargo().args(["test", "--workspace", "--all-targets", "--locked"]))?;
    }
    shell::run(shell::cargo().args(["test", "--workspace", "--doc", "--locked"]))?;
    shell::run(
        shell::cargo()
            .args(["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"])
            .env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links"),
    )
}

/// Format, lints, and the static binary that the tests use, with its instructions counted and a boot to look at.
fn compile() -> Result<()> {
    shell::run(shell::cargo().args(["fmt", "--all", "--check"]))?;
    shell::run(shell::cargo().args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ]))?;
    package::run()?;
    // Little is left to build for it: what is shipped was built just now, in the same way.
    instructions::run(std::iter::empty())?;
    demo::run()
}

/// Installs what is missing if we are root, and says what it is if we are not.
fn prepare() -> Result<()> {
    let missing: Vec<&str> = NEEDED
        .iter()
        .filter(|(name, _)| !shell::exists(name))
        .map(|(_, package)| *package)
        .collect();
    let has_user = Command::new("id").arg(USER).output().is_ok_and(|id| id.status.success());
    if shell::read(Command::new("id").arg("-u"))?.trim() != "0" {
        if missing.is_empty() {
            bail!(
                "the tests need root (they change users and make PID namespaces): run them as root"
            );
        }
        bail!("the tests need root, and these packages: {}", missing.join(" "));
    }
    if !missing.is_empty() {
        shell::run(Command::new("apt-get").arg("update"))?;
        shell::run(Command::new("apt-get").args(["install", "-y"]).args(&missing))?;
    }
    if !has_user {
        shell::run(Command::new("useradd").args(["--create-home", "--shell", "/bin/bash", USER]))?;
    }
    Ok(())
}
