//! What is started again, and what never is: the runner after its exit codes, and the boot itself.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use garm_sim::archive::{RunnerStart, runner_runs, runner_starts};
use garm_sim::{
    ArchiveSpec, Endpoint, Fault, FaultKind, Instance, InstanceSpec, RunnerScript, Sim, SimOptions,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::after::{
    Scene, assert_nothing_left, end_the_idle_listener, posted, processes_under, registration_files,
    wait, wait_for_note, wait_for_status,
};
use crate::support::{Boot, Ended, FOR_EVER, LONG, one_job, scripted};

fn sim(script: RunnerScript) -> (Sim, Instance) {
    let sim =
        Sim::start(SimOptions { archive: ArchiveSpec::scripted(script), ..SimOptions::default() });
    let instance = sim.create(InstanceSpec::default());
    (sim, instance)
}

fn exits(runs: &[RunnerStart]) -> Vec<Option<i32>> {
    runs.iter().map(|run| run.exit).collect()
}

/// What becomes of a runner.
struct Life {
    script: RunnerScript,
    /// Whether its first process is ended as soon as GARM knows that it is idle.
    cut_short: bool,
    /// The exit codes of its processes.
    exits: Vec<i32>,
    code: i32,
    /// Whether GARM hears `idle`; `failed` if not.
    idle: bool,
}

fn life(script: RunnerScript, exits: &[i32], code: i32) -> Life {
    Life { script, cut_short: false, exits: exits.to_vec(), code, idle: true }
}

/// Its first process ends with that code while it is idle.
fn cut_short(script: RunnerScript, exits: &[i32], code: i32) -> Life {
    let first = RunnerScript::new().signal_exit_code(exits[0].into()).job_after(FOR_EVER);
    Life { cut_short: true, ..life(script.on_start(1, &first), exits, code) }
}

/// No process of it ever listens.
fn stillborn(script: RunnerScript, exit: i32, code: i32) -> Life {
    Life { idle: false, ..life(script.exit_codes(exit.to_string()), &[exit], code) }
}

fn lives() -> Vec<Life> {
    const VERSION: &str = "Runner version v2.285.0 is deprecated and cannot receive messages.\n";
    const CONFLICT: &str = "A session for this runner already exists.\n";
    let script = RunnerScript::new;
    let updating = |code| {
        let update = one_job().update(Duration::from_millis(400));
        update.on_start(1, &RunnerScript::new().exit_code(code))
    };
    vec![
        // 2 before a job is retryable, whether the runner has listened or not.
        life(one_job().exit_codes("2,0"), &[2, 0], 0),
        cut_short(one_job(), &[2, 0], 0),
        // 2 after a job is the end, for an ephemeral runner is unknown to the forge then.
        life(one_job().exit_code(2), &[2], 0),
        life(one_job().exit_code(2).keep_files(), &[2], 0),
        life(one_job().exit_code(2).no_result().forget_registration(), &[2], 30),
        life(one_job().exit_code(2).no_result().keep_files(), &[2], 30),
        // 3 and 4: the updater takes `bin` away and puts it back.
        life(updating(3), &[3, 0], 0),
        life(updating(4), &[4, 0], 0),
        // 6: its configuration was refreshed.
        cut_short(one_job(), &[6, 0], 0),
        life(one_job().exit_codes("6,6,0"), &[6, 6, 0], 0),
        // Everything else is the end.
        cut_short(script(), &[0], 30),
        cut_short(script(), &[1], 30),
        cut_short(script(), &[5], 31),
        cut_short(script(), &[7], 32),
        stillborn(script(), 1, 23),
        stillborn(script(), 5, 31),
        stillborn(script(), 7, 32),
        // What it says counts where the code does not tell.
        stillborn(script().stderr(VERSION), 1, 32),
        stillborn(script().stderr(CONFLICT), 1, 31),
        // A job that went wrong was run all the same.
        life(one_job().job_result("Failed"), &[0], 0),
        life(one_job().job_result("Canceled").exit_code(1), &[1], 0),
    ]
}

#[test]
fn the_runner_is_started_again_only_where_its_exit_code_asks_for_it() {
    std::thread::scope(|scope| {
        let cases: Vec<_> = lives().into_iter().map(|life| scope.spawn(|| life.is_led())).collect();
        let failed = cases.into_iter().filter_map(|case| case.join().err()).count();
        assert_eq!(failed, 0, "cases failed; each said why above");
    });
}

impl Life {
    fn is_led(self) {
        let said = format!("{:?}", self.script);
        let (sim, instance) = sim(self.script);
        let running = Boot::of(&instance).spawn();
        if self.cut_short {
            end_the_idle_listener(&running, &sim);
        }
        let ended = running.wait(LONG);
        let scene = Scene(&sim, &ended);
        let runs = runner_runs(&ended.home());
        let expected: Vec<_> = self.exits.into_iter().map(Some).collect();
        assert_eq!((exits(&runs), ended.code), (expected, self.code), "{said}{scene}");
        let told = (posted(&sim, "idle"), posted(&sim, "failed"));
        assert_eq!(told, (usize::from(self.idle), usize::from(!self.idle)), "{said}{scene}");
        assert_nothing_left(&sim, &ended);
    }
}

#[test]
fn a_runner_whose_registration_is_gone_is_not_started_again() {
    let (sim, instance) = sim(RunnerScript::new().signal_exit_code(2));
    let running = Boot::of(&instance).spawn();
    wait_for_status(&running, &sim, "idle");
    for name in registration_files(&running.home()) {
        fs::remove_file(running.home().join(name)).unwrap();
    }
    end_the_idle_listener(&running, &sim);
    let ended = running.wait(LONG);
    let runs = runner_runs(&ended.home());
    assert_eq!((exits(&runs), ended.code), (vec![Some(2)], 31), "{}", Scene(&sim, &ended));
    assert_nothing_left(&sim, &ended);
}

#[test]
fn a_signal_during_an_update_that_never_finishes_is_heeded() {
    let script = RunnerScript::new().update(Duration::ZERO).update_never_finishes();
    let (sim, instance) = sim(script);
    let running = Boot::of(&instance).spawn();
    wait(&running, &sim, "the runner is updating", || {
        running.stderr().contains("is updating itself") && !running.home().join("bin").exists()
    });
    running.signal(Signal::SIGTERM);
    let ended = running.wait(Duration::from_secs(6));
    // The fake updater has taken `bin` away, so this home is nobody's fault of ours.
    assert_eq!(ended.code, 0, "{}", Scene(&sim, &ended));
    let alive = processes_under(ended.dir.path());
    assert!(alive.is_empty(), "{alive:?}");
}

/// Every file below `dir` with what would change if it were touched.
fn snapshot(dir: &Path) -> BTreeMap<PathBuf, (u64, i64, i64, u64)> {
    let mut all = BTreeMap::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            all.insert(path.clone(), (meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.len()));
            if meta.is_dir() {
                folders.push(path);
            }
        }
    }
    all
}

