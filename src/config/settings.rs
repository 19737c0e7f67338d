//! The one list of settings.
//!
//! Flags, environment names, keys of the config file, the help text and the README's table are all made
//! from, or tested against, [`ALL`]. Must not: hold values.

/// How a setting is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `--flag VALUE`.
    Value,
    /// `--flag VALUE`, more than once; in the environment separated by commas or white space.
    List,
    /// `--flag A,B`; a list of texts in the config file, too.
    Commas,
    /// `--flag` or `--flag=false`.
    Switch,
    /// Environment only: a secret must not stand in an argument list.
    Secret,
}

/// One thing that a person can set.
#[derive(Debug)]
pub struct Setting {
    /// The flag without its dashes, and the key in the config file.
    pub name: &'static str,
    pub kind: Kind,
    /// Environment names, the strongest first.
    pub env: &'static [&'static str],
    /// What a value looks like.
    pub value: &'static str,
    /// As people read it.
    pub default: &'static str,
    pub help: &'static str,
    pub section: &'static str,
}

macro_rules! settings {
    ($($section:literal { $($id:ident $kind:ident $name:literal $value:literal
        [$($env:literal)*] $default:literal $help:literal)* })*) => {
        $($(
            pub const $id: Setting = Setting {
                name: $name, kind: Kind::$kind, env: &[$($env),*], value: $value,
                default: $default, help: $help, section: $section,
            };
        )*)*
        /// Every setting, in the order of the help text.
        pub const ALL: &[&Setting] = &[$($(&$id),*),*];
    };
}

