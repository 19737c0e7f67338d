//! The three files that make an unpacked runner a registered one.
//!
//! They come from GARM (JIT) or from config.sh, and differ in every detail: config.sh writes UTF-8 with
//! BOM, camelCase and a numeric id; JIT has no BOM, PascalCase and the id as a string (read in
//! actions/runner 2.336, `IOUtil.cs` and `ConfigurationStore.cs`). So they are parsed, never grepped.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::host::files::{FilesError, read_plain, write_atomic};
use crate::host::users::Account;
use crate::secret;

pub const RUNNER: &str = ".runner";
pub const CREDENTIALS: &str = ".credentials";
pub const RSA_PARAMS: &str = ".credentials_rsaparams";
/// All three, in the order in which they are written: without the first, nobody believes the others.
pub const ALL: [&str; 3] = [RSA_PARAMS, CREDENTIALS, RUNNER];

/// Shorter values of the key file are public (the exponent), and masking them would tear other text.
const KEY_PART_FROM: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum RunnerFileError {
    #[error("use {name}: it is empty")]
    Empty { name: &'static str },
    #[error(
        "use {name}: it is a web page, so something between here and GARM answered instead of it"
    )]
    WebPage { name: &'static str },
    #[error("use {name}: it is not a JSON object: {why}")]
    NotJson { name: &'static str, why: String },
    #[error("use {name}: it has no agent id")]
    NoAgentId { name: &'static str },
    #[error("read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("remove {}: {source}", path.display())]
    Remove { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Write(#[from] FilesError),
}

/// The JIT files as GARM hands them out, checked, not yet on disk.
#[derive(Debug)]
pub struct JitFiles {
    runner: Vec<u8>,
    credentials: Vec<u8>,
    rsa_params: Vec<u8>,
    agent_id: Option<u64>,
}

impl JitFiles {
    /// Checks the three files. Their key material becomes known to redaction.
    pub fn check(
        runner: Vec<u8>,
        credentials: Vec<u8>,
        rsa_params: Vec<u8>,
    ) -> Result<Self, RunnerFileError> {
        let settings = object(RUNNER, &runner)?;
        for (name, bytes) in [(CREDENTIALS, &credentials), (RSA_PARAMS, &rsa_params)] {
            match object(name, bytes) {
                Ok(parsed) if name == RSA_PARAMS => learn_secrets(&Value::Object(parsed)),
                // The runner's own word on its own format is the better one, and it comes soon.
                Err(error @ RunnerFileError::NotJson { .. }) => tracing::warn!("{error}"),
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
        Ok(Self { agent_id: find_agent_id(&settings), runner, credentials, rsa_params })
    }

    /// GARM has preset the id of a JIT runner; this is the same one, where the file tells it.
    pub fn agent_id(&self) -> Option<u64> {
        self.agent_id
    }

    /// Writes the files into `home`: 0600, owned by `owner`, byte for byte.
    pub fn write(&self, home: &Path, owner: &Account) -> Result<(), RunnerFileError> {
        for name in ALL {
            let contents = match name {
                RUNNER => &self.runner,
                CREDENTIALS => &self.credentials,
                _ => &self.rsa_params,
            };
            write_atomic(&home.join(name), contents, 0o600, Some(owner))?;
        }
        Ok(())
    }
}

/// The agent id that config.sh left in `home`, after a look at the whole registration: config.sh can
/// exit 0 and write nothing.
pub fn registered(home: &Path) -> Result<u64, RunnerFileError> {
    for name in [CREDENTIALS, RSA_PARAMS] {
        let bytes = read(&home.join(name))?;
        let parsed = object(name, &bytes)?;
        if name == RSA_PARAMS {
            learn_secrets(&Value::Object(parsed));
        }
    }
    let settings = object(RUNNER, &read(&home.join(RUNNER))?)?;
    find_agent_id(&settings).ok_or(RunnerFileError::NoAgentId { name: RUNNER })
}

/// The agent id that stands in `home`, for whoever only wants to look.
pub fn agent_id(home: &Path) -> Option<u64> {
    find_agent_id(&object(RUNNER, &read(&home.join(RUNNER)).ok()?).ok()?)
}

/// Removes what a registration, whole or half-done, left in `home`.
pub fn remove(home: &Path) -> Result<(), RunnerFileError> {
    for path in ALL.iter().rev().map(|name| home.join(name)) {
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(RunnerFileError::Remove { path, source });
            }
            _ => {}
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>, RunnerFileError> {
    read_plain(path).map_err(|source| RunnerFileError::Read { path: path.to_owned(), source })
}

fn object(name: &'static str, bytes: &[u8]) -> Result<Map<String, Value>, RunnerFileError> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii();
    match bytes.first() {
        None => Err(RunnerFileError::Empty { name }),
        Some(b'<') => Err(RunnerFileError::WebPage { name }),
        Some(_) => serde_json::from_slice(bytes)
            .map_err(|error| RunnerFileError::NotJson { name, why: error.to_string() }),
    }
}

/// `agentId` in any case, a number or a string of digits, but not 0: that is GARM's "none".
fn find_agent_id(settings: &Map<String, Value>) -> Option<u64> {
    let (_, value) = settings.iter().find(|(key, _)| key.eq_ignore_ascii_case("agentId"))?;
    let id = match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    id.filter(|id| *id != 0)
}

fn learn_secrets(value: &Value) {
    match value {
        Value::String(text) if text.len() >= KEY_PART_FROM => secret::learn(text),
        Value::Array(values) => values.iter().for_each(learn_secrets),
        Value::Object(fields) => fields.values().for_each(learn_secrets),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn agent_id(text: &str) -> Option<u64> {
        find_agent_id(&object(RUNNER, text.as_bytes()).unwrap())
    }

    #[test]
    fn the_agent_id_is_found_in_every_dialect() {
        let table = [
            ("\u{feff}{\"agentId\": 42, \"agentName\": \"lab-7\", \"poolId\": 1}", Some(42)),
            ("{\"agentId\":42,\"agentName\":\"7x\",\"poolId\":1}", Some(42)),
            ("{\"AgentId\":\"1000\",\"PoolId\":\"1\",\"Ephemeral\":\"True\"}", Some(1000)),
            ("{\"agentId\":0}", None),
            ("{\"agentId\":\"x\"}", None),
            ("{\"poolId\":1}", None),
        ];
        for (text, expected) in table {
            assert_eq!(agent_id(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_jit_file_is_refused_with_its_name() {
        let good = || b"{}".to_vec();
        let refused = |files: [Vec<u8>; 3]| {
            let [runner, credentials, rsa_params] = files;
            JitFiles::check(runner, credentials, rsa_params).unwrap_err().to_string()
        };
        assert_eq!(refused([vec![], good(), good()]), "use .runner: it is empty");
        assert!(
            refused([b"nope".to_vec(), good(), good()])
                .starts_with("use .runner: it is not a JSON")
        );
        assert!(
            refused([good(), b"<html>".to_vec(), good()])
                .starts_with("use .credentials: it is a web page")
        );
        assert!(
            refused([good(), good(), b" \n".to_vec()])
                .starts_with("use .credentials_rsaparams: it is empty")
        );
    }

    #[test]
    fn key_material_is_masked_from_then_on() {
        let key = br#"{"d":"c2VjcmV0LWtleS1wYXJ0LW51bWJlci1vbmU","exponent":"AQAB"}"#.to_vec();
        JitFiles::check(b"{}".to_vec(), b"{}".to_vec(), key).unwrap();
        assert_eq!(secret::redact("d=c2VjcmV0LWtleS1wYXJ0LW51bWJlci1vbmU AQAB"), "d=*** AQAB");
    }

    #[test]
    fn jit_files_are_private_and_byte_for_byte() {
        use std::os::unix::fs::MetadataExt;
        let home = tempfile::tempdir().unwrap();
        let runner = b"{\"AgentId\":\"5\"} ".to_vec();
        let files = JitFiles::check(runner.clone(), b"{}".to_vec(), b"{}".to_vec()).unwrap();
        files.write(home.path(), &Account::current()).unwrap();
        assert_eq!(std::fs::read(home.path().join(RUNNER)).unwrap(), runner);
        for name in ALL {
            let mode = std::fs::metadata(home.path().join(name)).unwrap().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        assert_eq!(registered(home.path()).unwrap(), 5);
        remove(home.path()).unwrap();
        assert!(registered(home.path()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read_without_a_panic(bytes: Vec<u8>) {
            let _ = object(RUNNER, &bytes).map(|settings| find_agent_id(&settings));
        }
    }
}
