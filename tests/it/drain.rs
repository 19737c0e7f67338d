//! Being asked to leave: idle, and with a job. `stuck` does so at every moment before.

use std::fs;
use std::time::Duration;

use garm_sim::archive::{RunnerStart, runner_runs};
use garm_sim::{
    ArchiveSpec, Endpoint, Fault, FaultKind, Instance, InstanceSpec, RunnerScript, Sim, SimOptions,
};
use nix::sys::signal::Signal;

use crate::stuck::FAST;
use crate::support::after::{
    Scene, assert_nothing_left, posted, wait, wait_for_note, wait_for_status,
};
use crate::support::{Boot, Ended, FOR_EVER, LONG, Running, Who, scripted};

fn sim(script: RunnerScript) -> (Sim, Instance) {
    let sim =
        Sim::start(SimOptions { archive: ArchiveSpec::scripted(script), ..SimOptions::default() });
    let instance = sim.create(InstanceSpec::default());
    (sim, instance)
}

fn idle(boot: Boot, sim: &Sim) -> Running {
    let running = boot.spawn();
    wait_for_status(&running, sim, "idle");
    running
}

fn at_work(boot: Boot, sim: &Sim) -> Running {
    let running = idle(boot, sim);
    wait_for_note(&running, sim, "job started");
    running
}

/// Asks to leave, and waits until that was understood: two signals at once are one.
fn ask(running: &Running, sim: &Sim, signal: Signal) {
    running.signal(signal);
    wait(running, sim, "the signal is heard", || running.stderr().contains("asked to leave"));
}

fn the_run(ended: &Ended) -> RunnerStart {
    let mut runs = runner_runs(&ended.home());
    assert_eq!(runs.len(), 1, "one start of the Listener; stderr:\n{}", ended.stderr);
    runs.remove(0)
}

fn assert_drained(sim: &Sim, ended: &Ended) {
    let scene = Scene(sim, ended);
    assert_eq!(ended.code, 0, "{scene}");
    assert_eq!((posted(sim, "idle"), posted(sim, "failed")), (1, 0), "{scene}");
    assert_nothing_left(sim, ended);
}

#[test]
fn a_signal_while_idle_stops_the_runner_and_is_success() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        let (sim, instance) = sim(RunnerScript::new());
        let running = idle(Boot::of(&instance), &sim);
        running.signal(signal);
        let ended = running.wait(FAST);
        assert_drained(&sim, &ended);
        assert_eq!(the_run(&ended).signals, [2], "{signal}{}", Scene(&sim, &ended));
    }
}

#[test]
fn a_job_is_waited_for_and_not_signalled() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let (sim, instance) = sim(RunnerScript::one_job(Duration::ZERO, Duration::from_secs(1)));
        let running = at_work(Boot::of(&instance), &sim);
        running.signal(signal);
        let ended = running.wait(LONG);
        assert_drained(&sim, &ended);
        let run = the_run(&ended);
        assert!(run.signals.is_empty(), "{signal} {run:?}");
        assert!(run.notes.contains(&"job ended Succeeded".to_owned()), "{signal} {run:?}");
    }
}

#[test]
fn a_hangup_right_after_the_sigterm_is_no_second_asking() {
    let (sim, instance) = sim(RunnerScript::one_job(Duration::ZERO, Duration::from_secs(1)));
    let running = at_work(Boot::of(&instance), &sim);
    running.signal(Signal::SIGTERM);
    running.signal(Signal::SIGHUP);
    let ended = running.wait(LONG);
    assert_drained(&sim, &ended);
    let run = the_run(&ended);
    assert!(run.signals.is_empty(), "{run:?}");
}

#[test]
fn a_frozen_listener_is_ended_all_the_same() {
    let (sim, instance) = sim(RunnerScript::new());
    let running = idle(Boot::of(&instance).env("GARM_STOP_GRACE", "500ms"), &sim);
    let listener = garm_sim::archive::runner_runs(&running.home())[0].pid;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(listener), Signal::SIGSTOP).unwrap();
    running.signal(Signal::SIGTERM);
    assert_drained(&sim, &running.wait(FAST));
}

#[test]
fn signals_that_ask_for_nothing_cost_no_job() {
    use Signal::{SIGALRM, SIGIO, SIGPROF, SIGUSR1, SIGUSR2, SIGVTALRM, SIGWINCH, SIGXFSZ};
    let (sim, instance) = sim(RunnerScript::one_job(Duration::ZERO, Duration::from_secs(1)));
    let running = at_work(Boot::of(&instance), &sim);
    let all = [SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGWINCH, SIGXFSZ];
    for idle in all {
        running.signal(idle);
    }
    let ended = running.wait(LONG);
    assert_drained(&sim, &ended);
    let run = the_run(&ended);
    // What we ignore is none of the runner's business.
    let ignored = all.iter().filter(|idle| run.ignored & (1 << (**idle as i32 - 1)) != 0);
    assert_eq!((run.signals.len(), ignored.count()), (0, 0), "{run:?}");
}

