//! Compiles the fake Listener (`src/listener/`) into a static program that the library embeds.
//!
//! It is compiled with rustc alone, without cargo: it has no dependency, must start in any image
//! (an empty one included) and must be small, so it has flags of its own.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=src/listener");
    println!("cargo:rerun-if-env-changed=RUSTC");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("runner-listener");
    let target = env::var("TARGET").unwrap_or_default();
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());

    let mut command = Command::new(rustc);
    command
        .args(["--edition", "2024", "--crate-type", "bin"])
        .args(["--crate-name", "runner_listener", "--target", &target])
        .args(["-C", "target-feature=+crt-static"])
        .args(["-C", "opt-level=s", "-C", "panic=abort"])
        .args(["-C", "strip=symbols", "-C", "codegen-units=1"])
        .arg("-o")
        .arg(&out)
        .arg("src/listener/main.rs");
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let mut flag = std::ffi::OsString::from("linker=");
        flag.push(linker);
        command.arg("-C").arg(flag);
    }
    // A host's own flags (a coverage run, a linker wrapper) have no place in this program.
    command.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("the fake Listener did not compile for {target}: {status}"),
        Err(error) => panic!("rustc could not be started for the fake Listener: {error}"),
    }
    println!("cargo:rustc-env=RUNNER_LISTENER={}", out.display());
}
