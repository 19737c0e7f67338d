//! The binary in real containers, as people run it: podman stands for every engine.

use std::time::Duration;

use garm_sim::InstanceSpec;

use crate::support::podman::{BINARY, Container, DEBIAN, Prepared};
use crate::support::{LONG, good};

#[test]
fn as_the_entrypoint_it_runs_a_job() {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let ended = Prepared::of(DEBIAN)
        .with_binary()
        .env_of(&instance)
        .command([BINARY, "run"])
        .start()
        .wait(LONG);
    assert_eq!(ended.code, 0, "{ended}\n{}", sim.calls_table());
    assert_eq!(instance.runner_status(), "terminated", "{ended}");
}

#[test]
fn a_container_with_systemd_comes_up() {
    let container = Container::systemd(|prepared| prepared);
    assert_eq!(container.sh("cat /proc/1/comm").trim(), "systemd");
    container.stop(Duration::from_secs(10));
}
