//! The machine's memory.

/// Total memory in bytes, or the cgroup's limit where that is smaller; `None` where `/proc` is missing
/// (sysinfo then says 0).
pub fn total() -> Option<u64> {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let limit = system.cgroup_limits().map_or(u64::MAX, |limits| limits.total_memory);
    Some(system.total_memory().min(limit)).filter(|bytes| *bytes > 0)
}
