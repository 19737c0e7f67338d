//! The files of the runner archive, their modes and links, as the real one has them.

use std::io;

use super::{ArchiveSize, ArchiveSpec, ListenerFile, elf};

/// The fake Listener, compiled by `build.rs`.
pub(crate) const FAKE_LISTENER: &[u8] = include_bytes!(env!("RUNNER_LISTENER"));

const CONFIG_SH: &str = include_str!("scripts/config.sh");
const ENV_SH: &str = include_str!("scripts/env.sh");
const RUN_SH: &str = include_str!("scripts/run.sh");
const RUN_HELPER: &str = include_str!("scripts/run-helper.sh.template");
const SAFE_SLEEP: &str = include_str!("scripts/safe_sleep.sh");
const INSTALL_DEPENDENCIES: &str = include_str!("scripts/installdependencies.sh");
const RUNSVC: &str = include_str!("scripts/runsvc.sh");

/// One entry.
pub(crate) enum Node<'a> {
    Folder,
    File { mode: u32, data: &'a [u8] },
    Link(&'a str),
}

type Visit<'v> = dyn FnMut(&str, Node<'_>) -> io::Result<()> + 'v;

/// Calls `visit` for every entry of the archive, folders before what is in them.
pub(crate) fn each(spec: &ArchiveSpec, visit: &mut Visit<'_>) -> io::Result<()> {
    for folder in ["bin", "bin/checkScripts", "bin/hashFiles", "bin/layoutroot", "externals"] {
        visit(folder, Node::Folder)?;
    }
    for (path, text) in [
        ("config.sh", CONFIG_SH),
        ("env.sh", ENV_SH),
        ("run.sh", RUN_SH),
        ("safe_sleep.sh", SAFE_SLEEP),
        ("bin/installdependencies.sh", INSTALL_DEPENDENCIES),
        ("bin/runsvc.sh", RUNSVC),
        ("bin/checkScripts/downloadCert.js", "'use strict';\n"),
        ("bin/checkScripts/makeWebRequest.js", "'use strict';\n"),
        ("bin/hashFiles/index.js", "'use strict';\n"),
    ] {
        let mode = if has_extension(path, "sh") { 0o755 } else { 0o644 };
        visit(path, file(mode, text.as_bytes()))?;
    }
    visit("run-helper.sh.template", file(0o755, RUN_HELPER.as_bytes()))?;
    let script = spec.script.text(&spec.version);
    visit(".sim-script", file(0o644, script.as_bytes()))?;
    listener(spec, visit)?;
    visit("bin/Runner.Worker", file(0o755, b"#!/bin/sh\nexit 100\n"))?;
    let object = elf::shared_object(&spec.needs);
    visit("bin/libcoreclr.so", file(0o644, &object))?;
    let plain = elf::shared_object(&[]);
    for name in [
        "bin/System.Security.Cryptography.Native.OpenSsl.so",
        "bin/libcoreclrtraceptprovider.so",
        "bin/libhostfxr.so",
        "bin/libSystem.Native.so",
        "bin/libSystem.IO.Compression.Native.so",
    ] {
        visit(name, file(0o644, &plain))?;
    }
    for name in [
        "GitHub.DistributedTask.ObjectTemplating",
        "Newtonsoft.Json",
        "Runner.Common",
        "Runner.Listener",
        "Runner.Plugins",
        "Runner.Sdk",
        "Runner.Worker",
        "System.Private.CoreLib",
    ] {
        visit(&format!("bin/{name}.dll"), file(0o644, b"MZ simulated\n"))?;
    }
    for name in ["Runner.Listener", "Runner.Worker"] {
        let text = b"{\"runtimeOptions\":{}}\n";
        visit(&format!("bin/{name}.runtimeconfig.json"), file(0o644, text))?;
        let libraries = format!("{{\"libraries\": {{\"{name}/{}\": {{}}}}}}\n", spec.version);
        visit(&format!("bin/{name}.deps.json"), file(0o644, libraries.as_bytes()))?;
    }
    node(visit, "externals/node20", "20.19.5")?;
    node(visit, "externals/node24", "24.10.0")?;
    match spec.size {
        ArchiveSize::Small => Ok(()),
        ArchiveSize::Large => bulk(visit),
    }
}

fn file(mode: u32, data: &[u8]) -> Node<'_> {
    Node::File { mode, data }
}

fn has_extension(path: &str, wanted: &str) -> bool {
    std::path::Path::new(path).extension().is_some_and(|found| found == wanted)
}

