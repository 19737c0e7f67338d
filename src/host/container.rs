//! Whether this is a container.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The inode of the first PID namespace (`PROC_PID_INIT_INO` in the kernel's `proc_ns.h`).
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Whether our process ids are those that the kernel counts itself.
pub fn in_first_pid_namespace() -> bool {
    fs::metadata("/proc/self/ns/pid").is_ok_and(|namespace| namespace.ino() == FIRST_PID_NAMESPACE)
}

/// Whether there is no machine of our own around us: another PID namespace, or the word of podman or
/// of a systemd that knows it (systemd.io/CONTAINER_INTERFACE). `/.dockerenv` says nothing: images of
/// virtual machines that were made from a container image have it, too.
pub fn is_container() -> bool {
    let told = ["/run/.containerenv", "/run/systemd/container"];
    !in_first_pid_namespace() || told.iter().any(|file| Path::new(file).exists())
}
