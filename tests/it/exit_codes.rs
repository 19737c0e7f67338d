//! Every exit code, reached by a real boot, and what GARM and the platform see of it.

use std::fs;
use std::time::Duration;

use garm_bootstrap::exit::Exit;
use garm_sim::{
    ArchiveSpec, Checksum, Endpoint, Fault, FaultKind, Instance, InstanceSpec, RunnerScript, Sim,
    SimOptions,
};
use nix::sys::signal::Signal;

use crate::support::after::{
    Scene, assert_failed_once, assert_nothing_left, end_the_idle_listener, posted,
    registration_files, statuses, wait_for_start,
};
use crate::support::{Boot, Ended, Running, Who, one_job, own_all};

/// No case has a deadline of more than four seconds, and what is still to be said takes five more.
const ENOUGH: Duration = Duration::from_secs(16);

/// A boot that is to end with `exit`.
struct Case {
    exit: Exit,
    told: Told,
    spec: InstanceSpec,
    archive: ArchiveSpec,
    faults: fn(&Sim, &Instance),
    boot: fn(Boot) -> Boot,
    meanwhile: fn(&Running, &Sim),
    only: Option<Who>,
}

/// What GARM has heard in the end.
enum Told {
    /// No call reached it, or none was answered.
    Nothing,
    /// `idle`, and nothing after it.
    Idle,
    /// One `failed`: its phase, and words of its text. The reason follows from the exit code.
    Failed(&'static str, &'static str),
}

fn case(exit: Exit, told: Told) -> Case {
    Case {
        exit,
        told,
        spec: InstanceSpec::default(),
        archive: ArchiveSpec::scripted(one_job()),
        faults: |_, _| {},
        boot: |boot| boot,
        meanwhile: |_, _| {},
        only: None,
    }
}

fn scripted(script: RunnerScript) -> ArchiveSpec {
    ArchiveSpec::scripted(script)
}

/// A runner that ends before it listens.
fn stillborn(script: RunnerScript) -> ArchiveSpec {
    scripted(script.exit_before_listening())
}

fn cases() -> Vec<Case> {
    use Exit::{
        AlreadyRun, Configure, Dependencies, Done, Fetch, Internal, Killed, NoJob, NotReady,
        Refused, RegistrationGone, Stopped, Superseded, Unreachable, Usage, VersionRefused,
    };
    use Told::{Failed, Idle, Nothing};
    let script = RunnerScript::new;
    vec![
        case(Done, Idle),
        Case { spec: InstanceSpec::with_token(), ..case(Done, Idle) },
        Case {
            boot: |boot| boot.arg("--metadat-url").arg("http://g"),
            ..case(Usage, Failed("preflight", "--metadat-url"))
        },
        Case {
            boot: |boot| boot.arg("--stop-grace").arg("soon"),
            ..case(Usage, Failed("preflight", "stop-grace"))
        },
        Case {
            faults: |sim, _| sim.fault(Fault::new(Endpoint::Status).posting("installing")),
            boot: |boot| boot.arg("--deadline").arg("2s"),
            ..case(Unreachable, Failed("discover", "500"))
        },
        Case {
            // Longer than the deadline: a server that is silent must not be waited for.
            faults: |sim, _| {
                let silence = Fault::new(Endpoint::Status).posting("installing");
                sim.fault(silence.kind(FaultKind::HangForever));
            },
            boot: |boot| boot.arg("--deadline").arg("2s"),
            ..case(Unreachable, Failed("discover", "no answer"))
        },
        Case {
            faults: |sim, _| sim.garm_down(),
            boot: |boot| boot.arg("--deadline").arg("1s"),
            ..case(Unreachable, Nothing)
        },
        Case {
            faults: |_, instance| instance.delete(),
            ..case(Superseded, Failed("discover", "401"))
        },
        Case {
            faults: |sim, _| {
                let no = FaultKind::answer(403, "{\"error\":\"Access denied\"}");
                sim.fault(Fault::new(Endpoint::RunnerMetadata).kind(no));
            },
            ..case(Refused, Failed("discover", "Access denied"))
        },
        Case {
            spec: InstanceSpec { sha256: Checksum::Wrong, ..InstanceSpec::default() },
            ..case(Fetch, Failed("fetch", "sha256"))
        },
        Case {
            archive: ArchiveSpec {
                needs: vec!["libnowhere.so.7".into()],
                ..scripted(script().deps_exit(1).deps_text("the mirror is empty"))
            },
            boot: |boot| boot.arg("--deadline").arg("4s"),
            only: Some(Who::Root),
            ..case(Dependencies, Failed("dependencies", "libnowhere.so.7"))
        },
        Case {
            spec: InstanceSpec::with_token(),
            archive: scripted(script().config_exit(3).config_stderr("the forge is on strike")),
            boot: |boot| boot.arg("--deadline").arg("3s"),
            ..case(Configure, Failed("configure", "the forge is on strike"))
        },
        Case {
            archive: stillborn(script().exit_code(1).stderr("out of ideas\n")),
            ..case(NotReady, Failed("start", "out of ideas"))
        },
        Case {
            archive: scripted(script().hang_before_listening()),
            boot: |boot| boot.arg("--ready-timeout").arg("300ms"),
            ..case(NotReady, Failed("start", "did not listen in time"))
        },
        Case { archive: scripted(script()), meanwhile: end_the_idle_listener, ..case(NoJob, Idle) },
        Case {
            archive: scripted(script().signal_exit_code(5)),
            meanwhile: end_the_idle_listener,
            ..case(RegistrationGone, Idle)
        },
        Case {
            archive: scripted(script().signal_exit_code(7)),
            meanwhile: end_the_idle_listener,
            ..case(VersionRefused, Idle)
        },
        Case {
            archive: stillborn(script().exit_code(5)),
            ..case(RegistrationGone, Failed("start", "ended with code 5"))
        },
        Case {
            archive: stillborn(script().exit_code(7)),
            ..case(VersionRefused, Failed("start", "ended with code 7"))
        },
        Case {
            archive: stillborn(script().kill_self(9)),
            ..case(Killed, Failed("start", "signal 9"))
        },
        Case {
            archive: scripted(script().hang_before_listening()),
            meanwhile: |running, sim| {
                wait_for_start(running, sim, "run");
                running.signal(Signal::SIGTERM);
            },
            ..case(Stopped, Failed("start", "as asked"))
        },
        Case {
            // Nobody knows what a torn marker means, so it means the worst.
            boot: |boot| {
                let state = boot.path("work/state");
                fs::create_dir(&state).unwrap();
                fs::write(state.join("used.json"), "torn").unwrap();
                boot
            },
            ..case(AlreadyRun, Nothing)
        },
        Case {
            // Too few file descriptors for a runtime, and so for a word to GARM.
            boot: |boot| boot.through(&["prlimit", "--nofile=4"]),
            ..case(Internal, Nothing)
        },
    ]
}

