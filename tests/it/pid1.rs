//! The static binary as the first process of a container, and as a sub-reaper with `--init`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use garm_sim::archive::runner_runs;
use garm_sim::{
    ArchiveSpec, Endpoint, Fault, FaultKind, Instance, InstanceSpec, RunnerScript, Sim, SimOptions,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::after::{
    Scene, assert_failed_once, assert_nothing_left, posted, wait, wait_for_note, wait_for_status,
};
use crate::support::{Boot, LONG, Running, need_root, one_job, put_binary, read};

fn sim(script: RunnerScript) -> (Sim, Instance) {
    let sim =
        Sim::start(SimOptions { archive: ArchiveSpec::scripted(script), ..SimOptions::default() });
    let instance = sim.create(InstanceSpec::default());
    (sim, instance)
}

/// The static binary as PID 1, as root, its runner as the user `runner`.
fn container(instance: &Instance) -> Boot {
    let namespace = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    Boot::of(instance).as_root().with_static_binary().through(&namespace)
}

/// The first process of the namespace, as we see it from outside.
fn pid_1(running: &Running, sim: &Sim) -> Pid {
    let unshare = running.pid();
    let find = || {
        let children = read(Path::new(&format!("/proc/{unshare}/task/{unshare}/children")));
        let pid: i32 = children.trim().parse().ok()?;
        let exe = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        exe.ends_with("garm-bootstrap").then_some(Pid::from_raw(pid))
    };
    wait(running, sim, "there is a PID 1", || find().is_some());
    find().unwrap()
}

/// A field of `/proc/<pid>/status`.
fn field(pid: impl std::fmt::Display, name: &str) -> Option<String> {
    let status = read(Path::new(&format!("/proc/{pid}/status")));
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

/// The children of `parent`, as `(pid, state)`.
fn children(parent: Pid) -> Vec<(i32, String)> {
    let parent = parent.to_string();
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| field(pid, "PPid").as_ref() == Some(&parent))
        .filter_map(|pid| Some((pid, field(pid, "State")?)))
        .collect()
}

#[test]
fn as_pid_1_a_job_runs_and_the_agents_code_is_passed_on() {
    let script = RunnerScript::new;
    let table = [
        (one_job(), 0),
        (script().exit_after(Duration::ZERO), 30),
        (script().exit_before_listening().exit_code(7), 32),
        (script().exit_before_listening().kill_self(9), 34),
    ];
    for (script, code) in table {
        let (sim, instance) = sim(script);
        let ended = container(&instance).run();
        assert_eq!(ended.code, code, "{}", Scene(&sim, &ended));
        assert_nothing_left(&sim, &ended);
    }
}

#[test]
fn as_pid_1_it_reaps_orphans_while_the_runner_runs() {
    let script = RunnerScript::new().orphans(200).orphan(Duration::from_millis(20));
    let (sim, instance) = sim(script);
    let running = container(&instance).spawn();
    let init = pid_1(&running, &sim);
    wait_for_status(&running, &sim, "idle");
    wait(&running, &sim, "only the agent is left", || children(init).len() == 1);
    let agent = children(init).remove(0);
    assert!(!agent.1.starts_with('Z'), "{agent:?}");
    assert!(field(agent.0, "Name").is_some_and(|name| name.starts_with("garm-boot")));
    kill(init, Signal::SIGTERM).unwrap();
    let ended = running.wait(LONG);
    assert_eq!(ended.code, 0, "{}", Scene(&sim, &ended));
    assert_eq!(runner_runs(&ended.home())[0].signals, [2], "{}", Scene(&sim, &ended));
    assert_nothing_left(&sim, &ended);
}

#[test]
fn the_listeners_code_is_not_lost_among_orphans() {
    let script = RunnerScript::new().orphans(200).exit_after(Duration::ZERO).exit_code(7);
    let (sim, instance) = sim(script.orphan(Duration::from_millis(1)));
    for boot in [container(&instance), Boot::of(&instance).with_static_binary().arg("--init")] {
        let ended = boot.run();
        assert_eq!(ended.code, 32, "{}", Scene(&sim, &ended));
        assert_nothing_left(&sim, &ended);
        instance.set_runner_status("pending");
    }
}

#[test]
fn what_a_job_leaves_behind_does_not_outlive_pid_1() {
    let script = one_job().job_children(3).job_command("setsid sleep 3600 & exit 0");
    let (sim, instance) = sim(script);
    let ended = container(&instance).run();
    assert_eq!(ended.code, 0, "{}", Scene(&sim, &ended));
    assert_nothing_left(&sim, &ended);
}

#[test]
fn a_signal_to_pid_1_before_the_agent_is_up_is_not_lost() {
    let (sim, instance) = sim(RunnerScript::new());
    sim.fault(Fault::new(Endpoint::RunnerMetadata).kind(FaultKind::HangForever));
    let running = container(&instance).spawn();
    let init = pid_1(&running, &sim);
    // The kernel throws away what PID 1 neither blocks nor handles. It blocks first of all, and while
    // it waits for signals it has a child.
    wait(&running, &sim, "PID 1 blocks SIGTERM", || {
        let mask = field(init, "SigBlk").unwrap_or_default();
        let blocks = u64::from_str_radix(&mask, 16).is_ok_and(|mask| mask & (1 << 14) != 0);
        blocks || !children(init).is_empty()
    });
    kill(init, Signal::SIGTERM).unwrap();
    let ended = running.wait(LONG);
    assert_eq!((ended.code, posted(&sim, "idle")), (40, 0), "{}", Scene(&sim, &ended));
    assert_failed_once(&sim, &ended, "stopped", "discover");
    assert_nothing_left(&sim, &ended);
}

#[test]
fn as_pid_1_a_signal_waits_for_the_job_and_a_second_one_does_not() {
    for patient in [true, false] {
        let length = Duration::from_secs(if patient { 1 } else { 3600 });
        let (sim, instance) = sim(RunnerScript::one_job(Duration::ZERO, length));
        let running = container(&instance).spawn();
        wait_for_note(&running, &sim, "job started");
        let init = pid_1(&running, &sim);
        kill(init, Signal::SIGTERM).unwrap();
        if !patient {
            wait(&running, &sim, "the signal is heard", || {
                running.stderr().contains("asked to leave")
            });
            kill(init, Signal::SIGTERM).unwrap();
        }
        let ended = running.wait(LONG);
        assert_eq!(ended.code, if patient { 0 } else { 34 }, "{}", Scene(&sim, &ended));
        let result = if patient { "Succeeded" } else { "Canceled" };
        assert!(
            ended.journal().contains(&format!("job ended {result}")),
            "{}",
            Scene(&sim, &ended)
        );
        assert_nothing_left(&sim, &ended);
    }
}

/// A root with nothing in it but the binary, /proc, /dev/null, /tmp and a hosts file.
fn empty_root(instance: &Instance) -> Boot {
    // What is `work` outside is `/` inside, so the home and the state are where tests look for them.
    const ENTER: &str = "root=$1; shift 2; mount --bind /dev/null $root/dev/null && exec unshare \
                         --pid --fork --kill-child --root $root --mount-proc /garm-bootstrap \"$@\"";
    need_root();
    let boot = Boot::of(instance).as_root().with_static_binary();
    let root = boot.path("work");
    for folder in ["proc", "dev", "etc", "tmp"] {
        fs::create_dir(root.join(folder)).unwrap();
    }
    fs::write(root.join("dev/null"), "").unwrap();
    fs::write(root.join("etc/hosts"), "127.0.0.1 garm.in-the-hosts-file\n").unwrap();
    put_binary(&boot.path("garm-bootstrap"), &root.join("garm-bootstrap"));
    let root = root.to_str().unwrap();
    let enter = ["unshare", "--mount", "sh", "-c", ENTER, "sh", root];
    boot.through(&enter)
        .env("RUNNER_HOME", "/home")
        .env("GARM_STATE_DIR", "/state")
        .env("GARM_RUNTIME_DIR", "/run")
}

#[test]
fn in_an_empty_root_it_resolves_names_and_runs_a_job() {
    let (sim, instance) = sim(one_job());
    let mut boot = empty_root(&instance);
    for (name, value) in instance.env() {
        boot = boot.env(&name, &value.replace("127.0.0.1", "garm.in-the-hosts-file"));
    }
    let ended = boot.run();
    let scene = Scene(&sim, &ended);
    assert_eq!((ended.code, posted(&sim, "idle"), posted(&sim, "failed")), (0, 1, 0), "{scene}");
    assert!(ended.journal().contains("job ended Succeeded"), "{scene}");
    let hosts = sim.calls().into_iter().filter_map(|call| call.header("host").map(str::to_owned));
    assert!(hosts.into_iter().any(|host| host.starts_with("garm.in-the-hosts-file")), "{scene}");
    assert_nothing_left(&sim, &ended);
}

#[test]
fn with_init_it_reaps_and_ends_what_a_job_leaves_behind_without_being_pid_1() {
    let script = RunnerScript::one_job(Duration::ZERO, Duration::from_secs(3600));
    let leaves = "setsid sh -c 'trap \"\" TERM; sleep 3600' & exit 0";
    let script = script.orphans(50).orphan(Duration::from_millis(20)).job_command(leaves);
    let (sim, instance) = sim(script);
    let running = Boot::of(&instance).with_static_binary().arg("--init").spawn();
    wait_for_note(&running, &sim, "job started");
    let init = running.pid();
    wait(&running, &sim, "the orphans are reaped", || {
        let children = children(init);
        // The agent, and the daemon once its parent is gone.
        children.len() <= 2 && children.iter().all(|(_, state)| !state.starts_with('Z'))
    });
    kill(init, Signal::SIGTERM).unwrap();
    wait(&running, &sim, "the signal is heard", || running.stderr().contains("asked to leave"));
    kill(init, Signal::SIGTERM).unwrap();
    let ended = running.wait(LONG);
    assert_eq!(ended.code, 34, "{}", Scene(&sim, &ended));
    assert_nothing_left(&sim, &ended);
}
