//! The machine's memory, and ours.

/// Total memory in bytes, or the cgroup's limit where that is smaller; `None` where `/proc` is missing
/// (sysinfo then says 0).
pub fn total() -> Option<u64> {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let limit = system.cgroup_limits().map_or(u64::MAX, |limits| limits.total_memory);
    Some(system.total_memory().min(limit)).filter(|bytes| *bytes > 0)
}

/// Gives the system back what is free in our heap. glibc keeps what was freed below something that is
/// still in use: after a boot that has unpacked a runner that is half of all we have. Other C libraries
/// give it back by themselves.
#[expect(unsafe_code, reason = "a C function without a wrapper")]
pub fn give_back() {
    // SAFETY: takes the allocator's own locks, and touches free memory only.
    #[cfg(target_env = "gnu")]
    unsafe {
        nix::libc::malloc_trim(0);
    }
}
