use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::secret::Secret;

fn account() -> Account {
    Account {
        name: "runner".to_owned(),
        uid: 1001,
        gid: 1001,
        groups: vec![1001],
        home: Some(PathBuf::from("/srv/ci")),
        shell: PathBuf::from("/bin/bash"),
    }
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<Pair> {
    pairs.iter().map(|(k, v)| (OsString::from(k), OsString::from(v))).collect()
}

fn built(ours: &[Pair], etc: &str, path: Option<&str>, extra: &[Pair]) -> Vec<Pair> {
    environment(&Sources {
        ours,
        account: &account(),
        home: Path::new("/runner"),
        etc_environment: etc,
        path_file: path,
        defaults: &[],
        extra,
    })
}

fn value<'a>(env: &'a [Pair], name: &str) -> Option<&'a str> {
    env.iter().find(|(k, _)| k == name).and_then(|(_, v)| v.to_str())
}

#[test]
fn of_our_own_environment_only_listed_names_come_through() {
    let ours = pairs(&[
        ("LANG", "C.UTF-8"),
        ("LC_ALL", "C"),
        ("ImageOS", "ubuntu24"),
        ("https_proxy", "http://proxy:3128"),
        ("ACTIONS_RUNNER_HOOK_JOB_STARTED", "/hook"),
        ("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1"),
        ("ACTIONS_RUNNER_INPUT_TOKEN", "x"),
        ("BEARER_TOKEN", "x"),
        ("GARM_TOKEN", "x"),
        ("METADATA_URL", "http://garm"),
        ("NOTIFY_SOCKET", "/run/x"),
        ("JOURNAL_STREAM", "8:1"),
        ("RUNNER_NAME", "x"),
        ("HOME", "/root"),
        ("SOMETHING", "x"),
    ]);
    let env = built(&ours, "", None, &[]);
    let names: Vec<_> = env.iter().filter_map(|(k, _)| k.to_str()).collect();
    assert_eq!(
        names,
        [
            "ACTIONS_RUNNER_HOOK_JOB_STARTED",
            "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT",
            "HOME",
            "ImageOS",
            "LANG",
            "LC_ALL",
            "LOGNAME",
            "PATH",
            "SHELL",
            "USER",
            "https_proxy",
        ]
    );
    assert_eq!(value(&env, "HOME"), Some("/srv/ci"));
}

#[test]
fn path_and_home_are_there_even_if_we_have_none() {
    let nobody = Account { home: None, name: "uid-4711".to_owned(), ..account() };
    let env = environment(&Sources {
        ours: &[],
        account: &nobody,
        home: Path::new("/runner"),
        etc_environment: "",
        path_file: None,
        defaults: &[],
        extra: &[],
    });
    assert_eq!(value(&env, "PATH"), Some(DEFAULT_PATH));
    assert_eq!(value(&env, "HOME"), Some("/runner"));
}

#[test]
fn a_later_source_wins() {
    let ours = pairs(&[("PATH", "/ours"), ("LANG", "ours")]);
    let etc = "PATH=/etc\nLANG=etc\nJAVA_HOME=/opt/java\nHOME=/nowhere\n";
    let env = built(&ours, etc, Some("/dot/path\n"), &pairs(&[("LANG", "extra")]));
    assert_eq!(value(&env, "PATH"), Some("/dot/path"));
    assert_eq!(value(&env, "LANG"), Some("extra"));
    assert_eq!(value(&env, "JAVA_HOME"), Some("/opt/java"));
    assert_eq!(value(&env, "HOME"), Some("/srv/ci"));
    assert_eq!(value(&built(&ours, etc, Some(" \n"), &[]), "PATH"), Some("/ours"));
    assert_eq!(value(&built(&[], etc, None, &[]), "PATH"), Some("/etc"));
}

