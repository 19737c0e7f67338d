//! Whatever goes wrong, and in whichever phase: GARM hears one terminal status, and the exit code says
//! what it was.
//!
//! The boots run inside this process, so that a fault can be put into a phase without a hook in the
//! program: the boot's own observer is called as each phase begins, and may panic or count a signal.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use garm_bootstrap::boot::{self, Signals};
use garm_bootstrap::config::{Config, Environment, Flags, Layers};
use garm_bootstrap::exit::Exit;
use garm_bootstrap::timeline::Phase;
use garm_sim::archive::runner_starts;
use garm_sim::{
    ArchiveSpec, Checksum, Endpoint, Fault, FaultKind, Instance, InstanceSpec, RunnerScript, Sim,
    SimOptions,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::watch;

use crate::support::traces::{files_below, processes_of};
use crate::support::{Boot, LONG, Who, is_root, need_root, wait_until};

/// Every phase that begins; `finish` is what follows them.
const PHASES: [Phase; 9] = [
    Phase::Preflight,
    Phase::Discover,
    Phase::Fetch,
    Phase::Dependencies,
    Phase::Configure,
    Phase::Introduce,
    Phase::Start,
    Phase::Announce,
    Phase::Supervise,
];
const LIBRARY: &str = "libsimulated.so.9";

/// A boot in this process, with everything that it meets.
struct Here {
    sim: Sim,
    instance: Instance,
    boot: Boot,
    env: BTreeMap<OsString, OsString>,
}

impl Here {
    fn new(options: SimOptions, spec: InstanceSpec) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let sim = Sim::start(options);
        let instance = sim.create(spec);
        let boot = Boot::of(&instance).who(if is_root() { Who::Root } else { Who::Plain });
        let command = boot.command();
        let env = command.get_envs().filter_map(|(name, value)| Some((name.into(), value?.into())));
        let env = env.collect();
        Self { sim, instance, boot, env }.env("GARM_DEADLINE", "20s").env("GARM_STOP_GRACE", "2s")
    }

    /// One that runs `script` on an instance of either kind.
    fn scripted(script: RunnerScript, jit: bool) -> Self {
        let spec = InstanceSpec { jit, ..InstanceSpec::default() };
        Self::new(options(script), spec)
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    fn home(&self) -> PathBuf {
        self.boot.home()
    }

    /// Boots to the end; `on_phase` is told the phases and can count signals.
    fn run(&self, on_phase: impl Fn(Phase, &watch::Sender<u32>) + 'static) -> Exit {
        let env: Environment = self.env.clone().into_iter().collect();
        let config = Config::resolve(&Layers::new(Flags::new(), env), None).unwrap();
        let (send, count) = watch::channel(0);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let boot = boot::boot(boot::Goal::Run, config, Signals::counted_by(count), move |phase| {
            on_phase(phase, &send);
        });
        let exit = runtime.block_on(async { tokio::time::timeout(LONG, boot).await });
        runtime.shutdown_background();
        let exit = exit.unwrap_or_else(|_| panic!("no end\n{}", self.sim.calls_table()));
        exit.unwrap_or_else(|error| panic!("it did not begin: {error}"))
    }

    /// The one terminal status that GARM took, with its message; nothing may be left running.
    fn last_word(&self) -> (String, String) {
        let mut terminal: Vec<_> = self
            .instance
            .messages()
            .into_iter()
            .filter(|row| row.accepted)
            .filter_map(|row| row.status.map(|status| (status, row.message)))
            .filter(|(status, _)| status == "idle" || status == "failed")
            .collect();
        assert_eq!(terminal.len(), 1, "{}", self.sim.calls_table());
        let left = processes_of(self.boot.dir.path());
        assert!(left.is_empty(), "left running: {left:?}");
        terminal.remove(0)
    }
}

fn options(script: RunnerScript) -> SimOptions {
    SimOptions { archive: ArchiveSpec::scripted(script), ..SimOptions::default() }
}

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

fn one_job() -> RunnerScript {
    RunnerScript::one_job(ms(300), ms(100))
}

#[test]
fn a_panic_in_any_phase_is_told_once_and_leaves_no_runner_behind() {
    for (n, at) in PHASES.into_iter().enumerate() {
        // No job comes: only the boot can end this runner.
        let here = Here::scripted(RunnerScript::new(), n % 2 == 0);
        let exit = here.run(move |phase, _| assert!(phase != at, "provoked in {phase}"));
        assert_eq!(exit, Exit::Internal, "{at}");
        let (status, message) = here.last_word();
        if at == Phase::Supervise {
            assert_eq!(status, "idle");
        } else {
            assert_eq!(status, "failed", "{at}");
            let expected = format!("[internal_fault] {at}: ");
            assert!(message.starts_with(&expected), "{message}");
            assert!(message.ends_with(&format!("provoked in {at}")), "{message}");
        }
    }
}

#[test]
fn a_panic_beside_a_running_job_lets_the_job_end() {
    let here = Here::scripted(RunnerScript::one_job(ms(0), ms(1500)), true);
    here.sim
        .fault(Fault::new(Endpoint::Status).posting("idle").once().kind(FaultKind::Delay(ms(700))));
    let exit = here.run(|phase, _| assert!(phase != Phase::Supervise, "provoked"));
    assert_eq!(exit, Exit::Internal);
    let run = runner_starts(&here.home()).pop().unwrap();
    assert!(run.notes.contains(&"job ended Succeeded".to_owned()), "{run:?}");
    assert!(run.signals.is_empty(), "{run:?}");
}

#[test]
fn a_panic_before_idle_is_not_told_as_a_failure_beside_a_job() {
    let here = Here::scripted(RunnerScript::one_job(ms(0), ms(1500)), true);
    let exit = here.run(|phase, _| assert!(phase != Phase::Announce, "provoked"));
    assert_eq!(exit, Exit::Internal);
    let failed = here.sim.calls().into_iter().filter_map(|call| call.posted_status());
    assert_eq!(failed.filter(|status| status == "failed").count(), 0, "{}", here.sim.calls_table());
    let run = runner_starts(&here.home()).pop().unwrap();
    assert!(run.notes.contains(&"job ended Succeeded".to_owned()), "{run:?}");
    assert!(run.signals.is_empty(), "{run:?}");
}

#[test]
fn a_signal_in_any_phase_ends_the_boot_with_one_terminal_status() {
    for (n, at) in PHASES.into_iter().enumerate() {
        let here = Here::scripted(RunnerScript::new(), n % 2 == 0);
        let exit = here.run(move |phase, signals| {
            if phase == at {
                signals.send_modify(|count| *count += 1);
            }
        });
        let (status, message) = here.last_word();
        match at {
            // Which of the two is first is the wire's affair; the runner was ready either way.
            Phase::Announce => assert_eq!(exit, Exit::Done),
            Phase::Supervise => assert_eq!((exit, status.as_str()), (Exit::Done, "idle")),
            _ => assert_eq!((exit, status.as_str()), (Exit::Stopped, "failed"), "{at}: {message}"),
        }
        if status == "failed" {
            // The phase is the one that noticed: this one, or the next that had to wait.
            assert!(message.starts_with("[stopped] "), "{message}");
        }
    }
}

/// What goes wrong in a phase, and what follows.
struct Case {
    phase: Phase,
    here: Here,
    exit: Exit,
    status: &'static str,
    message: &'static str,
}

fn failures() -> Vec<Case> {
    let case = |phase, exit, message, here| Case { phase, here, exit, status: "failed", message };
    let quiet = || Here::scripted(RunnerScript::new(), true);
    let faulty = |fault| {
        let here = quiet();
        here.sim.fault(fault);
        here
    };
    let barred = quiet();
    let closed = barred.boot.path("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let barred = barred.env("RUNNER_HOME", closed.join("home").to_str().unwrap());
    let wrong_sum = InstanceSpec { sha256: Checksum::Wrong, ..InstanceSpec::default() };
    let needy = ArchiveSpec {
        needs: vec![LIBRARY.to_owned()],
        ..ArchiveSpec::scripted(RunnerScript::new().deps_exit(1).deps_text("no such mirror"))
    };
    let needy = SimOptions { archive: needy, ..SimOptions::default() };
    let refused = faulty(
        Fault::new(Endpoint::Status).posting("installing").kind(FaultKind::answer(400, "no")),
    );
    let superseded = faulty(Fault::new(Endpoint::SystemInfo).kind(FaultKind::unauthorized()));
    let no_idle = Here::scripted(RunnerScript::new().exit_after(ms(300)), true);
    no_idle.sim.fault(
        Fault::new(Endpoint::Status).posting("idle").kind(FaultKind::answer(400, "no idle today")),
    );
    vec![
        case(Phase::Preflight, Exit::Usage, "[bad_settings] preflight: ", barred),
        case(Phase::Discover, Exit::Refused, "[garm_refused] discover: ", refused),
        case(
            Phase::Fetch,
            Exit::Fetch,
            "[runner_not_fetched] fetch: failed to verify the archive",
            Here::new(options(RunnerScript::new()), wrong_sum),
        ),
        case(
            Phase::Dependencies,
            Exit::Dependencies,
            "[dependencies_missing] dependencies: ",
            Here::new(needy, InstanceSpec::default()).env("GARM_DEADLINE", "4s"),
        ),
        case(
            Phase::Configure,
            Exit::Configure,
            "[configure_failed] configure: ",
            Here::scripted(RunnerScript::new().config_exit(1), false).env("GARM_DEADLINE", "5s"),
        ),
        case(Phase::Introduce, Exit::Superseded, "[superseded] introduce: ", superseded),
        case(
            Phase::Start,
            Exit::NotReady,
            "[runner_not_ready] start: ",
            Here::scripted(RunnerScript::new().exit_before_listening().exit_code(1), true),
        ),
        // GARM was never told of this runner: it must hear that it is gone.
        case(Phase::Supervise, Exit::NoJob, "[runner_ended] supervise: ", no_idle),
        Case {
            phase: Phase::Supervise,
            here: Here::scripted(RunnerScript::new().exit_after(ms(300)), true),
            exit: Exit::NoJob,
            status: "idle",
            message: "runner ready in ",
        },
    ]
}

#[test]
fn a_failure_in_any_phase_is_told_once_with_its_reason() {
    need_root();
    for case in failures() {
        let exit = case.here.run(|_, _| {});
        let (status, message) = case.here.last_word();
        assert_eq!((exit, status.as_str()), (case.exit, case.status), "{}: {message}", case.phase);
        assert!(message.starts_with(case.message), "{message}");
        let left = files_below(case.here.boot.dir.path());
        assert!(left.iter().all(|name| !name.contains("registration-token-")), "{left:?}");
    }
}

#[test]
fn a_boot_that_cannot_even_begin_is_told_once() {
    let sim = Sim::start(options(RunnerScript::new()));
    let instance = sim.create(InstanceSpec::default());
    let ended = Boot::of(&instance).env("GARM_STATE_DIR", "/dev/null/state").run();
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    let rows = instance.messages();
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert!(rows[0].message.starts_with("[bad_settings] preflight: "), "{rows:?}");
}

fn deaths() -> Vec<(&'static str, Case)> {
    let case = |phase, exit, status, message, here| Case { phase, here, exit, status, message };
    let held_up = |kind| {
        let here = Here::scripted(RunnerScript::new(), true);
        here.sim.fault(Fault::new(Endpoint::Status).posting("idle").kind(kind));
        here
    };
    let killed =
        "[killed] announce: failed to keep the runner running: the runner was killed by signal 9";
    vec![
        (
            "configure",
            case(
                Phase::Configure,
                Exit::Done,
                "idle",
                "runner ready in ",
                Here::scripted(one_job().on_start(1, &RunnerScript::new().config(LONG)), false),
            ),
        ),
        (
            "run",
            case(
                Phase::Start,
                Exit::Killed,
                "failed",
                "[killed] start: failed to keep the runner running: the runner was killed by signal 9",
                Here::scripted(RunnerScript::new().hang_before_listening(), true),
            ),
        ),
        (
            "run",
            case(Phase::Announce, Exit::Killed, "failed", killed, held_up(FaultKind::HangForever)),
        ),
        (
            "run",
            case(Phase::Announce, Exit::Killed, "failed", killed, held_up(FaultKind::status(503))),
        ),
        (
            "run",
            case(
                Phase::Supervise,
                Exit::Killed,
                "idle",
                "runner ready in ",
                Here::scripted(RunnerScript::new(), true),
            ),
        ),
    ]
}

#[test]
fn a_child_that_is_killed_in_any_phase_is_told_once() {
    for (subcommand, case) in deaths() {
        let Case { phase, here, exit, status, message } = case;
        let home = here.home();
        let ended = std::thread::scope(|scope| {
            scope.spawn(|| kill_first(subcommand, &home, &here, phase));
            here.run(|_, _| {})
        });
        let (told, text) = here.last_word();
        assert_eq!((ended, told.as_str()), (exit, status), "{phase}: {text}");
        assert!(text.starts_with(message), "{text}");
    }
}

/// Kills the first process of that name once the boot is in `phase`.
fn kill_first(subcommand: &str, home: &std::path::Path, here: &Here, phase: Phase) {
    let posted = |status: &str| {
        here.sim.calls().iter().any(|call| call.posted_status().as_deref() == Some(status))
    };
    wait_until("the child is there", || {
        let there = runner_starts(home).iter().any(|start| start.subcommand == subcommand);
        there
            && match phase {
                Phase::Announce => posted("idle"),
                Phase::Supervise => here.instance.runner_status() == "idle",
                _ => true,
            }
    });
    let start = runner_starts(home).into_iter().find(|s| s.subcommand == subcommand).unwrap();
    kill(Pid::from_raw(start.pid), Signal::SIGKILL).unwrap();
}

#[test]
fn dependencies_whose_installer_is_killed_are_installed_again() {
    need_root();
    let libraries = tempfile::tempdir().unwrap();
    let library = libraries.path().join(LIBRARY);
    let script = one_job()
        .deps_creates(library.to_str().unwrap())
        .on_start(1, &RunnerScript::new().deps(LONG));
    let archive = ArchiveSpec { needs: vec![LIBRARY.to_owned()], ..ArchiveSpec::scripted(script) };
    let here = Here::new(SimOptions { archive, ..SimOptions::default() }, InstanceSpec::default())
        .env("LD_LIBRARY_PATH", libraries.path().to_str().unwrap());
    let home = here.home();
    let exit = std::thread::scope(|scope| {
        scope.spawn(|| kill_first("sim-deps", &home, &here, Phase::Dependencies));
        here.run(|_, _| {})
    });
    let (status, message) = here.last_word();
    assert_eq!((exit, status.as_str()), (Exit::Done, "idle"), "{message}");
    assert!(fs::exists(&library).unwrap());
}
