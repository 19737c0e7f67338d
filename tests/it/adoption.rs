//! A runner outlives a crash of its agent, where a service manager keeps what the next one needs.
//!
//! The manager here is this test: it receives the descriptors over a real notify socket, kills the agent,
//! and starts another one with them, as systemd does (tests/it/systemd.rs has the real one).

use std::cell::{RefCell, RefMut};
use std::fs::File;
use std::io::{IoSliceMut, Read as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use garm_sim::archive::{RunnerStart, runner_runs};
use garm_sim::{Endpoint, Fault, FaultKind, Instance, InstanceSpec, RunnerScript, Sim};
use nix::sys::signal::Signal;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, UnixAddr, recvmsg};

use crate::support::after::{
    Scene, assert_nothing_left, posted, wait, wait_for_note, wait_for_status,
};
use crate::support::{Boot, Ended, FOR_EVER, LONG, Running, own_all, scripted};

const SECOND: Duration = Duration::from_secs(1);

/// What the service manager has heard and keeps.
#[derive(Clone, Default)]
struct Manager(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    socket: PathBuf,
    /// As systemd keeps them: the newest first, and several under one name.
    fds: Vec<(String, OwnedFd)>,
    said: Vec<String>,
    dir: Option<tempfile::TempDir>,
}

impl Manager {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        own_all(dir.path());
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        own_all(&path);
        let manager = Self::default();
        {
            let mut kept = manager.0.lock().unwrap();
            (kept.socket, kept.dir) = (path, Some(dir));
        }
        let theirs = manager.clone();
        // It ends with the test's process.
        std::thread::spawn(move || while theirs.hear(&socket) {});
        manager
    }

    fn hear(&self, socket: &UnixDatagram) -> bool {
        let mut text = [0; 4096];
        let mut buffers = [IoSliceMut::new(&mut text)];
        let mut space = nix::cmsg_space!([RawFd; 4]);
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let Ok(message) =
            recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut buffers, Some(&mut space), flags)
        else {
            return false;
        };
        let rights: Vec<_> = message.cmsgs().unwrap().collect();
        let length = message.bytes;
        let said = String::from_utf8_lossy(&text[..length]).into_owned();
        let mut kept = self.0.lock().unwrap();
        let name = said.lines().find_map(|line| line.strip_prefix("FDNAME=")).map(str::to_owned);
        for right in rights {
            if let ControlMessageOwned::ScmRights(fds) = right {
                let fd = unsafe_own(fds[0]);
                kept.fds.insert(0, (name.clone().unwrap(), fd));
            }
        }
        if said.starts_with("FDSTOREREMOVE=1") {
            kept.fds.retain(|(known, _)| Some(known) != name.as_ref());
        }
        kept.said.push(said);
        true
    }

    fn said(&self, what: &str) -> bool {
        self.0.lock().unwrap().said.iter().any(|said| said == what)
    }

    /// Reads from the runner's stdout until `words` have come: what a crashed agent had read, and not noted.
    fn read_until(&self, words: &str) {
        let kept = self.0.lock().unwrap();
        let (_, stdout) = kept.fds.iter().find(|(name, _)| name == "runner-stdout").unwrap();
        let (stdout, seen) = (File::from(stdout.try_clone().unwrap()), RefCell::default());
        crate::support::wait_until(words, || {
            let mut chunk = [0; 4096];
            // The agent has made it non-blocking.
            let mut seen: RefMut<'_, String> = seen.borrow_mut();
            if let Ok(count) = (&stdout).read(&mut chunk) {
                seen.push_str(&String::from_utf8_lossy(&chunk[..count]));
            }
            seen.contains(words)
        });
    }

    fn names(&self) -> Vec<String> {
        self.0.lock().unwrap().fds.iter().map(|(name, _)| name.clone()).collect()
    }

    fn keeps(&self) -> usize {
        self.0.lock().unwrap().fds.len()
    }

    /// A boot that this manager starts, with the descriptors that it keeps.
    fn boot(&self, boot: Boot) -> Running {
        self.boot_after("", boot)
    }

    /// The same, after the commands `first`.
    fn boot_after(&self, first: &str, boot: Boot) -> Running {
        let kept = self.0.lock().unwrap();
        let boot = boot.env("NOTIFY_SOCKET", kept.socket.to_str().unwrap());
        // A shell says its process id, which stays the program's; and keeps what it has inherited.
        let script = format!("{first}LISTEN_PID=$$ exec \"$@\"");
        let through = ["sh", "-c", &script, "sh"];
        let names: Vec<&str> = kept.fds.iter().map(|(name, _)| name.as_str()).collect();
        let boot = boot.through(&through).env("LISTEN_FDS", &names.len().to_string());
        let boot = boot.env("LISTEN_FDNAMES", &names.join(":"));
        let fds: Vec<&OwnedFd> = kept.fds.iter().map(|(_, fd)| fd).collect();
        boot.spawn_with_fds(&fds)
    }
}

