//! `.runner` and the credentials, as GARM or something between us may hand them out.
#![no_main]

use garm_bootstrap::forge::github::files::JitFiles;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let credentials = b"{}".to_vec();
    if let Ok(files) = JitFiles::check(data.to_vec(), credentials.clone(), credentials.clone()) {
        assert_ne!(files.agent_id(), Some(0), "0 is GARM's word for none");
    }
    let _ = JitFiles::check(b"{\"agentId\":1}".to_vec(), data.to_vec(), credentials);
});
