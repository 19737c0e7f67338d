//! The system's own store of certificate authorities, where this machine lets us add to it.
//!
//! Only root can, and only with the distribution's own tool, which makes every format that the
//! machine's programs read. Must not: decide whom to trust, or write into a store without its tool.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::files::{FilesError, write_atomic};
use super::process::{ProcessError, Program};

/// The tool rewrites a few hundred files; on a slow disk that takes seconds.
const TOOL_LIMIT: Duration = Duration::from_secs(60);
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Folder of the additions, their tool, its arguments: Red Hat, SUSE, Debian and Alpine. Debian's
/// folder is made where it is missing; the others show by theirs which kind of system this is.
const KINDS: [(&str, &str, &[&str], bool); 4] = [
    ("etc/pki/ca-trust/source/anchors", "usr/bin/update-ca-trust", &["extract"], false),
    ("etc/pki/trust/anchors", "usr/sbin/update-ca-certificates", &[], false),
    ("usr/local/share/ca-certificates", "usr/sbin/update-ca-certificates", &[], true),
    ("usr/local/share/ca-certificates", "usr/bin/update-ca-certificates", &[], true),
];

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(transparent)]
    Write(#[from] FilesError),
    #[error("make the folder {}: {source}", path.display())]
    MakeDir { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error("update the system's certificate store: {tool} ended with {ended}: {output}")]
    Tool { tool: String, ended: String, output: String },
}

/// A store that can be added to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemStore {
    anchors: PathBuf,
    tool: PathBuf,
    args: &'static [&'static str],
}

impl SystemStore {
    /// The store of the system below `root`, if it has one of the known kinds.
    pub fn find(root: &Path) -> Option<Self> {
        KINDS.iter().find_map(|&(anchors, tool, args, may_be_made)| {
            let (anchors, tool) = (root.join(anchors), root.join(tool));
            let is_there = tool.is_file() && (may_be_made || anchors.is_dir());
            is_there.then_some(Self { anchors, tool, args })
        })
    }

    /// Adds certificates, one PEM text each; those that are there already cost nothing.
    pub async fn add(&self, pems: &[String], cancel: &CancellationToken) -> Result<(), StoreError> {
        let missing: Vec<(PathBuf, &String)> = pems
            .iter()
            .map(|pem| (self.place_of(pem), pem))
            .filter(|(path, pem)| std::fs::read(path).ok().as_deref() != Some(pem.as_bytes()))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        std::fs::create_dir_all(&self.anchors)
            .map_err(|source| StoreError::MakeDir { path: self.anchors.clone(), source })?;
        for (path, pem) in missing {
            write_atomic(&path, pem.as_bytes(), 0o644, None)?;
        }
        self.update(cancel).await
    }

    /// Has the tool take up what lies in the folder of the additions.
    pub async fn update(&self, cancel: &CancellationToken) -> Result<(), StoreError> {
        let program = Program {
            path: self.tool.clone(),
            args: self.args.iter().map(Into::into).collect(),
            env: vec![("PATH".into(), PATH.into())],
            dir: PathBuf::from("/"),
            user: None,
        };
        let finished = program.run(TOOL_LIMIT, cancel).await?;
        if finished.status.success() {
            return Ok(());
        }
        Err(StoreError::Tool {
            tool: self.tool.display().to_string(),
            ended: finished.ended(),
            output: crate::text::one_line(&finished.output.text()),
        })
    }

    /// One file each, for Debian's tool skips a file with several; named by what is in it.
    fn place_of(&self, pem: &str) -> PathBuf {
        let digest = format!("{:x}", Sha256::digest(pem));
        self.anchors.join(format!("garm-bootstrap-{}.crt", &digest[..16]))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn with_tool(root: &Path, tool: &str, script: &str) {
        let path = root.join(tool);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn the_kind_of_store_is_known_by_its_tool_and_folder() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert_eq!(SystemStore::find(root), None);
        fs::create_dir_all(root.join("usr/local/share/ca-certificates")).unwrap();
        assert_eq!(SystemStore::find(root), None, "no tool, no store");
        with_tool(root, "usr/sbin/update-ca-certificates", "#!/bin/sh\n");
        let debian = SystemStore::find(root).unwrap();
        assert!(debian.anchors.ends_with("usr/local/share/ca-certificates"));
        with_tool(root, "usr/bin/update-ca-trust", "#!/bin/sh\n");
        fs::create_dir_all(root.join("etc/pki/ca-trust/source/anchors")).unwrap();
        let red_hat = SystemStore::find(root).unwrap();
        assert!(red_hat.tool.ends_with("update-ca-trust") && red_hat.args == ["extract"]);
    }

    #[tokio::test]
    async fn each_certificate_gets_a_file_and_the_tool_runs_only_for_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let script = format!("#!/bin/sh\necho run >> {}/runs\n", root.display());
        with_tool(root, "usr/sbin/update-ca-certificates", &script);
        let store = SystemStore::find(root).unwrap();
        let (pems, cancel) = (["one".to_owned(), "two".to_owned()], CancellationToken::new());
        store.add(&pems, &cancel).await.unwrap();
        store.add(&pems, &cancel).await.unwrap();
        assert_eq!(fs::read_dir(&store.anchors).unwrap().count(), 2);
        assert_eq!(fs::read_to_string(root.join("runs")).unwrap(), "run\n");
    }

    #[tokio::test]
    async fn a_tool_that_fails_is_told_with_what_it_said() {
        let dir = tempfile::tempdir().unwrap();
        let script = "#!/bin/sh\necho read-only >&2\nexit 3\n";
        with_tool(dir.path(), "usr/sbin/update-ca-certificates", script);
        let store = SystemStore::find(dir.path()).unwrap();
        let error = store.add(&["x".to_owned()], &CancellationToken::new()).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("exit status: 3: read-only"), "{text}");
    }
}
