//! The proof, in the home, that its tree is whole.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::host::os;
use crate::tools::unpack::Unpacked;

/// The marker's file name in the home.
pub const MARKER: &str = ".garm-bootstrap.json";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// False while the home is being changed: what it holds then is of two trees.
    pub whole: bool,
    /// The runner's version, where it is known.
    pub version: Option<String>,
    /// Of the archive that the tree came from, where it came from one.
    pub sha256: Option<String>,
    pub architecture: String,
    pub files: u64,
    pub bytes: u64,
    /// Who built the tree.
    pub by: String,
}

impl Marker {
    /// For a tree of `files` files with `bytes` bytes.
    pub fn new(version: Option<String>, files: u64, bytes: u64) -> Self {
        Self {
            whole: true,
            version,
            sha256: None,
            architecture: os::forge_arch().to_owned(),
            files,
            bytes,
            by: concat!("garm-bootstrap ", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }

    /// For a tree that was just unpacked.
    pub fn of(unpacked: &Unpacked, version: Option<String>) -> Self {
        Self {
            sha256: Some(unpacked.sha256.to_string()),
            ..Self::new(version, unpacked.files, unpacked.bytes)
        }
    }

    /// The marker of `home`; `None` where there is none or it says nothing that we understand.
    pub fn read(home: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(home.join(MARKER)).ok()?).ok()
    }

    pub(super) fn unfinished(&self) -> Self {
        Self { whole: false, ..self.clone() }
    }

    pub(super) fn to_json(&self) -> String {
        // Strings and numbers always become JSON.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}
