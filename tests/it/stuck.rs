//! Being asked to leave while a boot stands still in one of its phases: it ends at once, and says so.

use std::fs;
use std::time::{Duration, Instant};

use garm_sim::{
    ArchiveSpec, Endpoint, Fault, FaultKind, InstanceSpec, RunnerScript, Sim, SimOptions,
};
use nix::sys::signal::Signal;

use crate::support::after::{
    Scene, assert_failed_once, assert_nothing_left, posted, registration_files, wait,
    wait_for_start, wait_for_status,
};
use crate::support::{Boot, FOR_EVER, LONG, Running, Who};

/// What a person at a terminal would call at once, on a machine that is busy with other tests.
pub const FAST: Duration = Duration::from_secs(6);

/// A boot that stands still in one of its phases.
struct Stuck {
    phase: &'static str,
    spec: InstanceSpec,
    archive: ArchiveSpec,
    fault: Option<Fault>,
    /// Whether the boot has come that far.
    there: fn(&Running, &Sim),
    who: Who,
}

fn stuck(phase: &'static str) -> Stuck {
    Stuck {
        phase,
        spec: InstanceSpec::default(),
        archive: ArchiveSpec::default(),
        fault: None,
        there: |_, _| {},
        who: Who::Plain,
    }
}

fn hangs(endpoint: Endpoint) -> Option<Fault> {
    Some(Fault::new(endpoint).kind(FaultKind::HangForever))
}

fn wait_for_call(running: &Running, sim: &Sim, endpoint: Endpoint) {
    wait(running, sim, &format!("{endpoint:?} is called"), || {
        sim.calls().iter().any(|call| call.endpoint == endpoint)
    });
}

fn stuck_boots() -> Vec<Stuck> {
    let script = RunnerScript::new;
    let scripted = ArchiveSpec::scripted;
    vec![
        Stuck {
            fault: Some(
                Fault::new(Endpoint::Status).posting("installing").kind(FaultKind::HangForever),
            ),
            there: |running, sim| wait_for_call(running, sim, Endpoint::Status),
            ..stuck("discover")
        },
        Stuck {
            fault: Some(Fault::new(Endpoint::Status).posting("installing")),
            there: |running, sim| wait_for_status(running, sim, "installing"),
            ..stuck("discover")
        },
        Stuck {
            fault: hangs(Endpoint::RunnerMetadata),
            there: |running, sim| wait_for_call(running, sim, Endpoint::RunnerMetadata),
            ..stuck("discover")
        },
        Stuck {
            fault: hangs(Endpoint::Download),
            there: |running, sim| wait_for_call(running, sim, Endpoint::Download),
            ..stuck("fetch")
        },
        Stuck {
            fault: Some(
                Fault::new(Endpoint::Download).kind(FaultKind::SlowBody { bytes_per_sec: 120_000 }),
            ),
            there: |running, sim| {
                wait_for_call(running, sim, Endpoint::Download);
                let work = running.home().with_file_name("");
                wait(running, sim, "the runner is being unpacked", || {
                    let names = fs::read_dir(&work).unwrap().flatten();
                    let mut partial =
                        names.filter(|e| e.file_name().to_string_lossy().contains(".partial-"));
                    partial.any(|e| fs::read_dir(e.path()).is_ok_and(|dir| dir.count() > 0))
                });
            },
            ..stuck("fetch")
        },
        Stuck {
            fault: hangs(Endpoint::Credentials),
            there: |running, sim| wait_for_call(running, sim, Endpoint::CredentialsRunner),
            ..stuck("fetch")
        },
        Stuck {
            spec: InstanceSpec::with_token(),
            fault: hangs(Endpoint::RegistrationToken),
            there: |running, sim| wait_for_call(running, sim, Endpoint::RegistrationToken),
            ..stuck("fetch")
        },
        Stuck {
            archive: ArchiveSpec {
                needs: vec!["libnowhere.so.7".into()],
                ..scripted(script().deps(FOR_EVER))
            },
            there: |running, sim| wait_for_start(running, sim, "sim-deps"),
            who: Who::Root,
            ..stuck("dependencies")
        },
        Stuck {
            archive: ArchiveSpec {
                needs: vec!["libnowhere.so.7".into()],
                ..scripted(script().deps_exit(1))
            },
            there: |running, sim| {
                wait(running, sim, "the script has failed", || {
                    running.stderr().contains("trying again")
                });
            },
            who: Who::Root,
            ..stuck("dependencies")
        },
        Stuck {
            spec: InstanceSpec::with_token(),
            archive: scripted(script().config(FOR_EVER)),
            there: |running, sim| wait_for_start(running, sim, "configure"),
            ..stuck("configure")
        },
        Stuck {
            spec: InstanceSpec::with_token(),
            archive: scripted(script().config_hang_hard()),
            there: |running, sim| wait_for_start(running, sim, "configure"),
            ..stuck("configure")
        },
        Stuck {
            spec: InstanceSpec::with_token(),
            archive: scripted(script().config_fail_times(9).config_writes_runner_then_fails()),
            there: |running, sim| {
                wait(running, sim, "config.sh has failed twice", || {
                    running.stderr().contains("(attempt 2)")
                });
            },
            ..stuck("configure")
        },
        Stuck {
            fault: hangs(Endpoint::SystemInfo),
            there: |running, sim| wait_for_call(running, sim, Endpoint::SystemInfo),
            ..stuck("introduce")
        },
        Stuck {
            archive: scripted(script().listen_after(FOR_EVER)),
            there: |running, sim| wait_for_start(running, sim, "run"),
            ..stuck("start")
        },
        Stuck {
            archive: scripted(script().exit_codes("2")),
            there: |running, sim| {
                wait(running, sim, "the next start is due", || {
                    running.stderr().contains("is started again")
                });
            },
            ..stuck("start")
        },
    ]
}

#[test]
fn a_signal_before_the_runner_is_ready_ends_any_phase_at_once() {
    std::thread::scope(|scope| {
        let running: Vec<_> = stuck_boots()
            .into_iter()
            .enumerate()
            .map(|(n, stuck)| scope.spawn(move || stuck.is_ended(n)))
            .collect();
        let failed = running.into_iter().filter_map(|case| case.join().err()).count();
        assert_eq!(failed, 0, "cases failed; each said why above");
    });
}

impl Stuck {
    fn is_ended(self, n: usize) {
        let Self { phase, spec, archive, fault, there, who } = self;
        let sim = Sim::start(SimOptions { archive, ..SimOptions::default() });
        let instance = sim.create(spec);
        if let Some(fault) = fault {
            sim.fault(fault);
        }
        let running = Boot::of(&instance).who(who).spawn();
        there(&running, &sim);
        let asked = Instant::now();
        running.signal(Signal::SIGTERM);
        let ended = running.wait(LONG);
        let took = asked.elapsed();
        let scene = Scene(&sim, &ended);
        assert_eq!(ended.code, 40, "case {n} {phase}{scene}");
        assert!(took < FAST, "case {n} {phase} took {took:?}{scene}");
        assert_failed_once(&sim, &ended, "stopped", phase);
        assert_eq!(posted(&sim, "idle"), 0, "case {n} {phase}{scene}");
        assert_nothing_left(&sim, &ended);
        if phase == "configure" {
            let files = registration_files(&ended.home());
            assert!(files.is_empty(), "case {n} {files:?}{scene}");
        }
    }
}
