//! The Listener, from its first line to its exit code.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::scene::{ms, scene, scene_with, start};
use garm_sim::archive::runner_runs;
use garm_sim::{ArchiveSpec, InstanceSpec, RunnerScript, SimOptions, Webhooks};

#[test]
fn a_jit_runner_listens_runs_its_job_and_is_done() {
    let scene = scene(InstanceSpec::default(), RunnerScript::one_job(ms(50), ms(50)));
    scene.put_jit_files();
    let running = scene.run();
    let line = running.line("Listening for Jobs");
    let (time, text) = line.split_once("Z: ").unwrap();
    assert_eq!(text, "Listening for Jobs");
    assert_eq!(time.len(), "2026-12-01 02:03:04".len());
    running.line(": Running job: build");
    running.line(": Job build completed with result: Succeeded");
    assert!(running.end().0.success());
    assert_eq!(scene.one.runner_status(), "terminated");
    assert_eq!(scene.one.status(), "pending_delete");
    let events: Vec<String> = scene.sim.runner_events().into_iter().map(|e| e.event).collect();
    assert_eq!(events, ["online", "job_started", "job_completed"]);
    assert!(!scene.home().join(".runner").exists(), "an ephemeral runner forgets itself");
    let run = &runner_runs(scene.home())[0];
    assert_eq!((run.exit, run.args()), (Some(0), vec!["run".to_owned()]));
    assert_eq!(run.notes, ["job started", "job ended Succeeded"]);
}

#[test]
fn webhooks_can_be_off() {
    let scene = scene_with(
        InstanceSpec::default(),
        SimOptions {
            archive: ArchiveSpec::scripted(RunnerScript::one_job(ms(0), ms(0))),
            webhooks: Webhooks::Off,
            ..SimOptions::default()
        },
    );
    scene.put_jit_files();
    assert!(scene.run().end().0.success());
    assert_eq!(scene.one.runner_status(), "pending");
}

#[test]
fn a_runner_without_its_files_is_not_configured() {
    let scene = scene(InstanceSpec::default(), RunnerScript::new());
    let running = scene.run();
    running.line("Not configured");
    assert_eq!(running.end().0.code(), Some(1));
}

#[test]
fn both_signals_cancel_a_job_and_end_with_zero() {
    for signal in ["INT", "TERM"] {
        let script = RunnerScript::one_job(ms(0), Duration::from_mins(1));
        let scene = scene(InstanceSpec::default(), script);
        scene.put_jit_files();
        let running = scene.run();
        running.line("Running job");
        running.signal(signal);
        running.line("completed with result: Canceled");
        assert_eq!(running.end().0.code(), Some(0));
        let number = if signal == "INT" { 2 } else { 15 };
        assert_eq!(runner_runs(scene.home())[0].signals, [number]);
    }
}

#[test]
fn a_job_can_come_just_after_the_signal() {
    let script = RunnerScript::new().job_after_sigint(ms(50)).job(ms(50));
    let scene = scene(InstanceSpec::default(), script);
    scene.put_jit_files();
    let running = scene.run();
    running.line("Listening for Jobs");
    running.signal("INT");
    running.line("completed with result: Succeeded");
    assert_eq!(running.end().0.code(), Some(0));
}

#[test]
fn a_signal_ignored_by_the_parent_stays_ignored() {
    let scene = scene(InstanceSpec::default(), RunnerScript::new());
    scene.put_jit_files();
    let mut command = Command::new("sh");
    command.arg("-c").arg("trap '' INT; exec bin/Runner.Listener run");
    let running = start(command.current_dir(scene.home()));
    running.line("Listening for Jobs");
    running.signal("INT");
    running.signal("TERM");
    assert_eq!(running.end().0.code(), Some(0));
    let run = &runner_runs(scene.home())[0];
    assert_eq!((run.signals.as_slice(), run.ignored & 2), (&[15][..], 2));
}

