//! What it takes to put a runner into an image: no GARM, no token, no instance.

use std::path::PathBuf;
use std::time::Duration;

use url::Url;

use super::parse::duration;
use super::resolve::{DEADLINE, Place, dirs, downloads, place, proxy, sha256, trust};
use super::{Bootstrap, ConfigError, Dirs, Environment, Layers, settings};
use crate::host::users::Account;
use crate::http::{ProxySettings, Trust};

#[derive(Debug, Clone)]
pub struct Preparing {
    pub trust: Trust,
    pub proxy: ProxySettings,
    pub user: Account,
    /// The same, when it is not the user that we are ourselves.
    pub switch_to: Option<Account>,
    pub home: PathBuf,
    /// At least one.
    pub downloads: Vec<Url>,
    pub sha256: Option<String>,
    pub time: Duration,
    pub dirs: Dirs,
    pub environment: Environment,
}

impl Preparing {
    pub fn resolve(layers: &Layers, bootstrap: Option<&Bootstrap>) -> Result<Self, ConfigError> {
        let downloads = downloads(layers)?;
        if downloads.is_empty() {
            return Err(ConfigError::Missing {
                what: "runner-url",
                how: "give --runner-url, for an image is prepared without a GARM that could say where \
                      the runner is to be had",
            });
        }
        let Place { user, switch_to, home } = place(layers)?;
        Ok(Self {
            trust: trust(layers, bootstrap)?,
            proxy: proxy(layers, bootstrap),
            user,
            switch_to,
            home,
            downloads,
            sha256: sha256(layers)?,
            time: duration(layers, &settings::DEADLINE)?.unwrap_or(DEADLINE),
            dirs: dirs(layers, &Account::current()),
            environment: layers.env.clone(),
        })
    }
}