settings! {
    "GARM" {
        METADATA_URL Value "metadata-url" "URL" ["GARM_METADATA_URL" "METADATA_URL"]
            "required, or from the bootstrap file" "GARM's metadata URL"
        CALLBACK_URL Value "callback-url" "URL" ["GARM_CALLBACK_URL" "CALLBACK_URL"]
            "required, or from the bootstrap file" "GARM's callback URL, with or without /status"
        TOKEN_FILE Value "token-file" "PATH" ["GARM_TOKEN_FILE"]
            "the systemd credential garm-token" "File that holds the instance token"
        TOKEN Secret "token" "TOKEN" ["GARM_TOKEN" "BEARER_TOKEN"]
            "required, or from a file" "The instance token itself; there is no flag for it"
        BOOTSTRAP_FILE Value "bootstrap-file" "PATH" ["GARM_BOOTSTRAP_FILE"]
            "none" "The JSON that GARM gives a provider, as it is; - reads it from stdin"
        CONFIG Value "config" "PATH" ["GARM_CONFIG"]
            "/etc/garm-bootstrap/config.toml" "Config file (TOML); its keys are the flags' names"
        CA_FILE Value "ca-file" "PATH" ["GARM_CA_FILE"]
            "bootstrap file, cert-bundle" "PEM bundle of certificate authorities to trust as well"
        SYSTEM_CA Switch "system-ca" "BOOL" ["GARM_SYSTEM_CA"]
            "true" "As root, make those authorities known to the whole system, for the jobs"
        HTTP_PROXY Value "http-proxy" "URL" ["http_proxy" "HTTP_PROXY"]
            "bootstrap file" "Proxy for http:// addresses"
        HTTPS_PROXY Value "https-proxy" "URL" ["https_proxy" "HTTPS_PROXY"]
            "bootstrap file" "Proxy for https:// addresses"
        NO_PROXY Value "no-proxy" "HOSTS" ["no_proxy" "NO_PROXY"]
            "bootstrap file" "Hosts, domains and networks to reach without a proxy"
    }
    "Runner" {
        HOME Value "home" "PATH" ["GARM_RUNNER_HOME" "RUNNER_HOME"]
            "~user/actions-runner" "The runner's home"
        ASSETS Value "assets" "PATH" ["GARM_RUNNER_ASSETS" "RUNNER_ASSETS_DIR"]
            "none" "Folder of the image that holds an unpacked runner"
        USER Value "user" "NAME" ["GARM_RUNNER_USER"]
            "runner when root and it exists, else the current one"
            "Who the runner runs as; root is allowed"
        RUNNER_URL List "runner-url" "URL" ["GARM_RUNNER_DOWNLOAD_URL"]
            "from metadata" "Where to download the runner"
        RUNNER_SHA256 Value "runner-sha256" "HEX" ["GARM_RUNNER_SHA256"]
            "from metadata" "SHA-256 of the download"
        COMMAND Value "command" "COMMAND" ["GARM_RUNNER_COMMAND"]
            "bin/Runner.Listener run" "Start command in the home, words separated by spaces"
        WAIT_FOR_DOCKER Value "wait-for-docker" "DURATION"
            ["GARM_WAIT_FOR_DOCKER" "RUNNER_WAIT_FOR_DOCKER_IN_SECONDS"]
            "not waited for" "Longest wait for a Docker that answers, before the runner is started"
        UPDATE_CA_CERTS Switch "update-ca-certs" "BOOL"
            ["GARM_UPDATE_CA_CERTS" "RUNNER_UPDATE_CA_CERTS"]
            "false" "Run update-ca-certificates before the runner is started"
    }
    "Registration" {
        URL Value "url" "URL" ["GARM_RUNNER_URL"]
            "from metadata" "Repository, organization or enterprise to register at"
        GITHUB_URL Value "github-url" "URL" ["GARM_GITHUB_URL" "GITHUB_URL"]
            "none" "The forge; with --org, --repo or --enterprise it makes the URL to register at"
        ORG Value "org" "NAME" ["GARM_RUNNER_ORG" "RUNNER_ORG"]
            "none" "Organization, or owner of the repository"
        REPO Value "repo" "NAME" ["GARM_RUNNER_REPO" "RUNNER_REPO"]
            "none" "Repository"
        ENTERPRISE Value "enterprise" "NAME" ["GARM_RUNNER_ENTERPRISE" "RUNNER_ENTERPRISE"]
            "none" "Enterprise"
        NAME Value "name" "NAME" ["GARM_RUNNER_NAME" "RUNNER_NAME"]
            "from metadata" "The runner's name; GARM knows it by this name"
        LABELS Commas "labels" "A,B" ["GARM_RUNNER_LABELS" "RUNNER_LABELS"]
            "from metadata" "Labels, separated by commas"
        GROUP Value "group" "NAME" ["GARM_RUNNER_GROUP" "RUNNER_GROUP"]
            "from metadata" "Runner group; \"default\" means none"
        WORK Value "work" "PATH" ["GARM_RUNNER_WORKDIR" "RUNNER_WORKDIR"]
            "_work in the home" "Work folder of the jobs"
        JIT Switch "jit" "BOOL" ["GARM_JIT" "JIT_CONFIG_ENABLED"]
            "what metadata says (it wins over JIT_CONFIG_ENABLED)" "Use GARM's JIT files instead of config.sh"
        EPHEMERAL Switch "ephemeral" "BOOL" ["GARM_RUNNER_EPHEMERAL" "RUNNER_EPHEMERAL"]
            "true" "Register for one job only (without JIT)"
        NO_DEFAULT_LABELS Switch "no-default-labels" "BOOL"
            ["GARM_RUNNER_NO_DEFAULT_LABELS" "RUNNER_NO_DEFAULT_LABELS"]
            "true" "Register without the forge's default labels (without JIT)"
        REPLACE Switch "replace" "BOOL" ["GARM_RUNNER_REPLACE"]
            "false" "Take the place of a runner of the same name at once (without JIT)"
        DISABLE_UPDATE Switch "disable-update" "BOOL"
            ["GARM_DISABLE_RUNNER_UPDATE" "DISABLE_RUNNER_UPDATE"]
            "false" "Register with updates of the runner disabled (without JIT)"
    }
    "Times" {
        DEADLINE Value "deadline" "DURATION" ["GARM_DEADLINE"]
            "end of the token's life less 30s, else 20m" "Longest time from start to idle"
        READY_TIMEOUT Value "ready-timeout" "DURATION" ["GARM_READY_TIMEOUT"]
            "2m" "Longest time from the runner's start to its \"Listening\""
        DRAIN_TIMEOUT Value "drain-timeout" "DURATION" ["GARM_DRAIN_TIMEOUT"]
            "none" "Longest wait for a running job after the first SIGTERM"
        STOP_GRACE Value "stop-grace" "DURATION" ["GARM_STOP_GRACE"]
            "30s" "Time between SIGINT, SIGTERM and SIGKILL when the runner is stopped"
        IDLE_LIMIT Value "idle-limit" "DURATION" ["GARM_IDLE_LIMIT"]
            "none" "Longest time that an idle runner waits for a job"
        JOB_LIMIT Value "job-limit" "DURATION" ["GARM_JOB_LIMIT"]
            "none" "Longest time that a job may take; it is stopped then"
        LIFETIME Value "lifetime" "DURATION" ["GARM_LIFETIME"]
            "none" "Longest life of the runner; then it is drained, and a running job is finished"
        ORPHAN_LIMIT Value "orphan-limit" "DURATION" ["GARM_ORPHAN_LIMIT"]
            "none" "Longest time that an idle runner stays which GARM or the forge has forgotten"
    }
    "End" {
        ON_EXIT Value "on-exit" "ACTION" ["GARM_ON_EXIT"]
            "none" "At the very end: none, poweroff, reboot, or a command that begins with /"
        ON_EXIT_WHEN Value "on-exit-when" "WHEN" ["GARM_ON_EXIT_WHEN"]
            "always" "always, success (exit code 0) or failure (any other)"
    }
    "Host" {
        STATE_DIR Value "state-dir" "PATH" ["GARM_STATE_DIR"]
            "/var/lib/garm-bootstrap (root), ~/.local/state/garm-bootstrap"
            "Folder for the lock, the used marker and timeline.json"
        RUNTIME_DIR Value "runtime-dir" "PATH" ["GARM_RUNTIME_DIR"]
            "/run/garm-bootstrap (root), $XDG_RUNTIME_DIR/garm-bootstrap"
            "Private folder for what must not outlive this boot"
        LOG_LEVEL Value "log-level" "LEVEL" ["GARM_LOG_LEVEL"]
            "info" "error, warn, info, debug or trace"
        LOG_FORMAT Value "log-format" "FORMAT" ["GARM_LOG_FORMAT"]
            "auto" "auto, text, journal or json"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_every_setting_has_a_name_of_its_own_in_the_environment() {
        let mut names: Vec<&str> = ALL.iter().map(|s| s.name).collect();
        names.extend(ALL.iter().flat_map(|s| s.env));
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        let proxies = ["http-proxy", "https-proxy", "no-proxy"];
        for setting in ALL.iter().filter(|s| !proxies.contains(&s.name)) {
            assert!(setting.env[0].starts_with("GARM_"), "{}", setting.name);
        }
    }
}
