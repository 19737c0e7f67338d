//! Private certificate authorities: from wherever they come, trusted by us and made known to the runner;
//! and clocks that are wrong.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use garm_sim::{
    ArchiveSpec, Endpoint, Fault, FaultKind, Instance, InstanceSpec, RunnerScript, Sim, SimOptions,
};

use crate::support::{Boot, Ended, one_job, own_all, read};

/// GARM (and the forge, if `forge`) under a private authority.
fn sim(forge: bool) -> Sim {
    Sim::start(SimOptions {
        tls: true,
        forge_tls: forge,
        archive: ArchiveSpec::scripted(one_job()),
        ..SimOptions::default()
    })
}

/// A boot with a file of `pem` in its folder.
fn with_file(instance: &Instance, pem: &str) -> (Boot, String) {
    let boot = Boot::of(instance);
    let path = boot.path("work/ca.pem");
    fs::write(&path, pem).unwrap();
    own_all(&path);
    (boot, path.to_str().unwrap().to_owned())
}

/// A variable of the runner's environment.
fn variable(ended: &Ended, name: &str) -> Option<String> {
    let environment = read(&ended.home().join("_sim/env-1"));
    let mut pairs = environment.split('\0').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
}

fn bundle(ended: &Ended, name: &str) -> String {
    read(Path::new(&variable(ended, name).unwrap_or_else(|| panic!("{name} is not set"))))
}

/// The lines of a certificate without the frame, for looking it up in a bundle.
fn body(pem: &str) -> &str {
    pem.lines().nth(1).unwrap()
}

#[test]
fn the_authority_of_a_ca_file_is_trusted_and_made_known_to_the_runner() {
    let sim = sim(true);
    let instance = sim.create(InstanceSpec::default());
    let ca = sim.ca_pem().unwrap();
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let (boot, file) = with_file(&instance, &format!("{broken}{ca}").replace('\n', "\r\n"));
    let ended = boot.env("GARM_CA_FILE", &file).run();
    assert_eq!(ended.code, 0, "{}", ended.output());
    assert!(ended.stderr.contains("certificate 1 of"), "{}", ended.stderr);
    assert!(bundle(&ended, "NODE_EXTRA_CA_CERTS").contains(body(&ca)));
    for name in ["SSL_CERT_FILE", "GIT_SSL_CAINFO"] {
        let all = bundle(&ended, name);
        assert!(all.contains(body(&ca)) && all.matches("BEGIN").count() > 50, "{name}");
    }
}

#[test]
fn the_authority_of_the_bootstrap_file_is_trusted() {
    let sim = sim(false);
    let instance = sim.create(InstanceSpec::default());
    let (boot, file) = with_file(&instance, &instance.bootstrap_json());
    let boot = boot.without("METADATA_URL").without("CALLBACK_URL").without("BEARER_TOKEN");
    let ended = boot.env("GARM_BOOTSTRAP_FILE", &file).run();
    assert_eq!(ended.code, 0, "{}", ended.output());
    assert!(bundle(&ended, "NODE_EXTRA_CA_CERTS").contains(body(&sim.ca_pem().unwrap())));
}

#[test]
fn what_the_user_has_set_for_certificates_is_trusted_and_left_alone() {
    let sim = sim(true);
    let instance = sim.create(InstanceSpec::default());
    let (boot, file) = with_file(&instance, &sim.ca_pem().unwrap());
    let ended = boot.env("SSL_CERT_FILE", &file).run();
    assert_eq!(ended.code, 0, "{}", ended.output());
    assert_eq!(variable(&ended, "SSL_CERT_FILE").as_ref(), Some(&file));
    assert_eq!(variable(&ended, "NODE_EXTRA_CA_CERTS").as_ref(), Some(&file));
    assert_eq!(variable(&ended, "GIT_SSL_CAINFO"), None);
}

#[test]
fn a_folder_of_certificates_is_trusted() {
    let sim = sim(true);
    let instance = sim.create(InstanceSpec::default());
    let boot = Boot::of(&instance);
    let folder = boot.path("certificates");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("0a1b2c3d.0"), sim.ca_pem().unwrap()).unwrap();
    let folder = format!("/does/not/exist:{}", folder.display());
    let ended = boot.env("SSL_CERT_DIR", &folder).run();
    assert_eq!(ended.code, 0, "{}", ended.output());
    assert_eq!(variable(&ended, "SSL_CERT_DIR"), Some(folder));
}

