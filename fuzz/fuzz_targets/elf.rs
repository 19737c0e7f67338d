//! A program file that is damaged, or none.
#![no_main]

use garm_bootstrap::host::elf::read_bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    match read_bytes(data) {
        Ok(Some(elf)) => assert!(elf.needed.iter().map(String::len).sum::<usize>() <= 1 << 22),
        Ok(None) => assert!(data.len() < 20 || !data.starts_with(b"\x7fELF")),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}"),
    }
});
