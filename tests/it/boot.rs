//! A boot in which all goes well.

use garm_sim::{ArchiveSpec, InstanceSpec, Sim, SimOptions};

use crate::support::{Boot, one_job};

fn sim() -> Sim {
    Sim::start(SimOptions { archive: ArchiveSpec::scripted(one_job()), ..SimOptions::default() })
}

#[test]
fn a_jit_instance_boots_and_runs_its_job() {
    let sim = sim();
    let instance = sim.create(InstanceSpec::default());
    let ended = Boot::of(&instance).run();
    println!("{}\n{}\n{}", sim.calls_table(), ended.output(), ended.timeline());
    assert_eq!(ended.code, 0);
}

#[test]
fn an_instance_with_a_registration_token_boots_and_runs_its_job() {
    let sim = sim();
    let instance = sim.create(InstanceSpec::with_token());
    let ended = Boot::of(&instance).run();
    println!("{}\n{}\n{}", sim.calls_table(), ended.output(), ended.timeline());
    assert_eq!(ended.code, 0);
}
