//! The unit in a real systemd, which is the first process of a container.
//!
//! A [`Machine`] is one booted container in which several instances live one after the other: each has folders
//! of its own, and the unit is the project's, as it is in `systemd/`.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use garm_sim::archive::{RunnerStart, runner_runs};
use garm_sim::{Instance, InstanceSpec, RunnerScript, Sim};
use tempfile::TempDir;

use crate::support::after::posted;
use crate::support::page::Page;
use crate::support::podman::{BINARY, Container};
use crate::support::{LONG, scripted, static_binary, wait_until};

const UNIT: &str = "garm-bootstrap.service";

struct Machine {
    container: Container,
    shared: TempDir,
    lives: Cell<u32>,
}

/// One instance on a machine.
struct Life<'a> {
    machine: &'a Machine,
    sim: Sim,
    instance: Instance,
    home: PathBuf,
}

impl Machine {
    fn boot() -> Self {
        let shared = tempfile::Builder::new().prefix("garm-it-").tempdir_in("/tmp").unwrap();
        fs::set_permissions(shared.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let container = Container::systemd(|it| it.volume(shared.path(), "/srv/shared"));
        // A file that can be replaced, as on a machine.
        container.copy_in(&static_binary(), BINARY);
        let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd").join(UNIT);
        container.copy_in(&unit, "/etc/systemd/system/");
        // A unit that nothing wants is forgotten at its end, its exit code with it.
        container.sh(&format!(
            "useradd -m runner; mkdir -p /etc/garm-bootstrap; systemctl -q enable {UNIT}"
        ));
        Self { container, shared, lives: Cell::new(0) }
    }

    fn sh(&self, script: &str) -> String {
        self.container.sh(script)
    }

    /// A new instance, configured as docs/systemd.md tells it, and not started.
    fn life(&self, script: RunnerScript) -> Life<'_> {
        let sim = scripted(script);
        let instance = sim.create(InstanceSpec::default());
        let n = self.lives.get();
        self.lives.set(n + 1);
        let life = self.shared.path().join(n.to_string());
        fs::create_dir(&life).unwrap();
        let inside = format!("/srv/shared/{n}");
        let env = instance.env();
        let value = |name: &str| &env.iter().find(|(known, _)| known == name).unwrap().1;
        let config = format!(
            "metadata-url = \"{}\"\ncallback-url = \"{}\"\nhome = \"{inside}/home\"\n\
             state-dir = \"{inside}/state\"\nstop-grace = \"5s\"\n",
            value("METADATA_URL"),
            value("CALLBACK_URL"),
        );
        fs::write(life.join("config.toml"), config).unwrap();
        fs::write(life.join("token"), value("BEARER_TOKEN")).unwrap();
        self.sh(&format!(
            "systemctl stop {UNIT}; systemctl reset-failed; \
             install -m 600 {inside}/config.toml {inside}/token /etc/garm-bootstrap/"
        ));
        Life { machine: self, sim, instance, home: life.join("home") }
    }
}

impl Life<'_> {
    /// Returns when systemd takes the unit for started.
    fn start(&self) -> &Self {
        self.machine.sh(&format!("systemctl start {UNIT}"));
        self
    }

    fn start_in_background(&self) -> &Self {
        self.machine.sh(&format!("systemctl start --no-block {UNIT}"));
        self
    }

    fn show(&self, property: &str) -> String {
        let shown = self.machine.sh(&format!("systemctl show --value -p {property} {UNIT}"));
        shown.trim().to_owned()
    }

    fn wait_shown(&self, property: &str, value: &str) {
        wait_until(&format!("{property} is {value}"), || {
            std::thread::sleep(Duration::from_millis(50));
            self.show(property) == value
        });
    }

    fn signal_agent(&self, signal: &str) -> String {
        let pid = self.show("MainPID");
        assert_ne!(pid, "0", "{}", self.story());
        self.machine.sh(&format!("kill -{signal} {pid}"));
        pid
    }

    /// Kills the agent, and waits until another one has the runner.
    fn crash(&self) {
        let restarts: u32 = self.show("NRestarts").parse().unwrap();
        self.signal_agent("KILL");
        self.wait_shown("NRestarts", &(restarts + 1).to_string());
        self.wait_shown("ActiveState", "active");
    }

    fn wait_for_job(&self) {
        self.wait_shown("StatusText", "running the job build");
    }

    /// Waits for the end of the unit; its result and the program's exit code.
    fn ended(&self) -> (String, String) {
        wait_until("the unit has ended", || {
            std::thread::sleep(Duration::from_millis(50));
            ["inactive", "failed"].contains(&self.show("ActiveState").as_str())
        });
        (self.show("Result"), self.show("ExecMainStatus"))
    }

    fn journal(&self) -> String {
        self.machine.sh(&format!("journalctl --no-pager -o short-monotonic -u {UNIT}"))
    }

    fn story(&self) -> String {
        format!("{}\n{}", self.journal(), self.sim.calls_table())
    }

    fn runs(&self) -> Vec<RunnerStart> {
        runner_runs(&self.home)
    }

    /// One Listener, its job done; GARM has heard `idle` once and nothing bad.
    #[track_caller]
    fn assert_undisturbed(&self) {
        let story = self.story();
        assert_eq!(self.ended(), ("success".to_owned(), "0".to_owned()), "{story}");
        let runs = self.runs();
        assert_eq!(runs.len(), 1, "{runs:?}\n{story}");
        assert!(runs[0].signals.is_empty(), "{runs:?}\n{story}");
        assert!(runs[0].notes.contains(&"job ended Succeeded".to_owned()), "{runs:?}\n{story}");
        assert_eq!(posted(&self.sim, "idle"), 1, "{story}");
        assert_eq!(posted(&self.sim, "failed"), 0, "{story}");
        assert_eq!(self.instance.runner_status(), "terminated", "{story}");
    }
}