#[expect(unsafe_code, reason = "a descriptor that was just received")]
fn unsafe_own(fd: RawFd) -> OwnedFd {
    // SAFETY: the kernel has made it for us a moment ago.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn started(script: RunnerScript) -> (Sim, Instance, Manager, Running) {
    let sim = scripted(script);
    let instance = sim.create(InstanceSpec::default());
    let manager = Manager::start();
    let running = manager.boot(Boot::of(&instance));
    (sim, instance, manager, running)
}

/// Kills the agent alone, and starts the next one.
fn crash(manager: &Manager, running: Running, instance: &Instance) -> Running {
    wait_for_three(manager);
    let killed = running.kill_alone();
    manager.boot(killed.again(instance))
}

fn wait_for_three(manager: &Manager) {
    crate::support::wait_until("the manager keeps all three", || manager.keeps() == 3);
}

fn only_run(sim: &Sim, ended: &Ended) -> RunnerStart {
    let mut runs = runner_runs(&ended.home());
    assert_eq!(runs.len(), 1, "one start of the Listener{}", Scene(sim, ended));
    runs.remove(0)
}

fn assert_job_done(sim: &Sim, ended: &Ended, manager: &Manager) {
    let scene = Scene(sim, ended);
    assert_eq!(ended.code, 0, "{scene}");
    assert_eq!((posted(sim, "idle"), posted(sim, "failed")), (1, 0), "{scene}");
    let run = only_run(sim, ended);
    assert!(run.signals.is_empty(), "{run:?}");
    assert!(run.notes.contains(&"job ended Succeeded".to_owned()), "{run:?}");
    assert_nothing_left(sim, ended);
    crate::support::wait_until("the manager keeps nothing", || manager.keeps() == 0);
    assert!(manager.said("STOPPING=1"), "{scene}");
}

#[test]
fn a_job_does_not_notice_that_its_agent_crashes_and_comes_back() {
    let script = RunnerScript::one_job(SECOND / 5, SECOND * 3).flood_lines_per_sec(200);
    let (sim, instance, manager, running) = started(script);
    wait_for_note(&running, &sim, "job started");
    wait(&running, &sim, "the job is noted", || manager.said("STATUS=running the job build"));
    let again = crash(&manager, running, &instance);
    wait(&again, &sim, "it is taken over", || again.stderr().contains("taking over the runner"));
    let ended = again.wait(LONG);
    assert_job_done(&sim, &ended, &manager);
    assert!(manager.said("READY=1"));
}

#[test]
fn the_runner_that_was_started_last_is_the_one_that_is_taken_over() {
    let script = RunnerScript::one_job(SECOND / 5, SECOND * 3).exit_codes("2,2,0");
    let (sim, instance, manager, running) = started(script);
    wait(&running, &sim, "the job is noted", || manager.said("STATUS=running the job build"));
    let again = crash(&manager, running, &instance);
    wait(&again, &sim, "it is taken over", || again.stderr().contains("taking over the runner"));
    let ended = again.wait(LONG);
    let scene = Scene(&sim, &ended);
    let runs = runner_runs(&ended.home());
    assert_eq!((ended.code, runs.len()), (0, 3), "{scene}");
    assert!(runs[2].notes.contains(&"job ended Succeeded".to_owned()), "{:?}{scene}", runs[2]);
    assert_nothing_left(&sim, &ended);
}

#[test]
fn a_second_crash_is_no_worse_than_the_first_one() {
    let (sim, instance, manager, running) = started(RunnerScript::one_job(SECOND / 5, SECOND * 4));
    wait_for_note(&running, &sim, "job started");
    let mut again = crash(&manager, running, &instance);
    for _ in 0..2 {
        wait(&again, &sim, "it is taken over", || again.stderr().contains("taking over"));
        again = crash(&manager, again, &instance);
    }
    let ended = again.wait(LONG);
    assert_job_done(&sim, &ended, &manager);
}