fn listener(spec: &ArchiveSpec, visit: &mut Visit<'_>) -> io::Result<()> {
    let path = "bin/Runner.Listener";
    match &spec.listener {
        ListenerFile::Fake => visit(path, file(0o755, FAKE_LISTENER)),
        ListenerFile::NotExecutable => visit(path, file(0o644, FAKE_LISTENER)),
        ListenerFile::Empty => visit(path, file(0o755, b"")),
        ListenerFile::Bytes(bytes) => visit(path, file(0o755, bytes)),
        ListenerFile::ForeignArch => {
            let foreign = elf::with_machine(FAKE_LISTENER.to_vec(), elf::FOREIGN_MACHINE);
            visit(path, file(0o755, &foreign))
        }
        ListenerFile::MissingLoader => {
            let program = elf::executable_with_loader("/lib64/ld-garm-sim-missing.so.2");
            visit(path, file(0o755, &program))
        }
    }
}

/// One Node.js, with the relative links that the real one has.
fn node(visit: &mut Visit<'_>, root: &str, version: &str) -> io::Result<()> {
    for folder in [
        "",
        "/bin",
        "/include",
        "/include/node",
        "/lib",
        "/lib/node_modules",
        "/lib/node_modules/npm",
        "/lib/node_modules/npm/bin",
        "/lib/node_modules/corepack",
        "/lib/node_modules/corepack/dist",
    ] {
        visit(&format!("{root}{folder}"), Node::Folder)?;
    }
    let program = format!("#!/bin/sh\necho v{version}\n");
    visit(&format!("{root}/bin/node"), file(0o755, program.as_bytes()))?;
    for (path, mode) in [
        ("lib/node_modules/npm/bin/npm-cli.js", 0o755),
        ("lib/node_modules/npm/bin/npx-cli.js", 0o755),
        ("lib/node_modules/npm/package.json", 0o644),
        ("lib/node_modules/corepack/dist/corepack.js", 0o755),
        ("include/node/node.h", 0o644),
        ("LICENSE", 0o644),
    ] {
        let text = format!("// {version}: {path}\n");
        visit(&format!("{root}/{path}"), file(mode, text.as_bytes()))?;
    }
    for (path, target) in [
        ("bin/npm", "../lib/node_modules/npm/bin/npm-cli.js"),
        ("bin/npx", "../lib/node_modules/npm/bin/npx-cli.js"),
        ("bin/corepack", "../lib/node_modules/corepack/dist/corepack.js"),
    ] {
        visit(&format!("{root}/{path}"), Node::Link(target))?;
    }
    Ok(())
}

/// The weight of a real archive: a few big programs, some libraries, thousands of small files.
fn bulk(visit: &mut Visit<'_>) -> io::Result<()> {
    const POOL: usize = 32 << 20;
    let pool = noise(POOL);
    let mut offset = 0usize;
    let mut piece = |size: usize| {
        // A step that is no multiple of anything: no two files are the same.
        offset = (offset + 7919 * 61) % (POOL - size);
        &pool[offset..offset + size]
    };
    for n in 0..8 {
        let path = format!("externals/node20/lib/big-{n}.node");
        visit(&path, file(0o755, piece(30 << 20)))?;
    }
    for n in 0..200 {
        let path = format!("bin/System.Bulk.{n:03}.dll");
        visit(&path, file(0o644, piece(500 << 10)))?;
    }
    for folder in 0..78 {
        let folder_path = format!("externals/node24/lib/node_modules/npm/bulk-{folder:02}");
        visit(&folder_path, Node::Folder)?;
        for n in 0..99 {
            let size = 4096 + (n * 997) % 24_000;
            visit(&format!("{folder_path}/module-{n:02}.js"), file(0o644, piece(size)))?;
        }
    }
    Ok(())
}

/// Bytes of a fixed seed that deflate to about a third.
fn noise(size: usize) -> Vec<u8> {
    const ROW: usize = 64;
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut out: Vec<u8> = Vec::with_capacity(size + ROW);
    while out.len() < size {
        let word = next();
        if out.len() > 16 * ROW && word % 100 < 68 {
            // A row that stood here a little earlier.
            let back = usize::try_from(word >> 32).unwrap_or(0) % (14 * ROW) + ROW;
            let from = out.len() - back;
            out.extend_from_within(from..from + ROW);
        } else {
            for _ in 0..ROW / 8 {
                out.extend_from_slice(&next().to_le_bytes());
            }
        }
    }
    out.truncate(size);
    out
}

#[cfg(test)]
mod tests {
    use super::FAKE_LISTENER;

    #[test]
    fn the_fake_listener_asks_for_no_loader_and_no_library() {
        let word = |at: usize| u64::from_le_bytes(FAKE_LISTENER[at..at + 8].try_into().unwrap());
        let half = |at: usize| u16::from_le_bytes(FAKE_LISTENER[at..at + 2].try_into().unwrap());
        let headers = usize::try_from(word(32)).unwrap();
        for n in 0..usize::from(half(56)) {
            let kind = half(headers + n * 56);
            assert_ne!(kind, 3, "a PT_INTERP: the program is not static");
        }
    }
}