#[test]
fn etc_environment_is_read_as_pam_env_does() {
    let table = [
        ("A=b", vec![("A", "b")]),
        ("A=\"b c\"", vec![("A", "b c")]),
        ("A='b'", vec![("A", "b")]),
        ("A=\"b", vec![("A", "b")]),
        ("export A=b", vec![("A", "b")]),
        ("  A=b  # why", vec![("A", "b")]),
        ("# A=b\n\nB=$A:x", vec![("B", "$A:x")]),
        ("A=1\nA=2", vec![("A", "1"), ("A", "2")]),
        ("A=b=c", vec![("A", "b=c")]),
        ("A-B=c", vec![]),
        ("A", vec![]),
        ("=b", vec![]),
    ];
    for (text, expected) in table {
        assert_eq!(parse_etc_environment(text).collect::<Vec<_>>(), expected, "{text}");
    }
}

fn name() -> impl Strategy<Value = String> {
    let listed = ALLOWED.iter().chain(&FORBIDDEN).chain(&FORBIDDEN_PREFIXES).copied();
    let listed: Vec<&str> = listed.chain(ALLOWED_PREFIXES).collect();
    (proptest::sample::select(listed), "[A-Z_]{0,4}").prop_map(|(a, b)| format!("{a}{b}"))
}

proptest! {
    #[test]
    fn no_forbidden_name_and_no_secret_comes_through(
        ours in proptest::collection::vec((name(), "[a-z]{0,5}", any::<bool>()), 0..20),
        etc in proptest::collection::vec((name(), any::<bool>()), 0..10),
        path in any::<bool>(),
    ) {
        let secret = Secret::new("a-secret-of-the-environment");
        let value = |leaks: bool| if leaks { format!("x{}y", secret.expose()) } else { "v".to_owned() };
        let ours: Vec<Pair> = ours
            .into_iter()
            .map(|(k, v, leaks)| (k.into(), format!("{v}{}", value(leaks)).into()))
            .collect();
        let etc: Vec<_> =
            etc.into_iter().map(|(k, leaks)| format!("{k}={}", value(leaks))).collect();
        let env = built(&ours, &etc.join("\n"), Some(&value(path)), &ours);
        for (name, value) in &env {
            prop_assert!(!is_forbidden(name), "{name:?}");
            prop_assert!(!value.to_string_lossy().contains(secret.expose()), "{name:?}");
        }
        prop_assert!(env.iter().any(|(k, v)| k == "PATH" && !v.is_empty()));
    }
}

#[test]
fn a_default_gives_way_to_whatever_else_sets_the_name() {
    let ours = pairs(&[("NODE_EXTRA_CA_CERTS", "/ours")]);
    let defaults = pairs(&[("NODE_EXTRA_CA_CERTS", "/d"), ("SSL_CERT_FILE", "/d"), ("X", "d")]);
    let env = environment(&Sources {
        ours: &ours,
        account: &account(),
        home: Path::new("/runner"),
        etc_environment: "SSL_CERT_FILE=/etc/own.pem\n",
        path_file: None,
        defaults: &defaults,
        extra: &[],
    });
    assert_eq!(value(&env, "NODE_EXTRA_CA_CERTS"), Some("/ours"));
    assert_eq!(value(&env, "SSL_CERT_FILE"), Some("/etc/own.pem"));
    assert_eq!(value(&env, "X"), Some("d"));
}

#[test]
fn a_proxys_credentials_reach_the_runner_in_the_proxys_variables_alone() {
    let _password = Secret::new("proxy-password-1");
    let with = "http://u:proxy-password-1@proxy:3128";
    let ours = pairs(&[("https_proxy", with), ("TZ", "proxy-password-1")]);
    let env = built(&ours, "", None, &pairs(&[("HTTP_PROXY", with)]));
    assert_eq!(value(&env, "https_proxy"), Some(with));
    assert_eq!(value(&env, "HTTP_PROXY"), Some(with));
    assert_eq!(value(&env, "TZ"), None);
}
