//! `/etc/ld.so.cache` of another libc, or damaged.
#![no_main]

use garm_bootstrap::tools::dependencies::linker_cache::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let entries = parse(data);
    assert!(entries.len() <= data.len() / 24, "an entry has 24 bytes");
});
