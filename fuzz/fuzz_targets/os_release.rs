//! `/etc/os-release` of any distribution, or of none.
#![no_main]

use garm_bootstrap::host::os::Os;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let os = Os::parse(&text);
    assert!(os.name.len() <= text.len() && os.version.len() <= text.len());
    assert!(!os.name.contains('\n'), "a value is one line");
});