#[test]
fn a_job_that_comes_and_goes_while_no_agent_is_there_is_seen_all_the_same() {
    let (sim, instance, manager, running) = started(RunnerScript::one_job(SECOND * 2, SECOND / 10));
    wait(&running, &sim, "it is noted", || manager.said("STATUS=idle: waiting for a job"));
    wait_for_three(&manager);
    let killed = running.kill_alone();
    crate::support::wait_until("the runner has ended", || {
        runner_runs(&killed.home())[0].exit.is_some()
    });
    let ended = manager.boot(killed.again(&instance)).wait(LONG);
    assert_job_done(&sim, &ended, &manager);
}

#[test]
fn an_idle_runner_that_was_taken_over_is_drained_as_any_other() {
    let (sim, instance, manager, running) = started(RunnerScript::new());
    wait_for_status(&running, &sim, "idle");
    wait(&running, &sim, "it is noted", || manager.said("STATUS=idle: waiting for a job"));
    let again = crash(&manager, running, &instance);
    wait(&again, &sim, "it is taken over", || again.stderr().contains("taking over"));
    again.signal(Signal::SIGTERM);
    let ended = again.wait(LONG);
    let scene = Scene(&sim, &ended);
    assert_eq!((ended.code, only_run(&sim, &ended).signals), (0, vec![2]), "{scene}");
    assert_nothing_left(&sim, &ended);
}

#[test]
fn an_idle_that_was_not_told_before_the_crash_is_told_after_it() {
    let sim = scripted(RunnerScript::one_job(SECOND * 4, SECOND / 10));
    let instance = sim.create(InstanceSpec::default());
    sim.fault(Fault::new(Endpoint::Status).posting("idle").kind(FaultKind::HangForever));
    let manager = Manager::start();
    let running = manager.boot(Boot::of(&instance));
    wait(&running, &sim, "idle is on its way", || posted(&sim, "idle") == 1);
    wait_for_three(&manager);
    let killed = running.kill_alone();
    sim.clear_faults();
    let ended = manager.boot(killed.again(&instance)).wait(LONG);
    let scene = Scene(&sim, &ended);
    assert_eq!((ended.code, posted(&sim, "idle")), (0, 2), "{scene}");
    assert_eq!(only_run(&sim, &ended).signals, Vec::<i32>::new(), "{scene}");
}

#[test]
fn a_job_whose_beginning_was_read_and_not_noted_is_waited_for() {
    let (sim, instance, manager, running) = started(RunnerScript::one_job(SECOND, SECOND * 4));
    wait(&running, &sim, "it is noted", || manager.said("STATUS=idle: waiting for a job"));
    wait_for_three(&manager);
    let killed = running.kill_alone();
    manager.read_until("Running job: build\n");
    let again = manager.boot(killed.again(&instance));
    wait(&again, &sim, "it is taken over", || again.stderr().contains("taking over"));
    again.signal(Signal::SIGTERM);
    wait(&again, &sim, "it has heard", || again.stderr().contains("asked to leave"));
    assert_job_done(&sim, &again.wait(LONG), &manager);
}

#[test]
fn a_job_whose_end_was_read_and_not_noted_is_told_as_done() {
    let (sim, instance, manager, running) = started(RunnerScript::one_job(SECOND / 5, SECOND * 2));
    wait(&running, &sim, "it is noted", || manager.said("STATUS=running the job build"));
    wait_for_three(&manager);
    let killed = running.kill_alone();
    manager.read_until("completed with result: Succeeded\n");
    assert_job_done(&sim, &manager.boot(killed.again(&instance)).wait(LONG), &manager);
}

#[test]
fn an_order_to_leave_outlives_the_agent_that_was_given_it() {
    // Idle, and deaf to the first step.
    let (sim, instance, manager, running) = started(RunnerScript::new().ignore_sigint());
    wait(&running, &sim, "it is noted", || manager.said("STATUS=idle: waiting for a job"));
    running.signal(Signal::SIGTERM);
    wait(&running, &sim, "it is interrupted", || running.stderr().contains("SIGINT"));
    let ended = crash(&manager, running, &instance).wait(LONG / 3);
    let scene = Scene(&sim, &ended);
    assert_eq!((ended.code, only_run(&sim, &ended).signals), (0, vec![15]), "{scene}");
    assert_nothing_left(&sim, &ended);
}

