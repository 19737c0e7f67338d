//! `/etc/environment` and `.path`: whatever they say, a job never gets a variable of ours.
#![no_main]

use std::path::{Path, PathBuf};

use garm_bootstrap::host::users::Account;
use garm_bootstrap::supervise::environment::{Sources, environment, is_forbidden};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let (etc_environment, path_file) = text.split_once('\0').unwrap_or((&text, ""));
    let account = Account {
        name: "runner".to_owned(),
        uid: 1001,
        gid: 1001,
        groups: vec![1001],
        home: Some(PathBuf::from("/home/runner")),
        shell: PathBuf::from("/bin/sh"),
    };
    let pairs = environment(&Sources {
        ours: &[],
        account: &account,
        home: Path::new("/opt/runner"),
        etc_environment,
        path_file: Some(path_file),
        extra: &[],
    });
    assert!(pairs.windows(2).all(|two| two[0].0 < two[1].0), "each name once");
    for (name, _) in &pairs {
        assert!(!is_forbidden(name), "{name:?}");
    }
    let has = |wanted: &str, value: &str| {
        pairs.iter().any(|(name, found)| name == wanted && found == value)
    };
    assert!(has("USER", "runner") && has("HOME", "/home/runner"));
});
