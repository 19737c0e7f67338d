//! What the program runs on: every setting, typed and checked.
//!
//! Owns: the list of settings, the layers they come from, and the one step from text to types
//! ([`Config::resolve`]). After it nobody sees a text from the environment, a flag or a file again.
//! Must not: talk to anybody; what only GARM knows is filled in by the boot.

mod access;
mod bootstrap;
mod given;
mod layers;
mod parse;
mod preparing;
mod resolve;
pub mod settings;
mod telling;

use std::path::PathBuf;
use std::time::Duration;

pub use access::{PlaceOfToken, access, access_to_report, place_of_token};
pub use bootstrap::Bootstrap;
pub use layers::{Environment, Flags, Found, Layers, Origin};
pub use parse::{LogFormat, LogSettings};
pub use preparing::Preparing;
pub use resolve::{bootstrap, dirs, on_exit, proxy, trust};
pub use telling::Telling;
use url::Url;

use crate::garm::Access;
use crate::host::users::{Account, UsersError};
use crate::http::{ProxySettings, Trust};

/// Everything that one boot needs to know and that a person or an image has said.
#[derive(Debug, Clone)]
pub struct Config {
    pub access: Access,
    pub trust: Trust,
    /// Whether the system's store may be added to.
    pub system_ca: bool,
    pub proxy: ProxySettings,
    /// Who the runner runs as.
    pub user: Account,
    /// The same, when it is not the user that we are ourselves.
    pub switch_to: Option<Account>,
    pub home: PathBuf,
    pub assets: Option<PathBuf>,
    pub downloads: Vec<Url>,
    pub sha256: Option<String>,
    pub command: Option<Vec<String>>,
    /// How long a Docker is waited for before the runner is started; `None`: it is not.
    pub wait_for_docker: Option<Duration>,
    pub update_ca_certs: bool,
    pub registration: Wishes,
    pub jit: Jit,
    pub bootstrap: Option<Bootstrap>,
    pub times: Times,
    pub on_exit: OnExit,
    pub dirs: Dirs,
    pub environment: Environment,
}

/// What the runner is to be at the forge, as far as a person or an image has said it.
#[derive(Debug, Clone, Default)]
pub struct Wishes {
    pub url: Option<Url>,
    pub name: Option<String>,
    pub labels: Option<Vec<String>>,
    pub group: Option<String>,
    pub work: Option<PathBuf>,
    pub ephemeral: bool,
    pub no_default_labels: bool,
    pub disable_update: bool,
    pub replace: bool,
}

/// JIT or not, before GARM has been asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Jit {
    /// A person said so; that holds.
    Wanted(bool),
    /// An image or the bootstrap file said so when the instance was made; what GARM says now is better.
    Guessed(bool),
    Unknown,
}

#[derive(Debug, Clone)]
pub struct Times {
    /// From the start of the boot to `idle`.
    pub deadline: Duration,
    pub ready_timeout: Duration,
    /// `None`: as long as the platform lets us.
    pub drain_timeout: Option<Duration>,
    pub stop_grace: Duration,
    /// From the first "Listening" to a job; then the runner is drained.
    pub idle_limit: Option<Duration>,
    /// From a job's first line; then it is stopped.
    pub job_limit: Option<Duration>,
    /// From the runner's first start; then it is drained.
    pub lifetime: Option<Duration>,
    /// How long GARM or the forge may have forgotten an idle runner; then it is drained.
    pub orphan_limit: Option<Duration>,
}

/// What becomes of the instance when we have ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnExit {
    pub action: Action,
    pub when: When,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    None,
    Poweroff,
    Reboot,
    /// A program, by its absolute path, and its arguments.
    Command(Vec<String>),
}

/// After which ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    Always,
    /// Exit code 0.
    Success,
    /// Any other.
    Failure,
}

/// Our own folders, the one to take first; the others only where nobody named one.
#[derive(Debug, Clone)]
pub struct Dirs {
    pub state: Vec<PathBuf>,
    pub runtime: Vec<PathBuf>,
}

/// What is wrong with the settings. Every text reads after "failed to" and names the setting.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("find the setting {what}: {how}")]
    Missing { what: &'static str, how: &'static str },
    #[error("read {origin}: \"{value}\" is not {expected}")]
    BadValue { origin: Origin, value: String, expected: &'static str },
    #[error("read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("read the token from {place}: {why}")]
    Token { place: String, why: String },
    #[error("read the config file {}: {why}", path.display())]
    File { path: PathBuf, why: String },
    #[error("read the bootstrap file {}: it is not GARM's JSON ({why})", path.display())]
    Bootstrap { path: PathBuf, why: String },
    #[error("read the CA file {}: there is no usable certificate in it (PEM is expected)", path.display())]
    NoCertificate { path: PathBuf },
    #[error(
        "{source}; make the user in the image, or name another one with --user (root is allowed)"
    )]
    User { source: UsersError },
    #[error("run as the user \"{wanted}\": only root can change users, and this is \"{current}\"")]
    NotRoot { wanted: String, current: String },
    #[error("find a home for the runner: the user \"{user}\" has none; name one with --home")]
    NoHome { user: String },
}