#[test]
fn a_job_that_comes_just_after_the_sigint_is_waited_for() {
    let script = RunnerScript::new()
        .job_after_sigint(Duration::from_millis(200))
        .job(Duration::from_millis(800));
    let (sim, instance) = sim(script);
    // The grace is shorter than the job.
    let running = idle(Boot::of(&instance).env("GARM_STOP_GRACE", "500ms"), &sim);
    running.signal(Signal::SIGTERM);
    let ended = running.wait(LONG);
    assert_drained(&sim, &ended);
    let run = the_run(&ended);
    assert_eq!(run.signals, [2], "{run:?}");
    assert!(run.notes.contains(&"job ended Succeeded".to_owned()), "{run:?}");
}

#[test]
fn a_further_job_of_a_runner_that_stays_is_waited_for_like_the_first() {
    let script = RunnerScript::one_job(Duration::from_millis(300), Duration::from_millis(800));
    let sim = scripted(script.jobs(2));
    let instance = sim.create(InstanceSpec::with_token());
    let boot = Boot::of(&instance).env("GARM_RUNNER_EPHEMERAL", "false");
    let running = boot.env("GARM_STOP_GRACE", "300ms").spawn();
    let started = || sim.runner_events().iter().filter(|e| e.event == "job_started").count();
    wait(&running, &sim, "the second job runs", || started() == 2);
    running.signal(Signal::SIGTERM);
    let ended = running.wait(LONG);
    let scene = Scene(&sim, &ended);
    assert_eq!(ended.code, 0, "{scene}");
    let run = the_run(&ended);
    let results: Vec<_> = run.notes.iter().filter(|note| note.starts_with("job ended")).collect();
    assert_eq!(results, ["job ended Succeeded"; 2], "{scene}");
    // It stays, so it is told to leave when its job is done.
    assert_eq!(run.signals, [2], "{scene}");
}

#[test]
fn a_second_signal_stops_the_job() {
    let (sim, instance) = sim(RunnerScript::one_job(Duration::ZERO, FOR_EVER).job_children(3));
    let running = at_work(Boot::of(&instance), &sim);
    ask(&running, &sim, Signal::SIGTERM);
    running.signal(Signal::SIGTERM);
    // The job's children ignore SIGTERM, so they are given their time.
    let ended = running.wait(FAST);
    let scene = Scene(&sim, &ended);
    assert_eq!((ended.code, posted(&sim, "failed")), (34, 0), "{scene}");
    let run = the_run(&ended);
    assert!(run.notes.contains(&"job ended Canceled".to_owned()), "{run:?}");
    assert_nothing_left(&sim, &ended);
}

#[test]
fn a_drain_that_has_taken_its_time_stops_the_job() {
    let (sim, instance) = sim(RunnerScript::one_job(Duration::ZERO, FOR_EVER));
    let boot = Boot::of(&instance).arg("--drain-timeout").arg("300ms");
    let running = at_work(boot, &sim);
    running.signal(Signal::SIGTERM);
    let ended = running.wait(FAST);
    assert_eq!(ended.code, 34, "{}", Scene(&sim, &ended));
    assert_eq!(the_run(&ended).signals, [2], "{}", Scene(&sim, &ended));
    assert_nothing_left(&sim, &ended);
}

#[test]
fn a_runner_that_does_not_heed_signals_is_ended_within_the_grace() {
    let deaf = RunnerScript::new().ignore_sigint();
    let stone = RunnerScript::new().ignore_signals();
    for script in [deaf, stone] {
        let (sim, instance) = sim(script);
        let running = idle(Boot::of(&instance).env("GARM_STOP_GRACE", "300ms"), &sim);
        running.signal(Signal::SIGTERM);
        let ended = running.wait(FAST);
        assert_drained(&sim, &ended);
    }
}

#[test]
fn a_job_that_does_not_heed_signals_is_ended_when_asked_for() {
    let script = RunnerScript::one_job(Duration::ZERO, FOR_EVER).ignore_signals();
    let (sim, instance) = sim(script);
    let running = at_work(Boot::of(&instance).env("GARM_STOP_GRACE", "300ms"), &sim);
    ask(&running, &sim, Signal::SIGTERM);
    running.signal(Signal::SIGTERM);
    let ended = running.wait(FAST);
    assert_eq!(ended.code, 34, "{}", Scene(&sim, &ended));
    assert_nothing_left(&sim, &ended);
}