fn job_of(time: Duration) -> RunnerScript {
    RunnerScript::one_job(Duration::from_millis(300), time)
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn the_unit_starts_truly_says_what_it_does_and_drains_at_a_stop() {
    let machine = Machine::boot();
    let verify = format!("systemd-analyze verify /etc/systemd/system/{UNIT} 2>&1");
    assert_eq!(machine.sh(&verify), "");

    // Both take longer than these: it is given more time for as long as it asks.
    machine.sh(&format!(
        "mkdir -p /run/systemd/system/{UNIT}.d; \
         printf '[Service]\\nTimeoutStartSec=1s\\nTimeoutStopSec=1s\\n' \
         > /run/systemd/system/{UNIT}.d/short.conf; systemctl daemon-reload"
    ));

    // While it boots, the phase is told; and the start is over when GARM knows the runner.
    let life = machine.life(RunnerScript::new().listen_after(2 * SECOND));
    life.start_in_background();
    life.wait_shown("StatusText", "start: waiting until the runner listens");
    assert_eq!(life.show("ActiveState"), "activating");
    life.start();
    assert_eq!(life.instance.runner_status(), "idle", "{}", life.story());
    assert_eq!(life.show("StatusText"), "idle: waiting for a job");
    let status = machine.sh(&format!("systemctl status {UNIT}"));
    assert!(status.contains("Status: \"idle: waiting for a job\""), "{status}");

    // No secret where everybody may look, nor in the journal, which has priorities.
    let shown = machine.sh(&format!("systemctl show {UNIT}; systemctl cat {UNIT}"));
    let journal = machine.sh(&format!("journalctl --no-pager -o json -u {UNIT}"));
    for secret in life.instance.secrets() {
        assert!(!shown.contains(&secret) && !journal.contains(&secret), "{shown}\n{journal}");
    }
    let warning = journal.lines().find(|line| line.contains("\"PRIORITY\":\"6\""));
    assert!(warning.is_some_and(|line| !line.contains("\"MESSAGE\":\"<6>")), "{journal}");

    machine.sh(&format!("systemctl stop {UNIT}"));
    assert_eq!(life.ended(), ("success".to_owned(), "0".to_owned()), "{}", life.story());
    assert_eq!(life.runs()[0].signals, [2], "{}", life.story());

    let life = machine.life(job_of(3 * SECOND));
    life.start().wait_for_job();
    machine.sh(&format!("systemctl stop {UNIT}"));
    life.assert_undisturbed();
}

#[test]
fn an_agent_that_is_killed_or_hangs_costs_neither_the_runner_nor_its_job() {
    let machine = Machine::boot();

    let life = machine.life(job_of(6 * SECOND));
    life.start().wait_for_job();
    life.crash();
    life.wait_for_job();
    life.crash();
    life.assert_undisturbed();

    // More often than systemd would allow by default.
    let life = machine.life(job_of(25 * SECOND));
    life.start().wait_for_job();
    for _ in 0..7 {
        life.crash();
    }
    life.assert_undisturbed();

    // Idle.
    let life = machine.life(RunnerScript::one_job(4 * SECOND, SECOND));
    life.start().wait_shown("StatusText", "idle: waiting for a job");
    life.crash();
    life.assert_undisturbed();

    // The drain of a stop is the next one's as well.
    let life = machine.life(job_of(4 * SECOND));
    life.start().wait_for_job();
    life.crash();
    machine.sh(&format!("systemctl stop {UNIT}"));
    life.assert_undisturbed();

    // One that hangs is noticed by the watchdog.
    machine.sh(&format!(
        "mkdir -p /run/systemd/system/{UNIT}.d; \
         printf '[Service]\\nWatchdogSec=2s\\n' > /run/systemd/system/{UNIT}.d/quick.conf; \
         systemctl daemon-reload"
    ));
    let life = machine.life(job_of(7 * SECOND));
    life.start().wait_for_job();
    life.signal_agent("STOP");
    life.wait_shown("NRestarts", "1");
    life.wait_for_job();
    life.assert_undisturbed();
    assert!(life.journal().contains("Watchdog timeout"), "{}", life.journal());
}

#[test]
fn the_page_on_systemd() {
    let page = Page::read("docs/systemd.md");
    let machine = Machine::boot();
    // The page's folder, as the project's root with a binary in it; and a machine that knows nothing yet.
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let desk = "/root/desk";
    machine.sh(&format!(
        "mkdir -p {desk}/systemd; mv {BINARY} {desk}; \
         rm -r /etc/garm-bootstrap /etc/systemd/system/{UNIT}; systemctl daemon-reload"
    ));
    machine.container.copy_in(&root.join("systemd").join(UNIT), &format!("{desk}/systemd/"));
    let sim = scripted(job_of(5 * SECOND));
    let instance = sim.create(InstanceSpec::default());
    let variables: String =
        instance.env().iter().map(|(name, value)| format!("export {name}='{value}'\n")).collect();
    let run = |block: String| machine.sh(&format!("set -e\ncd {desk}\n{variables}{block}"));

    run(page.block("systemd-install"));
    let status = run(page.block("systemd-start"));
    assert!(status.contains("Active: active (running)"), "{status}");
    wait_until("the job has started", || {
        std::thread::sleep(Duration::from_millis(50));
        machine.sh(&format!("systemctl status --no-pager {UNIT}")).contains("running the job build")
    });
    run(page.block("systemd-upgrade"));
    wait_until("there is another one", || {
        std::thread::sleep(Duration::from_millis(50));
        machine.sh(&format!("systemctl show --value -p NRestarts {UNIT}")).trim() == "1"
    });
    run(page.block("systemd-stop"));
    let journal = run(page.block("systemd-journal"));
    assert!(journal.contains("job build: Succeeded"), "{journal}");
    assert_eq!(posted(&sim, "idle"), 1, "{}", sim.calls_table());
    assert_eq!(instance.runner_status(), "terminated", "{}", sim.calls_table());
    run(page.block("systemd-remove"));
    assert_ne!(machine.container.exec(["systemctl", "cat", UNIT]).code, 0);
}

#[test]
fn a_unit_that_dies_tells_no_idle_and_a_used_instance_is_not_started_again() {
    let machine = Machine::boot();

    // What SELinux does to a binary with a wrong label, a missing x does, too: 203/EXEC.
    machine.sh(&format!(
        "mkdir -p /run/systemd/system/{UNIT}.d; cp {BINARY} /opt/barred; chmod a-x /opt/barred; \
         printf '[Service]\\nExecStart=\\nExecStart=/opt/barred run\\n' \
         > /run/systemd/system/{UNIT}.d/barred.conf; systemctl daemon-reload"
    ));
    let life = machine.life(RunnerScript::new());
    let start = machine.container.exec(["systemctl", "start", UNIT]);
    assert_ne!(start.code, 0, "{start}");
    assert_eq!(life.ended(), ("exit-code".to_owned(), "203".to_owned()), "{}", life.story());
    assert_eq!(posted(&life.sim, "idle"), 0, "{}", life.sim.calls_table());
    machine.sh(&format!("rm /run/systemd/system/{UNIT}.d/barred.conf; systemctl daemon-reload"));

    // Stopped before it is ready: as asked, and GARM hears of it.
    let life = machine.life(RunnerScript::new().hang_before_listening());
    life.start_in_background();
    wait_until("the runner is started", || !life.runs().is_empty());
    machine.sh(&format!("systemctl stop {UNIT}"));
    assert_eq!(life.ended(), ("success".to_owned(), "40".to_owned()), "{}", life.story());
    assert_eq!(posted(&life.sim, "failed"), 1, "{}", life.story());

    let life = machine.life(job_of(Duration::from_millis(100)));
    life.start().assert_undisturbed();
    let again = machine.container.exec(["systemctl", "start", UNIT]);
    assert_ne!(again.code, 0, "{again}");
    assert_eq!(life.ended().1, "41", "{}", life.story());
    assert_eq!(life.show("NRestarts"), "0");
    assert_eq!(life.runs().len(), 1);
    assert!(life.instance.wait_for_runner_status("terminated", LONG));
}
