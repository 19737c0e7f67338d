//! Where everything is.

/// The simulation's addresses; no trailing slash anywhere.
#[derive(Clone, Debug)]
pub(crate) struct Urls {
    /// GARM's origin.
    pub(crate) garm: String,
    /// The forge's origin: registration, download.
    pub(crate) forge: String,
    /// Where the fake Listener posts its events, always plain HTTP.
    pub(crate) events: String,
}

impl Urls {
    pub(crate) fn metadata(&self) -> String {
        format!("{}/api/v1/metadata", self.garm)
    }

    pub(crate) fn callback(&self) -> String {
        format!("{}/api/v1/callbacks", self.garm)
    }

    pub(crate) fn download(&self, version: &str, filename: &str) -> String {
        format!("{}/downloads/v{version}/{filename}", self.forge)
    }
}