#[test]
fn a_second_start_after_the_job_says_and_touches_nothing() {
    let (sim, instance) = sim(one_job());
    let ended = Boot::of(&instance).run();
    assert_eq!(ended.code, 0, "{}", Scene(&sim, &ended));
    let (calls, before) = (sim.calls().len(), snapshot(&ended.dir.path().join("work")));
    let again = ended.again(&instance).run();
    let scene = Scene(&sim, &again);
    assert_eq!((again.code, sim.calls().len()), (41, calls), "{scene}");
    assert!(again.stderr.contains("had its run"), "{scene}");
    assert_eq!(snapshot(&again.dir.path().join("work")), before, "{scene}");
    // A mistake in the settings does not make it talk, either.
    let wrong = again.again(&instance).arg("--stop-grace").arg("soon").run();
    let scene = Scene(&sim, &wrong);
    assert_eq!((wrong.code, sim.calls().len()), (2, calls), "{scene}");
}

#[test]
fn a_second_starter_says_and_touches_nothing_while_the_first_one_runs() {
    let (sim, instance) = sim(RunnerScript::new());
    let boot = Boot::of(&instance);
    let (mut second, mut wrong) = (boot.command(), boot.command());
    wrong.arg("--no-such-flag");
    let running = boot.spawn();
    wait_for_status(&running, &sim, "idle");
    let calls = sim.calls().len();
    for (command, code) in [(&mut second, 41), (&mut wrong, 2)] {
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert_eq!(sim.calls().len(), calls, "{}\n{stderr}", sim.calls_table());
    }
    running.signal(Signal::SIGTERM);
    let ended = running.wait(LONG);
    assert_eq!((ended.code, runner_runs(&ended.home()).len()), (0, 1), "{}", Scene(&sim, &ended));
}

