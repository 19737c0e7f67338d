//! Makes the certificate authorities that we were given known to the runner and its jobs.
//!
//! Root adds them to the system's store where the distribution has a tool for that: then every program
//! knows them. Where that cannot be, a bundle of the system's authorities and ours goes into the
//! runner's home, for the variables that name one. Node reads no system store in either case.
//!
//! The variables are defaults: what an image, a unit or `/etc/environment` has set stays as it is.

use std::path::Path;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::start::Variables;
use crate::config::Config;
use crate::host::files::write_atomic;
use crate::host::store::SystemStore;
use crate::http::Trust;

/// In the runner's home. Certificates are no secrets.
const EXTRA: &str = ".garm-extra-ca.pem";
const ALL: &str = ".garm-ca.pem";
/// .NET, OpenSSL and curl; git.
const TAKE_ALL: [&str; 2] = ["SSL_CERT_FILE", "GIT_SSL_CAINFO"];
const NODE: &str = "NODE_EXTRA_CA_CERTS";

/// Whether the system's store knows them all now.
pub(super) async fn add_to_system(
    config: &Config,
    trust: &Trust,
    cancel: &CancellationToken,
) -> bool {
    let unknown: Vec<String> = trust.unknown_to_system().collect();
    if unknown.is_empty() {
        return true;
    }
    // As somebody else than root we could not, and the variables will do.
    if !config.system_ca || !nix::unistd::geteuid().is_root() {
        return false;
    }
    let Some(store) = SystemStore::find(Path::new("/")) else { return false };
    match store.add(&unknown, cancel).await {
        Ok(()) => {
            info!("the system's store knows {} more certificate authorities", unknown.len());
            true
        }
        Err(error) => {
            warn!("failed to {error}; the runner gets a bundle of its own");
            false
        }
    }
}

/// Writes the bundles that the runner needs into its home, and gives the variables that name them.
pub(super) fn variables(config: &Config, trust: &Trust, system_knows: bool) -> Variables {
    let theirs = config.environment.get("SSL_CERT_FILE");
    if trust.is_empty() {
        // Node does not look at SSL_CERT_FILE.
        return theirs.map(|file| (NODE.into(), file.into())).into_iter().collect();
    }
    let mut variables = Variables::new();
    let mut extra: String = trust.extra_pems().collect();
    if let Some(file) = theirs {
        let bytes = std::fs::read(file).unwrap_or_default();
        extra.push_str(&String::from_utf8_lossy(&bytes));
    }
    let mut write = |name: &str, pem: &str, names: &[&str]| {
        let path = config.home.join(name);
        match write_atomic(&path, pem.as_bytes(), 0o644, Some(&config.user)) {
            Ok(()) => variables.extend(names.iter().map(|name| (name.into(), path.clone().into()))),
            Err(error) => warn!("failed to {error}; the runner may not trust the forge"),
        }
    };
    write(EXTRA, &extra, &[NODE]);
    if !system_knows {
        write(ALL, &trust.to_pem(), &TAKE_ALL);
    }
    variables
}
