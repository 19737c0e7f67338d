//! TLS under the private CA.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use garm_sim::{Endpoint, Fault, FaultKind, InstanceSpec, RunnerScript, Sim, SimOptions};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};

use crate::client::{Answer, get, read_answer};

fn ask(sim: &Sim, token: &str) -> std::io::Result<Answer> {
    let mut roots = rustls::RootCertStore::empty();
    let pem = sim.ca_pem().unwrap();
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let address = sim.base_url().replace("https://", "");
    let mut stream = rustls::StreamOwned::new(client, TcpStream::connect(address)?);
    let path = "/api/v1/metadata/system/service-name";
    let text = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n");
    stream.write_all(text.as_bytes())?;
    read_answer(&mut stream, false)
}

fn tls() -> Sim {
    Sim::start(SimOptions { tls: true, ..SimOptions::default() })
}

#[test]
fn garm_speaks_tls_under_a_ca_that_only_the_bootstrap_data_has() {
    let sim = tls();
    let one = sim.create(InstanceSpec::default());
    assert_eq!(ask(&sim, &one.token()).unwrap().text(), "actions.runner.acme.widgets");
    let bootstrap: serde_json::Value = serde_json::from_str(&one.bootstrap_json()).unwrap();
    assert_ne!(bootstrap["ca-cert-bundle"], "");
    assert!(sim.forge_url().starts_with("http://"));
}

#[test]
fn a_cut_under_tls_counts_the_plain_bytes() {
    let sim = tls();
    sim.fault(Fault::new(Endpoint::ServiceName).kind(FaultKind::CloseAfter(7)));
    let one = sim.create(InstanceSpec::default());
    let answer = ask(&sim, &one.token()).unwrap();
    assert_eq!(answer.text(), "actions");
    let end = answer.end.unwrap().unwrap_err();
    assert_eq!(end.kind(), std::io::ErrorKind::UnexpectedEof, "no close_notify");
}

#[test]
fn a_forge_under_tls_leaves_the_runners_events_plain() {
    let sim =
        Sim::start(SimOptions { forge_tls: true, forge_ca_known: true, ..SimOptions::default() });
    assert!(sim.download_url().starts_with("https://"));
    let one = sim.create(InstanceSpec::default());
    let bootstrap: serde_json::Value = serde_json::from_str(&one.bootstrap_json()).unwrap();
    assert_ne!(bootstrap["ca-cert-bundle"], "");
    let url = format!("{}/system/cert-bundle", sim.metadata_url());
    let bundle = get(&url).bearer(&one.token()).send().unwrap().json();
    assert_eq!(bundle["root_certificates"].as_object().unwrap().len(), 1);

    let home = tempfile::tempdir().unwrap();
    sim.unpack_runner(home.path()).unwrap();
    for name in [".runner", ".credentials", ".credentials_rsaparams"] {
        std::fs::write(home.path().join(name), one.jit_file(name).unwrap()).unwrap();
    }
    let script = RunnerScript::new().exit_after(Duration::ZERO);
    sim.write_script(home.path(), &script).unwrap();
    let program = home.path().join("bin/Runner.Listener");
    assert!(Command::new(program).output().unwrap().status.success());
    assert_eq!(sim.runner_events()[0].event, "online");
}

#[test]
fn plain_http_to_the_tls_port_is_told_so() {
    let sim = tls();
    let url = sim.base_url().replace("https://", "http://");
    let mut stream = get(&format!("{url}/api/v1/metadata/runner-metadata")).open().unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert_eq!(
        text,
        "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
    );
}