#[test]
fn a_second_starter_with_a_state_folder_of_its_own_leaves_the_first_ones_config_sh_alone() {
    let sim = scripted(one_job().config(Duration::from_secs(3)));
    let instance = sim.create(InstanceSpec::with_token());
    let boot = Boot::of(&instance);
    let mut second = boot.command();
    second.env("GARM_STATE_DIR", boot.path("work/other"));
    let running = boot.spawn();
    wait(&running, &sim, "config.sh is at work", || !runner_starts(&running.home()).is_empty());
    let output = second.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(41), "{stderr}");
    assert!(stderr.contains("is configuring a runner in this home"), "{stderr}");
    running.wait(LONG).expect_job(&sim);
}

/// Kills the agent so that it can do nothing about it.
fn shoot(running: crate::support::Running) -> Ended {
    running.signal(Signal::SIGKILL);
    let ended = running.wait(LONG);
    assert_eq!(ended.code, 128 + 9);
    ended
}

#[test]
fn an_agent_that_was_killed_in_the_middle_of_a_download_begins_anew() {
    let (sim, instance) = sim(one_job());
    let slow = FaultKind::SlowBody { bytes_per_sec: 20_000 };
    sim.fault(Fault::new(Endpoint::Download).kind(slow));
    let running = Boot::of(&instance).spawn();
    wait(&running, &sim, "the download is under way", || {
        sim.calls().iter().any(|call| call.endpoint == Endpoint::Download)
    });
    let killed = shoot(running);
    sim.clear_faults();
    let ended = killed.again(&instance).run();
    let scene = Scene(&sim, &ended);
    assert_eq!((ended.code, posted(&sim, "idle"), posted(&sim, "failed")), (0, 1, 0), "{scene}");
    assert_nothing_left(&sim, &ended);
}

#[test]
fn an_agent_that_was_killed_after_idle_or_with_a_job_does_not_start_a_runner_again() {
    for at_work in [false, true] {
        let (sim, instance) = sim(if at_work {
            RunnerScript::one_job(Duration::ZERO, FOR_EVER)
        } else {
            RunnerScript::new()
        });
        let running = Boot::of(&instance).spawn();
        wait_for_status(&running, &sim, "idle");
        if at_work {
            wait_for_note(&running, &sim, "job started");
        }
        wait(&running, &sim, "the marker is written", || {
            running.home().with_file_name("state").join("used.json").exists()
        });
        let killed = shoot(running);
        let calls = sim.calls().len();
        let listener = Pid::from_raw(runner_runs(&killed.home())[0].pid);
        let again = killed.again(&instance).run();
        let scene = Scene(&sim, &again);
        assert_eq!((again.code, runner_runs(&again.home()).len()), (41, 1), "{scene}");
        let garm = |call: &garm_sim::Call| call.host == garm_sim::Host::Garm;
        let later = sim.calls().into_iter().skip(calls).filter(garm).count();
        assert_eq!(later, 0, "{scene}");
        kill(listener, Signal::SIGKILL).unwrap();
    }
}
