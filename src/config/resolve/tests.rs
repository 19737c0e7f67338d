use std::ffi::OsString;

use super::super::{Environment, Flags};
use super::*;

const TOKEN: &str = "e30.e30.instance-token-of-this-test";

fn layers(flags: &[(&'static str, &str)], env: &[(&str, &str)]) -> Layers {
    let flags: Flags = flags.iter().map(|(k, v)| (*k, vec![(*v).to_owned()])).collect();
    let garm = [
        ("METADATA_URL", "http://g/api/v1/metadata"),
        ("CALLBACK_URL", "http://g/api/v1/callbacks/status"),
        ("BEARER_TOKEN", TOKEN),
    ];
    let env: Environment =
        garm.iter().chain(env).map(|(k, v)| (OsString::from(k), OsString::from(v))).collect();
    Layers::new(flags, env)
}

fn resolve(flags: &[(&'static str, &str)], env: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let me = Account::current().name;
    let mut flags = flags.to_vec();
    if flags.iter().all(|(name, _)| *name != "user") {
        flags.push(("user", &me));
    }
    let layers = layers(&flags, env);
    Config::resolve(&layers, bootstrap(&layers)?)
}

fn refused(flags: &[(&'static str, &str)], env: &[(&str, &str)]) -> String {
    resolve(flags, env).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn the_names_of_todays_images_are_enough() {
    let config = resolve(&[], &[("RUNNER_HOME", "/r")]).unwrap();
    assert_eq!(config.access.callback.as_str(), "http://g/api/v1/callbacks");
    assert_eq!(config.access.token.expose(), TOKEN);
    assert_eq!(config.home, Path::new("/r"));
    assert_eq!(config.jit, Jit::Unknown);
    assert_eq!(config.times.deadline, DEADLINE);
    assert!(config.registration.ephemeral && config.registration.no_default_labels);
}

#[test]
fn the_registration_url_is_joined_from_what_is_set() {
    type Pairs<'a> = &'a [(&'a str, &'a str)];
    let url = |env: &[(&str, &str)]| {
        let mut env = env.to_vec();
        env.push(("GITHUB_URL", "https://forge.example/"));
        resolve(&[("home", "/r")], &env).unwrap().registration.url.map(String::from)
    };
    let table: [(Pairs<'_>, Option<&str>); 5] = [
        (&[("RUNNER_ORG", "o"), ("RUNNER_REPO", "r")], Some("https://forge.example/o/r")),
        (&[("RUNNER_ORG", "o"), ("RUNNER_REPO", "")], Some("https://forge.example/o")),
        (&[("RUNNER_REPO", "o/r")], Some("https://forge.example/o/r")),
        (&[("RUNNER_ENTERPRISE", "e")], Some("https://forge.example/enterprises/e")),
        (&[], None),
    ];
    for (env, expected) in table {
        assert_eq!(url(env).as_deref(), expected, "{env:?}");
    }
}

#[test]
fn a_pod_of_garm_provider_k8s_is_recognised() {
    let env = [
        ("RUNNER_TOKEN", "dummy"),
        ("JIT_CONFIG_ENABLED", "true"),
        ("RUNNER_EPHEMERAL", "true"),
        ("RUNNER_GROUP", "default"),
        ("RUNNER_WORKDIR", "/runner/_work/"),
    ];
    let config = resolve(&[], &env).unwrap();
    assert_eq!(
        (config.home.as_path(), config.assets.as_deref()),
        (Path::new(K8S_HOME), Some(Path::new(K8S_ASSETS)))
    );
    assert_eq!(config.jit, Jit::Guessed(true), "an image's variable is a guess");
}

#[test]
fn a_persons_word_on_jit_is_no_guess() {
    assert_eq!(resolve(&[("home", "/r"), ("jit", "false")], &[]).unwrap().jit, Jit::Wanted(false));
    assert_eq!(resolve(&[("home", "/r")], &[("GARM_JIT", "1")]).unwrap().jit, Jit::Wanted(true));
}

#[test]
fn bad_input_is_named_with_where_it_stood() {
    assert_eq!(
        refused(&[("home", "/r"), ("deadline", "5 parsecs")], &[]),
        "read --deadline: \"5 parsecs\" is not a duration such as 90s, 5m or 2h"
    );
    assert_eq!(
        refused(&[("home", "/r"), ("metadata-url", "garm.example")], &[]),
        "read --metadata-url: \"garm.example\" is not an http:// or https:// address"
    );
    assert_eq!(
        refused(&[("home", "/r")], &[("GARM_RUNNER_SHA256", "beef")]),
        "read $GARM_RUNNER_SHA256: \"beef\" is not 64 hexadecimal digits"
    );
    let error = refused(&[("home", "/r"), ("token-file", "/nonexistent/token")], &[]);
    assert!(
        error.starts_with("read the token from the file /nonexistent/token: No such file"),
        "{error}"
    );
    let error = refused(&[("home", "/r"), ("user", "nobody-here")], &[]);
    assert!(error.contains("\"nobody-here\"") && error.contains("--user"), "{error}");
}

#[test]
fn what_is_missing_is_named_with_how_to_give_it() {
    let none = Layers::new(Flags::new(), Environment::default());
    let error = access(&none, None).unwrap_err().to_string();
    assert_eq!(error, "find the setting metadata-url: give --metadata-url or METADATA_URL");
}

#[test]
fn a_systemd_credential_beats_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("garm-token"), "e30.e30.token-from-the-credential\n").unwrap();
    let dir = dir.path().to_string_lossy().into_owned();
    let config = resolve(&[("home", "/r")], &[("CREDENTIALS_DIRECTORY", &dir)]).unwrap();
    assert_eq!(config.access.token.expose(), "e30.e30.token-from-the-credential");
}

#[test]
fn a_token_that_seems_expired_has_the_usual_time_for_the_clock_may_be_wrong() {
    let claims = |exp| Claims { exp: Some(exp), ..Claims::default() };
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    assert_eq!(time_of_token(&claims(now - 7200)), DEADLINE);
    assert_eq!(time_of_token(&claims(now + 40)), SHORTEST_DEADLINE);
    let left = time_of_token(&claims(now + 1500));
    assert!((1465..=1470).contains(&left.as_secs()), "{left:?}");
}