#[test]
fn a_job_that_came_while_a_drain_had_no_agent_is_finished() {
    let script = RunnerScript::new().job_after_sigint(SECOND).job(SECOND * 7);
    let sim = scripted(script);
    let (instance, manager) = (sim.create(InstanceSpec::default()), Manager::start());
    let graced = |boot: Boot| boot.env("GARM_STOP_GRACE", "2s");
    let running = manager.boot(graced(Boot::of(&instance)));
    wait(&running, &sim, "it is noted", || manager.said("STATUS=idle: waiting for a job"));
    running.signal(Signal::SIGTERM);
    wait(&running, &sim, "it is interrupted", || running.stderr().contains("SIGINT"));
    wait_for_three(&manager);
    let home = running.home();
    let killed = running.kill_alone();
    crate::support::wait_until("the job has started", || {
        runner_runs(&home)[0].notes.contains(&"job started".to_owned())
    });
    // The grace of the interruption has passed.
    std::thread::sleep(SECOND * 3 / 2);
    let ended = manager.boot(graced(killed.again(&instance))).wait(LONG / 2);
    let scene = Scene(&sim, &ended);
    let run = only_run(&sim, &ended);
    assert_eq!((ended.code, run.signals), (0, vec![2]), "{scene}");
    assert!(run.notes.contains(&"job ended Succeeded".to_owned()), "{:?}{scene}", run.notes);
}

#[test]
fn an_agent_that_is_killed_between_the_end_and_its_telling_leaves_the_telling_to_the_next_one() {
    // Nobody reads our stdout, so the last lines are waited for.
    let stuck = "mkfifo \"$GARM_STATE_DIR.out\"; exec 9<>\"$GARM_STATE_DIR.out\" 1>&9 9>&-; \
                 head -c 65536 /dev/zero; ";
    let sim = scripted(RunnerScript::one_job(SECOND / 5, SECOND));
    let (instance, manager) = (sim.create(InstanceSpec::default()), Manager::start());
    let running = manager.boot_after(stuck, Boot::of(&instance));
    wait(&running, &sim, "the end is known", || running.stderr().contains("job build: Succeeded"));
    let ended = manager.boot(running.kill_alone().again(&instance)).wait(LONG / 2);
    assert_job_done(&sim, &ended, &manager);
}

#[test]
fn an_idle_that_garm_has_not_taken_is_told_again_after_a_crash() {
    let sim = scripted(RunnerScript::new());
    let instance = sim.create(InstanceSpec::default());
    let refusal = FaultKind::answer(400, "not now");
    sim.fault(Fault::new(Endpoint::Status).posting("idle").kind(refusal));
    let manager = Manager::start();
    let running = manager.boot(Boot::of(&instance));
    wait(&running, &sim, "it goes on without", || {
        manager.said("STATUS=the runner is up; GARM has not taken it as idle")
    });
    sim.clear_faults();
    let refused = posted(&sim, "idle");
    let again = crash(&manager, running, &instance);
    wait_for_status(&again, &sim, "idle");
    assert!(instance.wait_for_runner_status("idle", LONG));
    // And now it is known.
    wait(&again, &sim, "it is noted", || manager.said("STATUS=idle: waiting for a job"));
    let again = crash(&manager, again, &instance);
    wait(&again, &sim, "it is taken over", || again.stderr().contains("taking over"));
    again.signal(Signal::SIGTERM);
    let ended = again.wait(LONG);
    assert_eq!((ended.code, posted(&sim, "idle")), (0, refused + 1), "{}", Scene(&sim, &ended));
}

#[test]
fn a_registration_that_no_job_has_used_is_removed_after_a_crash_too() {
    let sim = scripted(RunnerScript::new());
    let instance = sim.create(InstanceSpec::with_token());
    let manager = Manager::start();
    let running = manager.boot(Boot::of(&instance));
    wait(&running, &sim, "it is noted", || manager.said("STATUS=idle: waiting for a job"));
    let names = manager.names();
    assert!(names.iter().any(|name| name.starts_with("token-")), "{names:?}");
    let again = manager.boot(running.kill_alone().again(&instance));
    wait(&again, &sim, "it is taken over", || again.stderr().contains("taking over"));
    assert_eq!(sim.registrations().len(), 1);
    again.signal(Signal::SIGTERM);
    let ended = again.wait(LONG);
    let scene = Scene(&sim, &ended);
    assert_eq!((ended.code, sim.registrations().len()), (0, 0), "{scene}");
    crate::support::wait_until("the manager keeps nothing", || manager.keeps() == 0);
}

#[test]
fn no_token_is_kept_beside_a_job() {
    let sim = scripted(RunnerScript::one_job(SECOND / 5, SECOND * 2));
    let instance = sim.create(InstanceSpec::with_token());
    let manager = Manager::start();
    let running = manager.boot(Boot::of(&instance));
    wait(&running, &sim, "the job is noted", || manager.said("STATUS=running the job build"));
    wait_for_three(&manager);
    let names = manager.names();
    assert!(names.iter().all(|name| name.starts_with("runner-")), "{names:?}");
    assert_job_done(&sim, &running.wait(LONG), &manager);
}

