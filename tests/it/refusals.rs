//! What GARM refuses, and what becomes of the boot then.

use garm_sim::{ArchiveSpec, Endpoint, InstanceSpec, PrivateCa, Sim, SimOptions};

use crate::support::{Boot, one_job};

/// A person may have posted an id by hand, or an image registered once before.
#[test]
fn an_agent_id_that_garm_does_not_take_costs_neither_the_system_nor_idle() {
    let archive = ArchiveSpec::scripted(one_job());
    let sim = Sim::start(SimOptions { archive, ..SimOptions::default() });
    let instance = sim.create(InstanceSpec { agent_id: Some(77), ..InstanceSpec::with_token() });
    let ended = Boot::of(&instance).run();
    assert_eq!(ended.code, 0, "{}", ended.output());
    assert_eq!(instance.agent_id(), 77);
    assert!(!instance.system_info().os_name.is_empty(), "{}", ended.output());
    let answers = |endpoint| {
        let calls = sim.calls().into_iter().filter(move |call| call.endpoint == endpoint);
        calls.map(|call| call.status).collect::<Vec<_>>()
    };
    assert_eq!(answers(Endpoint::SystemInfo), [Some(400), Some(200)]);
    assert_eq!(answers(Endpoint::Status).iter().filter(|status| **status == Some(400)).count(), 1);
}

/// GARM drops `runner-metadata` of an endpoint with a CA bundle: only the bootstrap file knows the rest.
#[test]
fn without_metadata_and_bootstrap_file_the_failure_names_the_way_out() {
    let ca_bundle = Some(PrivateCa::new("forge CA").pem());
    let sim = Sim::start(SimOptions { ca_bundle, ..SimOptions::default() });
    let instance = sim.create(InstanceSpec::default());
    let ended = Boot::of(&instance).run();
    assert_eq!(ended.code, 20, "{}", ended.output());
    assert_eq!(instance.runner_status(), "failed");
    let told = instance.messages().pop().unwrap().message;
    assert!(told.contains("neither --bootstrap-file nor --runner-url"), "{told}");
}
