//! Waiting for Docker, which often comes up beside the runner.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use garm_sim::InstanceSpec;
use nix::sys::signal::Signal;

use crate::support::after::{Scene, assert_failed_once, assert_nothing_left, posted, wait};
use crate::support::{Boot, LONG, good};

/// A Docker that answers every call with `status`, from now on and for as long as the test lasts.
fn docker(socket: &Path, status: &'static str) {
    let listener = listen(socket);
    std::thread::spawn(move || {
        listener.incoming().map_while(Result::ok).for_each(|call| answer(call, status));
    });
}

fn answer(mut call: impl Read + Write, status: &str) {
    let _ = call.read(&mut [0; 512]);
    let _ = write!(call, "HTTP/1.0 {status}\r\nContent-Length: 2\r\n\r\nOK");
}

fn listen(socket: &Path) -> UnixListener {
    let listener = UnixListener::bind(socket).unwrap();
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o777)).unwrap();
    listener
}

fn boot(instance: &garm_sim::Instance, wait: &str) -> (Boot, std::path::PathBuf) {
    let boot = Boot::of(instance);
    let socket = boot.path("docker.sock");
    let host = format!("unix://{}", socket.display());
    let boot = boot.env("DOCKER_HOST", &host).env("RUNNER_WAIT_FOR_DOCKER_IN_SECONDS", wait);
    (boot, socket)
}

#[test]
fn a_docker_that_is_late_is_waited_for() {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let (boot, socket) = boot(&instance, "30");
    let running = boot.spawn();
    wait(&running, &sim, "it waits for Docker", || {
        instance.messages().iter().any(|row| row.message.contains("waiting for Docker at unix://"))
    });
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(posted(&sim, "idle"), 0);
    docker(&socket, "200 OK");
    let ended = running.wait(LONG);
    assert_eq!((ended.code, posted(&sim, "idle")), (0, 1), "{}", Scene(&sim, &ended));
}

#[test]
fn a_docker_that_is_there_is_not_waited_for() {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let (boot, socket) = boot(&instance, "30");
    docker(&socket, "200 OK");
    let ended = boot.run();
    assert_eq!(ended.code, 0, "{}", Scene(&sim, &ended));
    let waited = instance.messages().iter().any(|row| row.message.contains("waiting for Docker"));
    assert!(!waited, "{}", Scene(&sim, &ended));
}

#[test]
fn a_docker_that_never_comes_or_refuses_ends_the_boot_in_time() {
    for answers in [None, Some("503 Service Unavailable")] {
        let sim = good();
        let instance = sim.create(InstanceSpec::default());
        let (boot, socket) = boot(&instance, "2");
        if let Some(status) = answers {
            docker(&socket, status);
        }
        let began = Instant::now();
        let ended = boot.run();
        let scene = Scene(&sim, &ended);
        assert_eq!(ended.code, 21, "{scene}");
        assert!(began.elapsed() < Duration::from_secs(8), "{scene}");
        let told = assert_failed_once(&sim, &ended, "dependencies_missing", "dependencies");
        let says = if answers.is_some() { "503" } else { "No such file" };
        assert!(told.contains("a Docker at unix://") && told.contains(says), "{told}");
        assert_nothing_left(&sim, &ended);
    }
}

#[test]
fn a_docker_that_is_no_more_or_only_listens_ends_the_boot_in_time() {
    let cases: [(fn(UnixListener) -> Option<UnixListener>, &str); 2] =
        [(|_| None, "refused"), (Some, "it does not answer")];
    for (keep, says) in cases {
        let sim = good();
        let instance = sim.create(InstanceSpec::default());
        let (boot, socket) = boot(&instance, "2");
        let _listener = keep(listen(&socket));
        let began = Instant::now();
        let ended = boot.run();
        assert_eq!(ended.code, 21, "{}", Scene(&sim, &ended));
        assert!(began.elapsed() < Duration::from_secs(4), "{}", Scene(&sim, &ended));
        let told = assert_failed_once(&sim, &ended, "dependencies_missing", "dependencies");
        assert!(told.contains(says), "{told}");
    }
}

#[test]
fn a_docker_in_another_container_is_asked_over_tcp() {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = format!("tcp://{}", listener.local_addr().unwrap());
    let asked = std::thread::spawn(move || {
        let (call, _) = listener.accept().unwrap();
        answer(call, "200 OK");
    });
    let (boot, _) = boot(&instance, "30");
    let ended = boot.env("DOCKER_HOST", &host).run();
    assert_eq!(ended.code, 0, "{}", Scene(&sim, &ended));
    asked.join().unwrap();
    assert!(ended.stderr.contains("Docker answers"), "{}", Scene(&sim, &ended));
}

#[test]
fn a_signal_ends_the_wait_for_docker() {
    // Whether there is no Docker, or one that says nothing.
    for listens in [false, true] {
        let sim = good();
        let instance = sim.create(InstanceSpec::default());
        let (boot, socket) = boot(&instance, "600");
        let (listener, mut calls) = (listens.then(|| listen(&socket)), Vec::new());
        let running = boot.spawn();
        match &listener {
            Some(listener) => calls.push(listener.accept().unwrap()),
            None => wait(&running, &sim, "it waits for Docker", || {
                let told = |message: &str| message.contains("waiting for Docker at unix://");
                instance.messages().iter().any(|row| told(&row.message))
            }),
        }
        let asked = Instant::now();
        running.signal(Signal::SIGTERM);
        let ended = running.wait(Duration::from_secs(10));
        assert_eq!(ended.code, 40, "{}", Scene(&sim, &ended));
        assert!(asked.elapsed() < Duration::from_secs(2), "{}", Scene(&sim, &ended));
        assert_failed_once(&sim, &ended, "stopped", "dependencies");
    }
}

#[test]
fn the_certificate_store_is_made_anew_where_root_asks_for_it() {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    // The tool is replaced in a namespace of its own, so that the machine's store stays as it is.
    let fake = "printf '#!/bin/sh\\necho ran >>%s\\n' \"$(dirname \"$1\")/ca-tool\" >/tmp/garm-it-tool.$$; \
                chmod 755 /tmp/garm-it-tool.$$; \
                mount --bind /tmp/garm-it-tool.$$ /usr/sbin/update-ca-certificates; \
                rm /tmp/garm-it-tool.$$; exec \"$@\"";
    let boot = Boot::of(&instance).in_namespace(fake).env("RUNNER_UPDATE_CA_CERTS", "1");
    let ended = boot.run();
    assert_eq!(ended.code, 0, "{}", Scene(&sim, &ended));
    let runs = crate::support::read(&ended.dir.path().join("ca-tool"));
    assert_eq!(runs, "ran\n", "{}", Scene(&sim, &ended));
}
