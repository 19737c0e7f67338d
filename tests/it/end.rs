//! What is left to read when an instance has ended, and what becomes of its machine.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use garm_sim::{Endpoint, Fault, FaultKind, InstanceSpec, RunnerScript, Sim};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::after::{Scene, wait, wait_for_note, wait_for_status};
use crate::support::{Boot, Ended, LONG, Mounted, Running, good, read, scripted};

fn life(ended: &Ended) -> Value {
    serde_json::from_str(&read(&ended.state().join("state.json"))).unwrap_or_default()
}

#[test]
fn the_state_file_follows_the_runner_to_its_end() {
    let script = RunnerScript::one_job(Duration::from_millis(500), Duration::from_millis(800));
    let sim = scripted(script);
    let instance = sim.create(InstanceSpec::default());
    let running = Boot::of(&instance).spawn();
    let file = running.home().with_file_name("state").join("state.json");
    let status = |wanted: &str| {
        let text = read(&file);
        let now: Value = serde_json::from_str(&text).unwrap_or_default();
        now["status"] == wanted
    };
    for wanted in ["idle", "running"] {
        wait(&running, &sim, &format!("state.json says {wanted}"), || status(wanted));
    }
    let pid = running.pid().as_raw();
    let ended = running.wait(LONG);
    let life = life(&ended);
    let scene = Scene(&sim, &ended);
    assert_eq!(life["status"], "ended", "{life}{scene}");
    assert_eq!((&life["exit"], &life["phase"]), (&0.into(), &"supervise".into()), "{life}{scene}");
    assert_eq!((&life["pid"], &life["job"]), (&pid.into(), &"build".into()), "{life}");
    assert_eq!(life["agent_id"], instance.agent_id(), "{life}");
    assert!(life["reason"].is_null(), "{life}");
}

/// Starts it, and waits until `state.json` has said each of `wanted` in its turn.
fn followed(sim: &Sim, boot: Boot, wanted: &[(&str, Option<&str>)]) -> Running {
    let running = boot.spawn();
    let file = running.home().with_file_name("state").join("state.json");
    for (status, job) in wanted {
        wait(&running, sim, &format!("state.json says {status} {job:?}"), || {
            let now: Value = serde_json::from_str(&read(&file)).unwrap_or_default();
            now["status"] == *status && job.is_none_or(|job| now["job"] == job)
        });
    }
    running
}

#[test]
fn a_job_that_is_faster_than_the_answer_to_idle_stays_in_the_state_file() {
    let sim = scripted(RunnerScript::one_job(Duration::ZERO, Duration::from_secs(3)));
    let instance = sim.create(InstanceSpec::default());
    let late = FaultKind::Delay(Duration::from_secs(1));
    sim.fault(Fault::new(Endpoint::Status).posting("idle").kind(late));
    let running = followed(&sim, Boot::of(&instance), &[("running", None)]);
    let supervise = || {
        let life = read(&running.home().with_file_name("state").join("state.json"));
        life.contains("\"supervise\"").then_some(life)
    };
    wait(&running, &sim, "GARM has answered", || supervise().is_some());
    assert!(supervise().unwrap().contains("\"running\""), "{:?}", supervise());
    running.wait(LONG).expect(&sim, 0);
}

#[test]
fn the_state_file_follows_a_runner_that_stays_from_job_to_job() {
    let job = RunnerScript::one_job(Duration::from_millis(500), Duration::from_millis(500));
    let sim = scripted(job.jobs(2));
    let instance = sim.create(InstanceSpec::with_token());
    let boot = Boot::of(&instance).env("GARM_RUNNER_EPHEMERAL", "false");
    let states = [("running", Some("build")), ("idle", None), ("running", None), ("idle", None)];
    let running = followed(&sim, boot, &states);
    running.signal(Signal::SIGTERM);
    running.wait(LONG).expect(&sim, 0);
}

