//! What a test can ask of a simulation and of an instance. Plain data: no behaviour lives here.

use std::time::Duration;

use crate::archive::ArchiveSpec;
use crate::wire::storm::Storm;

/// What the simulated controller and forge are like.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// What the certificates of both listeners are like, where they speak TLS.
    pub certificate: ServerCertificate,
    /// GARM's listener speaks TLS with a certificate of a private CA ([`crate::Sim::ca_pem`]).
    pub tls: bool,
    /// The forge (download host) speaks TLS with the same private CA.
    pub forge_tls: bool,
    /// GARM 0.1: `runner-metadata`, `install-script` and `tools/*` are unknown, so 401.
    pub no_runner_metadata: bool,
    /// PEM of the forge endpoint's CA: `cert-bundle` answers it, and `runner-metadata` drops the
    /// connection every time (GARM's nil-map panic).
    pub ca_bundle: Option<String>,
    /// With `forge_tls`: GARM was told the forge's CA, so it is the `ca_bundle`.
    pub forge_ca_known: bool,
    /// The forge offers no runner for any platform: `runner-metadata` is 500.
    pub tools_missing: bool,
    /// Whether the pool has an install template; without one `install-script` is 409.
    pub template: bool,
    /// Which garm-agent tools `tools/garm-agent` lists.
    pub agent_tools: AgentTools,
    /// The runner archive that the forge serves.
    pub archive: ArchiveSpec,
    /// Whether the download host honours `Range` (and says so).
    pub ranges: bool,
    /// Whether and when the forge tells GARM of jobs.
    pub webhooks: Webhooks,
    /// Random faults on every call, beside those that [`crate::Sim::fault`] asks for.
    pub storm: Option<Storm>,
    /// A fixed port for GARM's listener; 0 takes a free one.
    pub port: u16,
    /// A fixed port for the forge's listener; 0 takes a free one.
    pub forge_port: u16,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            certificate: ServerCertificate::Good,
            tls: false,
            forge_tls: false,
            no_runner_metadata: false,
            ca_bundle: None,
            forge_ca_known: false,
            tools_missing: false,
            template: true,
            agent_tools: AgentTools::None,
            archive: ArchiveSpec::default(),
            ranges: true,
            webhooks: Webhooks::AtOnce,
            storm: None,
            port: 0,
            forge_port: 0,
        }
    }
}

/// What is wrong with the certificate of a server that speaks TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerCertificate {
    /// Nothing, but that its CA is private.
    Good,
    /// It has expired in 2021.
    Expired,
    /// It becomes valid in 2090.
    NotYetValid,
    /// It is made out to `other.example`.
    WrongName,
}

/// When GARM hears of a job from the forge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Webhooks {
    /// As soon as the runner posted its event.
    AtOnce,
    /// That long after the event.
    After(Duration),
    /// Never.
    Off,
}

/// What GARM's store of garm-agent programs holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentTools {
    /// Nothing: `results` is `null`.
    None,
    /// One uploaded program, with a checksum.
    Local,
    /// Nothing of its own, but a cached release index: no checksum, another host.
    Upstream,
}

