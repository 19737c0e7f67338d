//! config.sh when it floods, forks, lies, or meets a runner of the same name.

use std::time::Duration;

use garm_sim::archive::{RunnerStart, runner_starts};
use garm_sim::{ArchiveSpec, Instance, InstanceSpec, RunnerScript, Sim, SimOptions};

use crate::support::traces::processes_of;
use crate::support::{Boot, Ended, one_job};

fn scene(script: RunnerScript) -> (Sim, Instance) {
    let sim =
        Sim::start(SimOptions { archive: ArchiveSpec::scripted(script), ..SimOptions::default() });
    let instance = sim.create(InstanceSpec::with_token());
    (sim, instance)
}

/// The starts of config.sh.
fn configured(ended: &Ended) -> Vec<RunnerStart> {
    let mut starts = runner_starts(&ended.home());
    starts.retain(|start| start.subcommand == "configure");
    starts
}

/// The one `failed` that GARM has.
fn failure(instance: &Instance) -> String {
    let mut failed: Vec<String> = instance
        .messages()
        .into_iter()
        .filter(|row| row.accepted && row.status.as_deref() == Some("failed"))
        .map(|row| row.message)
        .collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    failed.remove(0)
}

#[test]
fn a_config_sh_that_floods_is_read_to_its_end() {
    let (sim, instance) = scene(one_job().config_flood_lines(100_000));
    let ended = Boot::of(&instance).run();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(sim.registrations().len(), 0, "registered, and gone with its job");
    assert!(ended.output().len() < 100_000, "a flood is not handed on");
}

#[test]
fn a_flood_before_a_failure_keeps_its_first_line_and_its_last() {
    let script = RunnerScript::new().config_flood_lines(100_000).config_exit(1);
    let (_sim, instance) = scene(script.config_stderr("the very last line"));
    let ended = Boot::of(&instance).env("GARM_DEADLINE", "5s").run();
    assert_eq!(ended.code, 22, "{}", ended.stderr);
    let message = failure(&instance);
    assert!(message.contains("config.sh: line 0 of many"), "{message}");
    assert!(message.ends_with("the very last line"), "{message}");
    assert!(message.chars().count() <= 2000, "{}", message.len());
}

#[test]
fn daemons_that_config_sh_left_in_its_group_are_ended_and_not_waited_for() {
    let (_sim, instance) = scene(one_job().config_children(3));
    let ended = Boot::of(&instance).run();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let left = processes_of(ended.dir.path());
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_config_sh_that_lies_is_found_out_and_run_again() {
    let (_sim, instance) = scene(one_job().on_start(1, &RunnerScript::new().config_lies()));
    let ended = Boot::of(&instance).run();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(configured(&ended).len(), 2);
}

#[test]
fn a_config_sh_that_always_lies_is_a_failure_that_says_so() {
    let (_sim, instance) = scene(RunnerScript::new().config_lies());
    let ended = Boot::of(&instance).env("GARM_DEADLINE", "4s").run();
    assert_eq!(ended.code, 22, "{}", ended.stderr);
    let message = failure(&instance);
    assert!(message.starts_with("[configure_failed] configure: "), "{message}");
    assert!(message.contains("config.sh reported success, but"), "{message}");
}

#[test]
fn a_name_that_stays_taken_is_told_in_the_forges_words() {
    let words = "A runner exists with the same name lab-7.";
    let (_sim, instance) = scene(RunnerScript::new().config_exit(1).config_stderr(words));
    let ended = Boot::of(&instance).env("GARM_DEADLINE", "6s").run();
    assert_eq!(ended.code, 22, "{}", ended.stderr);
    let message = failure(&instance);
    assert!(message.contains(words), "{message}");
    let starts = configured(&ended);
    assert!(starts.len() > 1, "{}", ended.stderr);
    for (n, start) in starts.iter().enumerate() {
        // GARM knows the runner by its name: no attempt takes another one.
        let args = start.args();
        let name = args.iter().position(|arg| arg == "--name").unwrap() + 1;
        assert_eq!(args[name], instance.name());
        assert_eq!(args.contains(&"--replace".to_owned()), n > 0, "{args:?}");
    }
}

#[test]
fn replace_is_a_bare_flag_of_the_first_attempt_where_it_is_set() {
    let (_sim, instance) = scene(one_job().config_needs_replace());
    let ended = Boot::of(&instance).env("GARM_RUNNER_REPLACE", "true").run();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let mut starts = configured(&ended);
    assert_eq!(starts.len(), 1);
    let args = starts.remove(0).args();
    let at = args.iter().position(|arg| arg == "--replace").unwrap();
    assert!(args.get(at + 1).is_none_or(|next| next.starts_with("--")), "{args:?}");
}

#[test]
fn a_config_sh_that_reads_the_keyboard_gets_none() {
    let (_sim, instance) = scene(one_job().config_reads_stdin());
    let ended = Boot::of(&instance).run();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(configured(&ended)[0].notes.contains(&"stdin gave 0 bytes".to_owned()));
}

#[test]
fn a_config_sh_that_hangs_is_ended_with_the_boots_deadline() {
    let (_sim, instance) = scene(RunnerScript::new().config_hang_hard());
    let began = std::time::Instant::now();
    let ended = Boot::of(&instance).env("GARM_DEADLINE", "3s").run();
    assert_eq!(ended.code, 22, "{}", ended.stderr);
    assert!(began.elapsed() < Duration::from_secs(3 + 5 + 3));
    let left = processes_of(ended.dir.path());
    assert!(left.is_empty(), "{left:?}");
    assert!(failure(&instance).contains("did not end within"));
}