#[test]
fn a_full_state_folder_costs_neither_the_job_nor_its_end() {
    let script = RunnerScript::one_job(Duration::from_millis(1500), Duration::from_secs(1));
    let sim = scripted(script);
    let instance = sim.create(InstanceSpec::default());
    let boot = Boot::of(&instance).as_root();
    let state = boot.path("work/state");
    let disk = Mounted::tmpfs(&state, "64k");
    let running = boot.spawn();
    wait_for_status(&running, &sim, "idle");
    let fill = File::create(state.join("fill")).unwrap();
    while (&fill).write_all(&[0; 4096]).is_ok() {}
    let ended = running.wait(LONG).expect_job(&sim).expect_said(&sim, "No space left");
    assert!(ended.stderr.contains("job build: Succeeded"), "{}", ended.stderr);
    drop((fill, disk));
}

#[test]
fn a_boot_without_garm_leaves_its_reason_in_the_state_file_and_on_the_console() {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    sim.garm_down();
    // Any file may stand for the console: it is a device only to whoever is behind it.
    let script =
        "touch \"${1%/*}/console\"; mount --bind \"${1%/*}/console\" /dev/console; exec \"$@\"";
    let ended = Boot::of(&instance).in_namespace(script).arg("--deadline").arg("1s").run();
    let scene = Scene(&sim, &ended);
    assert_eq!(ended.code, 10, "{scene}");
    let life = life(&ended);
    assert_eq!(life["reason"], "garm_unreachable", "{life}{scene}");
    assert_eq!((&life["exit"], &life["phase"]), (&10.into(), &"discover".into()), "{life}{scene}");
    assert!(life["message"].as_str().is_some_and(|text| text.contains("refused")), "{life}{scene}");
    let console = read(&ended.dir.path().join("console"));
    assert!(
        console.contains("garm-bootstrap: [garm_unreachable] discover: failed to"),
        "{console}{scene}"
    );
    assert_eq!(console.trim().lines().count(), 1, "{console}");
    assert!(!console.contains(&instance.token()), "{console}");
}

#[test]
fn bad_settings_are_in_the_state_file_too() {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let ended = Boot::of(&instance).arg("--stop-grace").arg("soon").run();
    let life = life(&ended);
    assert_eq!((&life["reason"], &life["exit"]), (&"bad_settings".into(), &2.into()), "{life}");
    assert!(life["message"].as_str().is_some_and(|text| text.contains("stop-grace")), "{life}");
}

#[test]
fn a_second_start_leaves_the_first_ones_state_file_alone() {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let ended = Boot::of(&instance).run();
    let first = life(&ended);
    for words in [&[][..], &["--stop-grace", "soon"]] {
        let again = Boot::of(&instance);
        let state = ended.state();
        let again = again.env("GARM_STATE_DIR", state.to_str().unwrap());
        let again = words.iter().fold(again, Boot::arg).run();
        assert_ne!(again.code, 0, "{}", Scene(&sim, &again));
        assert_eq!(life(&ended), first);
    }
}

/// A program that notes that it ran, with what it was given, and the words that run it.
fn noting(boot: &Boot) -> String {
    let script = boot.path("at-the-end");
    let text = "#!/bin/sh\necho \"$* code=$GARM_BOOTSTRAP_EXIT_CODE reason=$GARM_BOOTSTRAP_REASON \
                token=$BEARER_TOKEN\" >>\"$(dirname \"$0\")/work/ran\"\n";
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    format!("{} now", script.display())
}

fn ran(ended: &Ended) -> String {
    read(&ended.dir.path().join("work/ran"))
}

#[test]
fn a_command_runs_at_the_very_end_after_the_ends_that_it_is_meant_for() {
    let cases = [("always", [true, true]), ("success", [true, false]), ("failure", [false, true])];
    for (when, runs) in cases {
        for (good_end, runs) in [true, false].into_iter().zip(runs) {
            let sim = good();
            let instance = sim.create(InstanceSpec::default());
            if !good_end {
                instance.delete();
            }
            let boot = Boot::of(&instance);
            let command = noting(&boot);
            let boot = boot.env("GARM_ON_EXIT", &command).env("GARM_ON_EXIT_WHEN", when);
            let ended = boot.run();
            let scene = Scene(&sim, &ended);
            assert_eq!(ended.code == 0, good_end, "{scene}");
            let said = match (runs, good_end) {
                (false, _) => "",
                (true, true) => "now code=0 reason=done token=\n",
                (true, false) => "now code=11 reason=superseded token=\n",
            };
            assert_eq!(ran(&ended), said, "{when}{scene}");
        }
    }
}