#[test]
fn the_forges_own_authority_comes_from_garm() {
    let sim = Sim::start(SimOptions {
        forge_tls: true,
        forge_ca_known: true,
        archive: ArchiveSpec::scripted(one_job()),
        ..SimOptions::default()
    });
    // With a CA bundle GARM drops runner-metadata, so the download is named here.
    let instance = sim.create(InstanceSpec::default());
    let ended = Boot::of(&instance).env("GARM_RUNNER_DOWNLOAD_URL", &sim.download_url()).run();
    assert_eq!(ended.code, 0, "{}", ended.output());
    assert!(bundle(&ended, "SSL_CERT_FILE").contains(body(&sim.ca_pem().unwrap())));
}

#[test]
fn a_garm_under_an_unknown_authority_is_told_at_once_and_verification_stays_on() {
    let sim = sim(false);
    let ended = Boot::of(&sim.create(InstanceSpec::default())).run();
    assert_eq!(ended.code, 10, "{}", ended.output());
    assert!(
        ended.stderr.contains("signed by an authority that is not known here"),
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.contains("--ca-file"), "{}", ended.stderr);
    assert!(sim.calls().is_empty());
}

#[test]
fn root_makes_the_authority_known_to_the_whole_system() {
    let sim = sim(false);
    let instance = sim.create(InstanceSpec::default());
    let ca = sim.ca_pem().unwrap();
    let (boot, file) = with_file(&instance, &ca);
    // The store of the machine that runs the tests is left alone; what becomes of the copy is kept.
    let store = boot.path("work/store.pem");
    let script = format!(
        "mount -t tmpfs none /usr/local/share/ca-certificates
        cp -a /etc/ssl/certs /tmp/garm-it-certs.$$
        mount -t tmpfs none /etc/ssl/certs
        cp -a /tmp/garm-it-certs.$$/. /etc/ssl/certs/
        rm -r /tmp/garm-it-certs.$$
        \"$@\"
        cp /etc/ssl/certs/ca-certificates.crt {}",
        store.display()
    );
    let ended =
        boot.in_namespace(&script).env("GARM_CA_FILE", &file).env("GARM_SYSTEM_CA", "true").run();
    assert_eq!(ended.code, 0, "{}", ended.output());
    assert!(ended.stderr.contains("the system's store knows 1 more"), "{}", ended.stderr);
    assert!(read(&ended.dir.path().join("work/store.pem")).contains(body(&ca)));
    assert_eq!(variable(&ended, "SSL_CERT_FILE"), None);
    assert!(bundle(&ended, "NODE_EXTRA_CA_CERTS").contains(body(&ca)));
}

#[test]
fn a_clock_that_is_off_is_warned_of_and_named_when_credentials_are_refused() {
    let script = RunnerScript::new()
        .config_exit(1)
        .config_stderr("Http response code: Unauthorized from 'POST https://x'\n");
    let sim =
        Sim::start(SimOptions { archive: ArchiveSpec::scripted(script), ..SimOptions::default() });
    let later = SystemTime::now() + Duration::from_secs(10 * 60 + 20);
    let dated = FaultKind::Status {
        code: 200,
        body: String::new(),
        headers: vec![("date".to_owned(), httpdate::fmt_http_date(later))],
    };
    sim.fault(Fault::new(Endpoint::Status).once().kind(dated));
    let instance = sim.create(InstanceSpec::with_token());
    let ended = Boot::of(&instance).run();
    assert_eq!(ended.code, 22, "{}", ended.output());
    let said = "the clock here is 10 minutes behind GARM's";
    assert!(ended.stderr.contains(&format!("{said}: tokens")), "{}", ended.stderr);
    let failed = instance.messages().into_iter().map(|message| message.message);
    let failed: Vec<String> = failed.filter(|text| text.contains("configure_failed")).collect();
    assert!(failed.len() == 1 && failed[0].contains(said), "{failed:?}");
}
