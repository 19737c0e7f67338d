//! The fake runner end to end, from an unpacked archive.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use garm_sim::archive::{runner_runs, runner_starts};
use garm_sim::{ArchiveSpec, Instance, InstanceSpec, RunnerScript, Sim, SimOptions, Webhooks};

const LIMIT: Duration = Duration::from_secs(10);

struct Scene {
    sim: Sim,
    one: Instance,
    home: tempfile::TempDir,
}

fn scene(spec: InstanceSpec, script: RunnerScript) -> Scene {
    scene_with(
        spec,
        SimOptions {
            archive: ArchiveSpec::scripted(script),
            ..SimOptions::default()
        },
    )
}

fn scene_with(spec: InstanceSpec, options: SimOptions) -> Scene {
    let sim = Sim::start(options);
    let one = sim.create(spec);
    let home = tempfile::tempdir().unwrap();
    sim.unpack_runner(home.path()).unwrap();
    Scene { sim, one, home }
}

/// A started Listener whose lines can be waited for.
struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    fn line(&self, wanted: &str) -> String {
        loop {
            let line = self
                .lines
                .recv_timeout(LIMIT)
                .unwrap_or_else(|_| panic!("no {wanted}"));
            if line.contains(wanted) {
                return line;
            }
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", name, &pid])
                .status()
                .unwrap()
                .success()
        );
    }

    /// The exit status and the lines that were not read yet.
    fn end(mut self) -> (ExitStatus, Vec<String>) {
        let rest = self.lines.iter().collect();
        (self.child.wait().unwrap(), rest)
    }
}

impl Scene {
    fn home(&self) -> &Path {
        self.home.path()
    }

    fn put_jit_files(&self) {
        for name in [".runner", ".credentials", ".credentials_rsaparams"] {
            std::fs::write(self.home().join(name), self.one.jit_file(name).unwrap()).unwrap();
        }
    }

    fn run(&self) -> Running {
        let mut command = Command::new(self.home().join("bin/Runner.Listener"));
        start(command.arg("run").current_dir(self.home()))
    }

    fn configure(&self, arguments: &[&str]) -> std::process::Output {
        Command::new(self.home().join("config.sh"))
            .args([
                "--unattended",
                "--url",
                &format!("{}/acme/widgets", self.sim.forge_url()),
            ])
            .args(["--name", self.one.name(), "--ephemeral"])
            .args(arguments)
            .env("ACTIONS_RUNNER_INPUT_TOKEN", self.one.registration_token())
            .env("RUNNER_ALLOW_RUNASROOT", "1")
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }
}

fn start(command: &mut Command) -> Running {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let stdout = child.stdout.take().unwrap();
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    Running { child, lines }
}

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

#[test]
fn a_jit_runner_listens_runs_its_job_and_is_done() {
    let scene = scene(
        InstanceSpec::default(),
        RunnerScript::one_job(ms(50), ms(50)),
    );
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
    let events: Vec<String> = scene
        .sim
        .runner_events()
        .into_iter()
        .map(|e| e.event)
        .collect();
    assert_eq!(events, ["online", "job_started", "job_completed"]);
    assert!(
        !scene.home().join(".runner").exists(),
        "an ephemeral runner forgets itself"
    );
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
    assert_eq!(
        start.var("ACTIONS_RUNNER_INPUT_TOKEN"),
        Some(scene.one.registration_token())
    );

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
    let scene = scene(
        InstanceSpec::with_token(),
        RunnerScript::new().config_lies(),
    );
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
    let scene = scene(
        InstanceSpec::with_token(),
        script.config_writes_runner_then_fails(),
    );
    let output = scene.configure(&[]);
    assert_eq!(
        (output.status.code(), output.stderr.as_slice()),
        (Some(1), &text[..])
    );
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
    command
        .arg("-c")
        .arg("trap '' INT; exec bin/Runner.Listener run");
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
    let scene = scene(
        InstanceSpec::default(),
        RunnerScript::new().ignore_signals(),
    );
    scene.put_jit_files();
    let running = scene.run();
    running.line("Listening for Jobs");
    running.signal("INT");
    running.signal("TERM");
    running.signal("KILL");
    assert_eq!(running.end().0.signal(), Some(9));
    assert!(runner_runs(scene.home())[0].signals.is_empty());

    RunnerScript::new()
        .exit_after(ms(0))
        .kill_self(9)
        .write(scene.home())
        .unwrap();
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
        lines
            .iter()
            .filter(|line| line.ends_with(words) && line.starts_with("20"))
            .count()
    };
    assert_eq!(own(": Listening for Jobs"), 2, "{lines:#?}");
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("[RUNNER 20") && line.contains("WRITE LINE: "))
    );
}

#[test]
fn a_flood_has_the_asked_rate_or_less() {
    let script = RunnerScript::new()
        .flood_lines_per_sec(10_000)
        .exit_after(ms(200));
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
    assert!(
        Command::new("kill")
            .args(["-KILL", "--", &group])
            .status()
            .unwrap()
            .success()
    );
    let mut text = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
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

#[test]
fn dependencies_fail_as_often_as_scripted() {
    let scene = scene(
        InstanceSpec::default(),
        RunnerScript::new().deps_fail_times(2),
    );
    let codes: Vec<_> = (0..3)
        .map(|_| {
            // The Listener's part of it: the script itself needs root.
            let mut command = Command::new(scene.home().join("bin/Runner.Listener"));
            command
                .arg("sim-deps")
                .stderr(Stdio::null())
                .stdout(Stdio::null());
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
