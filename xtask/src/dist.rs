//! The static release binary, and what of it belongs to which crate.
//!
//! For musl where its standard library is at hand, which is what is released; else for glibc with
//! everything linked in, which is what can be tested everywhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{man, shell, size};

/// The package that is shipped, and its program.
pub(crate) const PROGRAM: &str = "garm-bootstrap";
/// The largest that the binary may be.
const LIMIT: u64 = 5_000_000;

/// Builds and checks the binary; its path.
pub(crate) fn run() -> Result<PathBuf> {
    shell::run(&mut build(PROGRAM)?)?;
    let dist = target_dir()?.join("dist");
    fs::create_dir_all(&dist)?;
    let binary = dist.join("garm-bootstrap");
    // A running copy must not keep the new one from its place.
    let _ = fs::remove_file(&binary);
    let made = made(PROGRAM)?;
    let with_symbols = fs::read(&made).with_context(|| format!("read {}", made.display()))?;
    shell::run(Command::new("strip").args(["--strip-all", "-o"]).args([&binary, &made]))?;
    print!("{}", size::table(&with_symbols)?);
    check(&binary)?;
    man::write(&dist)?;
    Ok(binary)
}

/// The command that builds the program of a package, of the same name, as the shipped one is built, with its
/// symbols.
pub(crate) fn build(program: &str) -> Result<Command> {
    let target = target()?;
    let mut build = shell::cargo();
    build.args(["rustc", "--release", "--locked", "--package", program, "--bin", program]);
    build.args(["--target", &target]);
    let flags = format!("CARGO_TARGET_{}_RUSTFLAGS", target.to_uppercase().replace('-', "_"));
    // With an explicit --target this does not reach proc macros and build scripts, which cannot be static.
    build.env(flags, "-C target-feature=+crt-static -C relocation-model=static");
    build.args(["--", "-C", "strip=none"]);
    if links_with_lld(&target) {
        // Functions that came out the same are kept once, and so are strings that end alike.
        build.args(["-C", "link-arg=-Wl,--icf=all", "-C", "link-arg=-Wl,-O2"]);
    }
    Ok(build)
}

/// Where [`build`] puts it.
pub(crate) fn made(program: &str) -> Result<PathBuf> {
    Ok(target_dir()?.join(target()?).join("release").join(program))
}

/// rustc's own linker is the default there; elsewhere it is the system's, which may not know the flag.
fn links_with_lld(target: &str) -> bool {
    target == "x86_64-unknown-linux-gnu"
}

fn check(binary: &Path) -> Result<()> {
    let bytes = fs::read(binary)?;
    ensure!(!has_interpreter(&bytes), "{} is not static: it names a loader", binary.display());
    let size = bytes.len() as u64;
    ensure!(size <= LIMIT, "the binary has {size} bytes, and at most {LIMIT} are allowed");
    let version = shell::read(Command::new(binary).arg("--version"))?;
    println!("{}: static, {} kB, {}", binary.display(), size / 1000, version.trim());
    Ok(())
}

/// Whether a 64-bit little-endian ELF file has a `PT_INTERP` program header.
fn has_interpreter(elf: &[u8]) -> bool {
    const PT_INTERP: u64 = 3;
    let number = |at: usize, bytes: usize| -> u64 {
        let field = elf.get(at..at + bytes).unwrap_or_default();
        field.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    };
    let (table, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    (0..count).any(|n| {
        let at = usize::try_from(table + n * size).unwrap_or(usize::MAX - 8);
        number(at, 4) == PT_INTERP
    })
}

/// The musl target of this machine where rustc has its library, else the glibc one.
pub(crate) fn target() -> Result<String> {
    let host = shell::read(Command::new("rustc").args(["--print", "host-tuple"]))?;
    let host = host.trim();
    let musl = host.replace("-gnu", "-musl");
    let libdir =
        shell::read(Command::new("rustc").args(["--print", "target-libdir", "--target", &musl]));
    let has_musl = libdir.is_ok_and(|dir| Path::new(dir.trim()).is_dir());
    Ok(if has_musl { musl } else { host.to_owned() })
}

pub(crate) fn target_dir() -> Result<PathBuf> {
    let metadata =
        shell::read(shell::cargo().args(["metadata", "--format-version", "1", "--no-deps"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    let dir = metadata["target_directory"].as_str().context("cargo metadata names no target")?;
    Ok(PathBuf::from(dir))
}
