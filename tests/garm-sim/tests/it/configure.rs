//! `config.sh`, the dependency script and the version.

use std::process::{Command, Stdio};

use crate::scene::{scene, start};
use garm_sim::archive::runner_starts;
use garm_sim::{InstanceSpec, RunnerScript};

#[test]
fn configure_writes_what_the_real_one_writes() {
    let scene = scene(InstanceSpec::with_token(), RunnerScript::new());
    let output = scene.configure(&["--labels", "a b,c", "--runnergroup", "Sample Group 1"]);
    assert!(output.status.success(), "{output:?}");
    let runner = std::fs::read(scene.home().join(".runner")).unwrap();
    let json = runner.strip_prefix(b"\xef\xbb\xbf").expect("a BOM");
    let json: serde_json::Value = serde_json::from_slice(json).unwrap();
    let registered = &scene.sim.registrations()[0];
    assert_eq!(json["agentId"], registered.agent_id);
    assert_eq!(json["agentName"], scene.one.name());
    assert_eq!(registered.fields["labels"], "a b,c");
    assert_eq!(registered.fields["group"], "Sample Group 1");
    assert!(scene.home().join(".path").exists());

    let start = &runner_starts(scene.home())[0];
    assert!(start.args().contains(&"Sample Group 1".to_owned()));
    assert_eq!(start.var("ACTIONS_RUNNER_INPUT_TOKEN"), Some(scene.one.registration_token()));

    let again = scene.configure(&[]);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("already configured"));

    let running = scene.run();
    running.line("Listening for Jobs");
    running.signal("INT");
    assert_eq!(running.end().0.code(), Some(0));
}

#[test]
fn what_a_runner_registers_with_is_not_in_the_record() {
    let scene = scene(InstanceSpec::with_token(), RunnerScript::new());
    assert!(scene.configure(&[]).status.success());
    let record = format!("{:?}", scene.sim.calls());
    assert!(record.contains("/_sim/register"));
    assert!(!record.contains(&scene.one.registration_token()));
}

#[test]
fn configure_can_lie_wait_for_a_keyboard_and_hang() {
    let scene = scene(InstanceSpec::with_token(), RunnerScript::new().config_lies());
    assert!(scene.configure(&[]).status.success());
    assert!(!scene.home().join(".runner").exists());

    let script = RunnerScript::new().config_reads_stdin();
    scene.sim.write_script(scene.home(), &script).unwrap();
    assert!(scene.configure(&[]).status.success());
    let notes = runner_starts(scene.home()).pop().unwrap().notes;
    assert_eq!(notes, ["stdin gave 0 bytes"]);
    assert!(scene.home().join(".runner").exists());

    std::fs::remove_file(scene.home().join(".runner")).unwrap();
    let script = RunnerScript::new().config_stdout("hanging\n").config_hang();
    scene.sim.write_script(scene.home(), &script).unwrap();
    let mut command = Command::new(scene.home().join("bin/Runner.Listener"));
    let running = start(command.arg("configure"));
    running.line("hanging");
    running.signal("TERM");
    assert_eq!(running.end().0.code(), Some(1));
}

#[test]
fn configure_fails_as_scripted_and_refuses_a_wrong_token() {
    let text = b"NotFound from \"POST https://x\"\n\t\\\x1b[31m\xff";
    let script = RunnerScript::new().config_fail_times(1).config_stderr(text);
    let scene = scene(InstanceSpec::with_token(), script.config_writes_runner_then_fails());
    let output = scene.configure(&[]);
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(1), &text[..]));
    assert!(scene.home().join(".runner").exists());
    std::fs::remove_file(scene.home().join(".runner")).unwrap();
    let output = scene.configure(&["--token", "WRONG"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("NotFound"));
    assert!(scene.configure(&[]).status.success());
}

#[test]
fn a_name_that_is_taken_needs_replace() {
    let scene = scene(InstanceSpec::with_token(), RunnerScript::new());
    assert!(scene.configure(&[]).status.success());
    for name in [".runner", ".credentials", ".credentials_rsaparams"] {
        std::fs::remove_file(scene.home().join(name)).unwrap();
    }
    let conflict = scene.configure(&[]);
    assert!(String::from_utf8_lossy(&conflict.stderr).contains("exists with the same name"));
    assert!(scene.configure(&["--replace"]).status.success());
    assert_eq!(scene.sim.registrations().len(), 1);
}

#[test]
fn dependencies_fail_as_often_as_scripted() {
    let scene = scene(InstanceSpec::default(), RunnerScript::new().deps_fail_times(2));
    let codes: Vec<_> = (0..3)
        .map(|_| {
            // The Listener's part of it: the script itself needs root.
            let mut command = Command::new(scene.home().join("bin/Runner.Listener"));
            command.arg("sim-deps").stderr(Stdio::null()).stdout(Stdio::null());
            command.status().unwrap().code()
        })
        .collect();
    assert_eq!(codes, [Some(1), Some(1), Some(0)]);
}

#[test]
fn the_version_is_the_archives() {
    let scene = scene(InstanceSpec::default(), RunnerScript::new());
    let program = scene.home().join("bin/Runner.Listener");
    let output = Command::new(program).arg("--version").output().unwrap();
    assert_eq!(output.stdout, b"2.999.0\n");
    assert!(runner_starts(scene.home()).is_empty());
}
