//! What it takes to say one thing to GARM, without a boot: much less than a [`super::Config`].

use std::path::PathBuf;
use std::time::Duration;

use super::access::access_to_report;
use super::parse::duration;
use super::resolve::{place, proxy, time_of_token, trust};
use super::{Bootstrap, ConfigError, Layers, settings};
use crate::garm::Access;
use crate::http::{ProxySettings, Trust};

#[derive(Debug, Clone)]
pub struct Telling {
    pub access: Access,
    pub trust: Trust,
    pub proxy: ProxySettings,
    /// Where a runner would be; `None` where nobody can say, and then it is not needed.
    pub home: Option<PathBuf>,
    /// What a person set.
    pub deadline: Option<Duration>,
    /// How long a boot would try.
    pub time_of_boot: Duration,
}

impl Telling {
    pub fn resolve(layers: &Layers, bootstrap: Option<&Bootstrap>) -> Result<Self, ConfigError> {
        let access = access_to_report(layers, bootstrap)?;
        Ok(Self {
            trust: trust(layers, bootstrap)?,
            proxy: proxy(layers, bootstrap),
            home: place(layers).ok().map(|place| place.home),
            deadline: duration(layers, &settings::DEADLINE)?,
            time_of_boot: time_of_token(&access.claims),
            access,
        })
    }
}
