//! The names of everything that can be called, for faults and for reading records.

/// What a call was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `GET metadata/runner-metadata`
    RunnerMetadata,
    /// `GET metadata/runner-registration-token`
    RegistrationToken,
    /// `GET metadata/credentials/*`, any file. As a fault's endpoint it covers the three below.
    Credentials,
    /// `GET metadata/credentials/runner`
    CredentialsRunner,
    /// `GET metadata/credentials/credentials`
    CredentialsCredentials,
    /// `GET metadata/credentials/credentials_rsaparams`
    CredentialsRsaparams,
    /// `GET metadata/system/service-name`
    ServiceName,
    /// `GET metadata/systemd/unit-file`
    UnitFile,
    /// `GET metadata/system/cert-bundle`
    CertBundle,
    /// `GET metadata/install-script`
    InstallScript,
    /// `GET metadata/tools/garm-agent`
    AgentTools,
    /// `GET metadata/tools/garm-agent/{id}`
    AgentTool,
    /// `GET metadata/tools/garm-agent/{id}/download`
    AgentToolDownload,
    /// `POST callbacks/status`
    Status,
    /// `POST callbacks/system-info`
    SystemInfo,
    /// `GET /agent`, the websocket (not simulated yet: 401).
    Agent,
    /// Any path that GARM does not know.
    Unknown,
    /// The runner archive at the forge's download host.
    Download,
    /// What a runner tells the forge: register, remove, online, job started, job completed.
    Forge,
    /// For faults: every call to GARM.
    AnyGarm,
    /// For faults: every call but those of [`Endpoint::Forge`].
    Any,
}

impl Endpoint {
    /// Whether a fault for `self` concerns a call for `actual`.
    pub(crate) fn covers(self, actual: Self) -> bool {
        match self {
            Self::Any => actual != Self::Forge,
            Self::AnyGarm => !matches!(actual, Self::Forge | Self::Download),
            Self::Credentials => matches!(
                actual,
                Self::Credentials
                    | Self::CredentialsRunner
                    | Self::CredentialsCredentials
                    | Self::CredentialsRsaparams
            ),
            one => one == actual,
        }
    }
}