#[test]
fn every_exit_code_is_reached_but_the_limits() {
    let cases = cases();
    let missing: Vec<_> =
        Exit::ALL.into_iter().filter(|exit| cases.iter().all(|case| case.exit != *exit)).collect();
    assert_eq!(missing, [Exit::LimitPassed], "a limit can be set, and no boot here reaches it");
}

#[test]
fn each_exit_code_means_what_garm_was_told_as_a_plain_user() {
    all_at_once(Who::Plain);
}

#[test]
fn each_exit_code_means_what_garm_was_told_as_root() {
    all_at_once(Who::Root);
}

fn all_at_once(who: Who) {
    let cases = cases().into_iter().filter(|case| case.only.is_none_or(|only| only == who));
    std::thread::scope(|scope| {
        let running: Vec<_> = cases.map(|case| scope.spawn(move || case.holds(who))).collect();
        let failed = running.into_iter().filter_map(|case| case.join().err()).count();
        assert_eq!(failed, 0, "cases failed; each said why above");
    });
}

impl Case {
    fn holds(self, who: Who) {
        let sim = Sim::start(SimOptions { archive: self.archive, ..SimOptions::default() });
        let instance = sim.create(self.spec);
        (self.faults)(&sim, &instance);
        let boot = (self.boot)(Boot::of(&instance).who(who));
        if who == Who::Plain {
            own_all(&boot.path("work"));
        }
        let running = boot.spawn();
        (self.meanwhile)(&running, &sim);
        let ended = running.wait(ENOUGH);
        assert_eq!(
            ended.code,
            i32::from(self.exit.code()),
            "{:?}{}",
            self.exit,
            Scene(&sim, &ended)
        );
        self.told.holds(self.exit, &sim, &ended);
        assert_nothing_left(&sim, &ended);
        if matches!(self.exit, Exit::Done | Exit::Configure) {
            let files = registration_files(&ended.home());
            assert!(files.is_empty(), "{files:?}{}", Scene(&sim, &ended));
        }
    }
}

impl Told {
    fn holds(&self, exit: Exit, sim: &Sim, ended: &Ended) {
        let scene = Scene(sim, ended);
        let idle = posted(sim, "idle");
        match self {
            Self::Nothing => assert_eq!(statuses(sim).len(), 0, "{exit:?}{scene}"),
            Self::Idle => {
                assert_eq!((idle, posted(sim, "failed")), (1, 0), "{exit:?}{scene}");
                let last = statuses(sim).pop().map(|(status, _)| status);
                assert_eq!(last.as_deref(), Some("idle"), "{exit:?}{scene}");
            }
            Self::Failed(phase, says) => {
                assert_eq!(idle, 0, "{exit:?}{scene}");
                let message = assert_failed_once(sim, ended, reason(exit), phase);
                assert!(message.contains(says), "{message:?} says {says:?}{scene}");
                assert!(ended.stderr.contains(says), "stderr says {says:?}{scene}");
            }
        }
    }
}

/// The reasons that GARM's messages carry: a public contract, so they are written out once more.
fn reason(exit: Exit) -> &'static str {
    match exit {
        Exit::Usage => "bad_settings",
        Exit::Unreachable => "garm_unreachable",
        Exit::Superseded => "superseded",
        Exit::Refused => "garm_refused",
        Exit::Fetch => "runner_not_fetched",
        Exit::Dependencies => "dependencies_missing",
        Exit::Configure => "configure_failed",
        Exit::NotReady => "runner_not_ready",
        Exit::RegistrationGone => "registration_gone",
        Exit::VersionRefused => "version_refused",
        Exit::Killed => "killed",
        Exit::Stopped => "stopped",
        other => panic!("no case sends `failed` for {other:?}"),
    }
}