#[test]
fn the_time_of_a_drain_counts_on_through_a_crash() {
    let sim = scripted(RunnerScript::one_job(SECOND / 5, FOR_EVER));
    let instance = sim.create(InstanceSpec::default());
    let manager = Manager::start();
    let limit = |boot: Boot| boot.env("GARM_DRAIN_TIMEOUT", "8s");
    let running = manager.boot(limit(Boot::of(&instance)));
    wait_for_note(&running, &sim, "job started");
    wait(&running, &sim, "the job is noted", || manager.said("STATUS=running the job build"));
    running.signal(Signal::SIGTERM);
    wait(&running, &sim, "it waits", || running.stderr().contains("its job is waited for"));
    wait_for_three(&manager);
    std::thread::sleep(SECOND * 4);
    let began = std::time::Instant::now();
    let ended = manager.boot(limit(running.kill_alone().again(&instance))).wait(LONG / 3);
    let scene = Scene(&sim, &ended);
    assert_eq!((ended.code, only_run(&sim, &ended).signals), (34, vec![2]), "{scene}");
    assert!(began.elapsed() < SECOND * 7, "it took {:?}{scene}", began.elapsed());
}

#[test]
fn the_time_of_a_job_counts_on_through_a_crash() {
    let sim = scripted(RunnerScript::one_job(SECOND / 5, FOR_EVER));
    let instance = sim.create(InstanceSpec::default());
    let manager = Manager::start();
    let limit = |boot: Boot| boot.env("GARM_JOB_LIMIT", "8s");
    let running = manager.boot(limit(Boot::of(&instance)));
    wait_for_note(&running, &sim, "job started");
    wait_for_three(&manager);
    std::thread::sleep(SECOND * 4);
    let began = std::time::Instant::now();
    let ended = manager.boot(limit(running.kill_alone().again(&instance))).wait(LONG);
    let scene = Scene(&sim, &ended);
    assert_eq!(ended.code, 33, "{scene}");
    assert!(began.elapsed() < SECOND * 8, "it took {:?}{scene}", began.elapsed());
}

#[test]
fn without_what_the_manager_has_kept_a_runner_that_lives_is_left_alone() {
    let (sim, instance, manager, running) = started(RunnerScript::one_job(SECOND / 5, FOR_EVER));
    wait_for_note(&running, &sim, "job started");
    wait_for_three(&manager);
    let killed = running.kill_alone();
    manager.0.lock().unwrap().fds.clear();
    let ended = manager.boot(killed.again(&instance)).wait(LONG);
    let scene = Scene(&sim, &ended);
    assert_eq!(ended.code, 41, "{scene}");
    let run = only_run(&sim, &ended);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(run.pid), Signal::SIGKILL).unwrap();
}

#[test]
fn a_restart_with_broken_settings_neither_speaks_for_a_runner_that_lives_nor_ends_its_machine() {
    let (sim, instance, manager, running) = started(RunnerScript::one_job(SECOND / 5, SECOND * 6));
    wait(&running, &sim, "the job is noted", || manager.said("STATUS=running the job build"));
    wait_for_three(&manager);
    // The token has gone as well, so nobody knows which instance it is.
    let boot = running.kill_alone().again(&instance).env("GARM_DEADLINE", "soon");
    let mark = boot.path("work/ended");
    let command = format!("/usr/bin/touch {}", mark.display());
    let boot = boot.env("GARM_ON_EXIT", &command).without("BEARER_TOKEN");
    let ended = manager.boot(boot).wait(LONG);
    let scene = Scene(&sim, &ended);
    assert_eq!((ended.code, posted(&sim, "failed")), (2, 0), "{scene}");
    assert!(!mark.exists(), "{scene}");
    // And with good ones it is led on.
    assert_job_done(&sim, &manager.boot(ended.again(&instance)).wait(LONG), &manager);
}

#[test]
fn a_job_finds_nothing_of_the_service_manager() {
    let (sim, _instance, manager, running) = started(RunnerScript::one_job(SECOND / 5, SECOND / 5));
    let ended = running.wait(LONG);
    let run = only_run(&sim, &ended);
    for name in ["NOTIFY_SOCKET", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_USEC"] {
        assert_eq!(run.var(name), None, "{name}");
    }
    assert!(manager.said("READY=1"), "{}", Scene(&sim, &ended));
}