#[test]
fn signals_that_were_ignored_or_blocked_before_us_drain_all_the_same() {
    let ignored = ["sh", "-c", "trap '' INT TERM HUP; exec \"$@\"", "sh"];
    let blocked = ["env", "--block-signal=INT,TERM,HUP"];
    for through in [&ignored[..], &blocked[..]] {
        for signal in [Signal::SIGTERM, Signal::SIGINT] {
            let (sim, instance) = sim(RunnerScript::new());
            let running = idle(Boot::of(&instance).through(through), &sim);
            running.signal(signal);
            let ended = running.wait(FAST);
            assert_drained(&sim, &ended);
            let run = the_run(&ended);
            assert_eq!(run.signals, [2], "{through:?} {signal} {run:?}");
            // SIGPIPE is Rust's own doing in the fake Listener; from 32 on they are the C library's, and
            // whoever started the tests may have left them in any state.
            let named = 0x7fff_ffff & !(1 << 12);
            assert_eq!((run.blocked, run.ignored & named), (0, 0), "{run:?}");
        }
    }
}

#[test]
fn a_signal_while_garm_does_not_answer_idle_drains_the_runner() {
    let (sim, instance) = sim(RunnerScript::new());
    sim.fault(Fault::new(Endpoint::Status).posting("idle").kind(FaultKind::HangForever));
    let running = Boot::of(&instance).spawn();
    wait(&running, &sim, "idle is posted", || posted(&sim, "idle") > 0);
    running.signal(Signal::SIGTERM);
    let ended = running.wait(FAST);
    let scene = Scene(&sim, &ended);
    assert_eq!((ended.code, the_run(&ended).signals), (0, vec![2]), "{scene}");
    assert!(posted(&sim, "failed") <= 1, "{scene}");
    assert_nothing_left(&sim, &ended);
}

#[test]
fn a_job_goes_on_while_garm_does_not_answer_idle() {
    let (sim, instance) = sim(RunnerScript::one_job(Duration::ZERO, Duration::from_secs(1)));
    sim.fault(Fault::new(Endpoint::Status).posting("idle").kind(FaultKind::HangForever));
    let running = Boot::of(&instance).spawn();
    wait_for_note(&running, &sim, "job started");
    running.signal(Signal::SIGTERM);
    let ended = running.wait(LONG);
    let run = the_run(&ended);
    assert_eq!((ended.code, run.signals.len()), (0, 0), "{}", Scene(&sim, &ended));
    assert!(run.notes.contains(&"job ended Succeeded".to_owned()), "{run:?}");
    assert_nothing_left(&sim, &ended);
}

/// In a terminal of its own; what is written to its stdin is typed there.
fn at_a_terminal(boot: &Boot) -> std::process::Command {
    let inner = boot.command();
    let mut terminal = std::process::Command::new("script");
    // A program of its own for every word: nothing is quoted by hand.
    let words = "exec \"$PROGRAM\" $ARGUMENTS";
    let args: Vec<_> = inner.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
    terminal.args(["--quiet", "--flush", "--return", "--command", words, "/dev/null"]).env_clear();
    for (name, value) in inner.get_envs() {
        terminal.env(name, value.unwrap_or_default());
    }
    terminal.env("PROGRAM", inner.get_program()).env("ARGUMENTS", args.join(" "));
    terminal.env("SHELL", "/bin/sh").stdin(std::process::Stdio::piped());
    terminal.stdout(fs::File::create(screen(boot)).unwrap());
    terminal
}

/// What the terminal shows.
fn screen(boot: &Boot) -> std::path::PathBuf {
    boot.path("screen")
}

#[test]
fn ctrl_c_at_a_terminal_drains_and_once_more_stops() {
    use std::io::Write as _;
    for (twice, code, result) in [(false, 0, "Succeeded"), (true, 34, "Canceled")] {
        for init in [false, true] {
            let length = if twice { FOR_EVER } else { Duration::from_secs(2) };
            let (sim, instance) = sim(RunnerScript::one_job(Duration::from_millis(300), length));
            let boot = Boot::of(&instance).who(Who::Root);
            let boot = if init { boot.arg("--init") } else { boot };
            let mut terminal = at_a_terminal(&boot).spawn().unwrap();
            let mut keyboard = terminal.stdin.take().unwrap();
            let home = boot.home();
            let notes = || runner_runs(&home).first().map_or(vec![], |run| run.notes.clone());
            crate::support::wait_until("the job has started", || {
                notes().contains(&"job started".to_owned())
            });
            let mut ctrl_c =
                || keyboard.write_all(b"\x03").and_then(|()| keyboard.flush()).unwrap();
            ctrl_c();
            if twice {
                // Two at once would be one.
                let screen = screen(&boot);
                crate::support::wait_until("the first is heard", || {
                    fs::read_to_string(&screen).is_ok_and(|text| text.contains("asked to leave"))
                });
                ctrl_c();
            }
            let status = terminal.wait().unwrap();
            assert_eq!(
                status.code(),
                Some(code),
                "twice={twice} init={init}\n{}",
                sim.calls_table()
            );
            assert!(notes().contains(&format!("job ended {result}")), "{:?}", notes());
        }
    }
}