#[test]
fn bad_settings_do_not_keep_the_machine_from_its_end() {
    for bad in [["--stop-grace", "soon"], ["--stop-grase", "1s"]] {
        let sim = good();
        let instance = sim.create(InstanceSpec::default());
        let boot = Boot::of(&instance);
        let command = noting(&boot);
        let ended = boot.env("GARM_ON_EXIT", &command).arg(bad[0]).arg(bad[1]).run();
        assert_eq!(ended.code, 2, "{}", Scene(&sim, &ended));
        assert_eq!(ran(&ended), "now code=2 reason=bad_settings token=\n");
    }
}

#[test]
fn a_second_start_does_not_end_the_machine_of_the_first_one() {
    let script = RunnerScript::one_job(Duration::from_millis(100), Duration::from_secs(2));
    let sim = scripted(script);
    let instance = sim.create(InstanceSpec::default());
    let running = Boot::of(&instance).spawn();
    wait_for_note(&running, &sim, "job started");
    let state = running.home().with_file_name("state");
    for words in [&[][..], &["--stop-grace", "soon"]] {
        let boot = Boot::of(&instance);
        let command = noting(&boot);
        let boot = boot.env("GARM_ON_EXIT", &command);
        let boot = boot.env("GARM_STATE_DIR", state.to_str().unwrap());
        let second = words.iter().fold(boot, Boot::arg).run();
        assert_eq!(ran(&second), "", "{}", Scene(&sim, &second));
    }
    assert_eq!(running.wait(LONG).code, 0);
}

#[test]
fn a_command_that_fails_or_hangs_changes_no_exit_code() {
    for command in ["/bin/false", "/no/such/program", "/bin/sleep 600"] {
        let sim = good();
        let instance = sim.create(InstanceSpec::default());
        let running = Boot::of(&instance).env("GARM_ON_EXIT", command).spawn();
        if command.contains("sleep") {
            let begun = || running.stderr().contains("the end: running");
            wait(&running, &sim, "the command has begun", begun);
            running.signal(Signal::SIGTERM);
        }
        let ended = running.wait(Duration::from_secs(20));
        assert_eq!(ended.code, 0, "{command}{}", Scene(&sim, &ended));
    }
}

#[test]
fn the_machine_is_switched_off_through_its_service_manager() {
    // A systemd that only notes what it is asked for, in a namespace of its own.
    let fake = "mount -t tmpfs none /run; mkdir -p /run/systemd/system; \
                printf '#!/bin/sh\\necho \"$@\" >>%s/asked\\n' \"${1%/*}\" >/run/systemctl; \
                chmod 755 /run/systemctl; touch /run/mark; \
                mount --bind /run/systemctl /usr/bin/systemctl; exec \"$@\"";
    for (action, asks) in [("poweroff", "--no-block poweroff\n"), ("reboot", "--no-block reboot\n")]
    {
        let sim = scripted(RunnerScript::new());
        let instance = sim.create(InstanceSpec::default());
        assert!(std::path::Path::new("/usr/bin/systemctl").exists(), "systemd is installed");
        let running = Boot::of(&instance).in_namespace(fake).env("GARM_ON_EXIT", action).spawn();
        wait_for_status(&running, &sim, "idle");
        running.signal(Signal::SIGTERM);
        let ended = running.wait(LONG);
        let scene = Scene(&sim, &ended);
        assert_eq!(ended.code, 0, "{scene}");
        assert_eq!(read(&ended.dir.path().join("asked")), asks, "{scene}");
    }
}

#[test]
fn neither_a_plain_user_nor_a_container_switches_a_machine_off() {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let plain = Boot::of(&instance).env("GARM_ON_EXIT", "poweroff").run();
    assert_eq!(plain.code, 0);
    assert!(plain.stderr.contains("only root can"), "{}", Scene(&sim, &plain));
    let instance = sim.create(InstanceSpec::default());
    let boot = Boot::of(&instance).as_root().env("GARM_ON_EXIT", "poweroff");
    let inside = boot.through(&["unshare", "--pid", "--fork", "--mount-proc"]).run();
    assert_eq!(inside.code, 0, "{}", Scene(&sim, &inside));
    assert!(inside.stderr.contains("this is a container"), "{}", Scene(&sim, &inside));
}