#[test]
fn a_runner_can_ignore_signals_and_kill_itself() {
    let scene = scene(InstanceSpec::default(), RunnerScript::new().ignore_signals());
    scene.put_jit_files();
    let running = scene.run();
    running.line("Listening for Jobs");
    running.signal("INT");
    running.signal("TERM");
    running.signal("KILL");
    assert_eq!(running.end().0.signal(), Some(9));
    assert!(runner_runs(scene.home())[0].signals.is_empty());

    RunnerScript::new().exit_after(ms(0)).kill_self(9).write(scene.home()).unwrap();
    assert_eq!(scene.run().end().0.signal(), Some(9));
}

#[test]
fn starts_can_differ() {
    let script = RunnerScript::new().exit_codes("2,5,0").exit_after(ms(0));
    let script = script.on_start(4, &RunnerScript::new().exit_code(7));
    let scene = scene(InstanceSpec::default(), script);
    scene.put_jit_files();
    let codes: Vec<_> = (0..4).map(|_| scene.run().end().0.code()).collect();
    assert_eq!(codes, [Some(2), Some(5), Some(0), Some(7)]);
    assert_eq!(runner_runs(scene.home()).len(), 4);
}

#[test]
fn an_update_takes_bin_away_and_brings_it_back() {
    let scene = scene(InstanceSpec::default(), RunnerScript::new().update(ms(100)));
    scene.put_jit_files();
    let running = scene.run();
    running.line("Runner update in progress");
    // The helper holds the output: reading to its end waits for it.
    let (status, _) = running.end();
    assert_eq!(status.code(), Some(3));
    assert!(scene.home().join("update.finished").exists());
    let running = scene.run();
    running.line("Listening for Jobs");
    running.signal("TERM");
    assert_eq!(running.end().0.code(), Some(0));
}

#[test]
fn traces_repeat_the_listeners_words_behind_a_prefix() {
    let script = RunnerScript::one_job(ms(0), ms(0)).job_output("%now%: Listening for Jobs\n");
    let scene = scene(InstanceSpec::default(), script.trace());
    scene.put_jit_files();
    let lines = scene.run().end().1;
    let own = |words: &str| {
        lines.iter().filter(|line| line.ends_with(words) && line.starts_with("20")).count()
    };
    assert_eq!(own(": Listening for Jobs"), 2, "{lines:#?}");
    assert!(
        lines.iter().any(|line| line.starts_with("[RUNNER 20") && line.contains("WRITE LINE: "))
    );
}

#[test]
fn a_flood_has_the_asked_rate_or_less() {
    let script = RunnerScript::new().flood_lines_per_sec(10_000).exit_after(ms(200));
    let scene = scene(InstanceSpec::default(), script);
    scene.put_jit_files();
    let lines = scene.run().end().1.len();
    assert!((200..2500).contains(&lines), "{lines}");
}

#[test]
fn a_job_gets_dot_env_and_leaves_children_and_orphans() {
    let script = RunnerScript::one_job(ms(0), ms(0))
        .orphans(5)
        .job_children(1)
        .job_command("echo job sees $FROM_DOT_ENV");
    let scene = scene(InstanceSpec::default(), script);
    scene.put_jit_files();
    std::fs::write(scene.home().join(".env"), "FROM_DOT_ENV=a b\n").unwrap();
    let mut command = Command::new(scene.home().join("bin/Runner.Listener"));
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    assert!(child.wait().unwrap().success());
    // The job's child lives on in the group and holds the output until it is killed.
    let group = format!("-{}", child.id());
    assert!(Command::new("kill").args(["-KILL", "--", &group]).status().unwrap().success());
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(text.contains("job sees a b\n"), "{text}");
    let run = &runner_runs(scene.home())[0];
    assert!(run.job_env.contains(&("FROM_DOT_ENV".into(), "a b".into())));
    assert!(!run.env.iter().any(|(key, _)| key == "FROM_DOT_ENV"));
}

#[test]
fn run_sh_hides_exit_codes() {
    let scene = scene(InstanceSpec::default(), RunnerScript::new().exit_codes("5"));
    scene.put_jit_files();
    let status = Command::new(scene.home().join("run.sh"))
        .env("RUNNER_ALLOW_RUNASROOT", "1")
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(0));
    assert_eq!(runner_runs(scene.home())[0].exit, Some(5));
}