/// One instance as GARM would create it. The default is a JIT instance of a GitHub repository's
/// pool whose provider has returned.
#[derive(Clone, Debug)]
pub struct InstanceSpec {
    /// Empty: the simulation makes one up.
    pub name: String,
    /// Whether GARM made a just-in-time configuration.
    pub jit: bool,
    /// Whether it belongs to a scale set (always JIT at a real GARM).
    pub scale_set: bool,
    /// The pool's tags. GARM adds the controller's and the pool's own labels.
    pub labels: Vec<String>,
    /// The runner group; empty for none.
    pub group: String,
    /// Which forge the entity lives at.
    pub forge: ForgeType,
    /// What the runner belongs to.
    pub entity: Entity,
    /// The agent id. `None`: GARM's own for JIT (made up), none for a registration token.
    pub agent_id: Option<i64>,
    /// A token that the download host asks for.
    pub temp_download_token: Option<String>,
    /// The pool's raw extra specs, a JSON object.
    pub extra_specs: Option<serde_json::Value>,
    /// GARM's name of the system.
    pub os_type: String,
    /// GARM's name of the architecture: `amd64`, `arm64` or `arm`.
    pub arch: String,
    /// The machine's state: `creating`, `running`, …
    pub status: String,
    /// The runner's state: `pending`, `installing`, …
    pub runner_status: String,
    /// How long the instance token is good for. Zero makes one that has expired already.
    pub token_ttl: Duration,
    /// What `sha256_checksum` says.
    pub sha256: Checksum,
    /// Replaces `runner_tools.download_url`.
    pub download_url: Option<String>,
    /// Replaces `runner_registration_url`.
    pub registration_url: Option<String>,
    /// Replaces the name that GARM tells (`runner_name`), to try odd ones.
    pub runner_name: Option<String>,
    /// The proxy of the bootstrap JSON and of the unit file.
    pub proxy: Proxy,
}

impl Default for InstanceSpec {
    fn default() -> Self {
        Self {
            name: String::new(),
            jit: true,
            scale_set: false,
            labels: vec!["sim".into()],
            group: String::new(),
            forge: ForgeType::Github,
            entity: Entity::Repository("acme".into(), "widgets".into()),
            agent_id: None,
            temp_download_token: None,
            extra_specs: None,
            os_type: "linux".into(),
            arch: "amd64".into(),
            status: "running".into(),
            runner_status: "pending".into(),
            token_ttl: Duration::from_mins(25),
            sha256: Checksum::Good,
            download_url: None,
            registration_url: None,
            runner_name: None,
            proxy: Proxy::default(),
        }
    }
}

impl InstanceSpec {
    /// An instance that must register with a token.
    #[must_use]
    pub fn with_token() -> Self {
        Self { jit: false, ..Self::default() }
    }

    /// An instance of a scale set.
    #[must_use]
    pub fn of_scale_set() -> Self {
        Self { scale_set: true, group: "Default".into(), ..Self::default() }
    }
}

/// The forge's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgeType {
    /// GitHub or GitHub Enterprise Server.
    Github,
    /// Gitea or Forgejo.
    Gitea,
}

impl ForgeType {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Github => "github",
            Self::Gitea => "gitea",
        }
    }
}

/// What a runner belongs to at the forge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entity {
    /// Owner and name.
    Repository(String, String),
    /// The organisation's name.
    Organization(String),
    /// The enterprise's name.
    Enterprise(String),
}

impl Entity {
    pub(crate) fn scope(&self) -> &'static str {
        match self {
            Self::Repository(..) => "repository",
            Self::Organization(_) => "organization",
            Self::Enterprise(_) => "enterprise",
        }
    }

    pub(crate) fn label(&self) -> String {
        match self {
            Self::Repository(owner, name) => format!("{owner}/{name}"),
            Self::Organization(name) | Self::Enterprise(name) => name.clone(),
        }
    }

    pub(crate) fn url_path(&self) -> String {
        match self {
            Self::Enterprise(name) => format!("enterprises/{name}"),
            other => other.label(),
        }
    }

    pub(crate) fn service_name(&self) -> String {
        match self {
            Self::Repository(owner, name) => format!("actions.runner.{owner}.{name}"),
            Self::Organization(name) | Self::Enterprise(name) => format!("actions.runner.{name}"),
        }
    }
}

/// What GARM says of the archive's checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The true one, lower case.
    Good,
    /// One that does not belong to the archive.
    Wrong,
    /// The true one in upper case.
    UpperCase,
    /// None at all: the key is absent.
    Missing,
}

/// The proxy set on the pool; empty strings for none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxy {
    /// For plain HTTP.
    pub http: String,
    /// For HTTPS.
    pub https: String,
    /// Hosts that go without.
    pub none: String,
}
