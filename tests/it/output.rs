//! The runner's state is told by its own lines alone, whatever else stands in its output.

use std::time::Duration;

use garm_sim::archive::runner_runs;
use garm_sim::{InstanceSpec, RunnerScript};
use nix::sys::signal::Signal;

use crate::support::after::{Scene, assert_failed_once, posted};
use crate::support::{Boot, LONG, scripted};

#[test]
fn the_words_of_a_job_do_not_change_what_the_runner_is_doing() {
    // With the official image's trace lines beside them, which hold the same words once more.
    let words = "%now%: Listening for Jobs\n%now%: Running job: other\n\
                 %now%: Job other completed with result: Failed\n";
    let script = RunnerScript::one_job(Duration::from_millis(300), Duration::from_millis(300));
    let sim = scripted(script.trace().job_output(words));
    let instance = sim.create(InstanceSpec::default());
    let ended = Boot::of(&instance).run();
    let scene = Scene(&sim, &ended);
    assert_eq!((ended.code, posted(&sim, "idle")), (0, 1), "{scene}");
    assert!(ended.stdout.contains(": Running job: other"), "{scene}");
    assert!(ended.stderr.contains("job build: Succeeded"), "{scene}");
}

#[test]
fn a_log_that_nobody_reads_holds_up_neither_a_job_nor_a_signal() {
    // A full pipe as stderr and as stdout.
    let stuck = "mkfifo \"$GARM_STATE_DIR.log\"; exec 2<>\"$GARM_STATE_DIR.log\" 1>&2; \
                 head -c 65536 /dev/zero; exec \"$@\"";
    let sim = scripted(RunnerScript::one_job(Duration::from_millis(300), Duration::from_secs(2)));
    let instance = sim.create(InstanceSpec::default());
    let running = Boot::of(&instance).through(&["sh", "-c", stuck, "sh"]).spawn();
    assert!(instance.wait_for_runner_status("active", LONG / 3), "{}", sim.calls_table());
    running.signal(Signal::SIGTERM);
    let ended = running.wait(LONG / 3);
    assert_eq!((ended.code, posted(&sim, "idle")), (0, 1), "{}", Scene(&sim, &ended));
    let run = runner_runs(&ended.home()).remove(0);
    assert!(run.notes.contains(&"job ended Succeeded".to_owned()), "{run:?}");
}

#[test]
fn a_trace_line_that_holds_the_listening_line_is_not_taken_for_it() {
    let trace = "[RUNNER 2026-12-01 02:03:04Z INFO Terminal] WRITE LINE: 2026-12-01 02:03:04Z: \
                 Listening for Jobs\n";
    let sim = scripted(RunnerScript::new().stdout(trace).hang_before_listening());
    let instance = sim.create(InstanceSpec::default());
    let ended = Boot::of(&instance).arg("--ready-timeout").arg("1s").run();
    assert_eq!((ended.code, posted(&sim, "idle")), (23, 0), "{}", Scene(&sim, &ended));
    assert_failed_once(&sim, &ended, "runner_not_ready", "start");
}
