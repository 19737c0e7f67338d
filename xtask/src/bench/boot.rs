//! One boot, by the agent or by the shell, from its exec to the `idle` that GARM has taken.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::sys::time::TimeValLike as _;
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::scene::{Runner, Scene};
use super::sim::{Sim, seconds};

const BASELINE: &str = include_str!("baseline.sh");

/// Who boots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    Agent,
    Shell,
}

/// What a boot took.
#[derive(Debug, Default)]
pub(super) struct Boot {
    /// From exec to the `idle` in GARM's record.
    pub(super) seconds: f64,
    /// User and system time of the whole tree, its end included.
    pub(super) cpu: f64,
    /// The agent's own largest resident size; of the shell's many processes none is kept.
    pub(super) peak_kb: Option<u64>,
    pub(super) requests: u64,
    pub(super) connections: u64,
    pub(super) phases: BTreeMap<String, f64>,
}

/// An idle runner that somebody has booted.
pub(super) struct Idle {
    pub(super) child: Child,
    pub(super) seconds: f64,
    name: String,
}

/// Boots, and ends the runner.
pub(super) fn boot(scene: &Scene, sim: &Sim, who: Who, runner: Runner) -> Result<Boot> {
    scene.prepare(runner)?;
    let before = cpu_of_children()?;
    let idle = start(scene, sim, who, runner)?;
    let peak = status_kb(idle.child.id(), "VmHWM");
    let calls = sim.ask(&json!({ "ask": "calls", "name": idle.name }))?;
    let seconds = idle.seconds;
    end(idle)?;
    Ok(Boot {
        seconds,
        cpu: cpu_of_children()? - before,
        peak_kb: peak.filter(|_| who == Who::Agent),
        requests: calls["requests"].as_u64().unwrap_or_default(),
        connections: calls["connections"].as_u64().unwrap_or_default(),
        phases: if who == Who::Agent { phases(&scene.path("state"))? } else { BTreeMap::new() },
    })
}

/// Boots up to `idle`.
pub(super) fn start(scene: &Scene, sim: &Sim, who: Who, runner: Runner) -> Result<Idle> {
    let instance = sim.ask(&json!({ "ask": "create" }))?;
    let name = instance["name"].as_str().context("the instance has no name")?.to_owned();
    let ca = ca_file(scene, sim)?;
    let mut command = match who {
        Who::Agent => agent(scene, ca.as_deref(), runner),
        Who::Shell => shell(scene)?,
    };
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    for (key, value) in instance["env"].as_object().into_iter().flatten() {
        command.env(key, value.as_str().unwrap_or_default());
    }
    if who == Who::Shell {
        shell_env(&mut command, scene, ca.as_deref(), runner, &instance);
    }
    let log = File::create(scene.path("log"))?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let began = SystemTime::now();
    let mut child = command.spawn().context("start the boot")?;
    let answer = sim.ask(&json!({ "ask": "idle", "name": name }));
    let Ok(at) = answer else {
        let _ = child.kill();
        let _ = child.wait();
        bail!("no idle came; its log:\n{}", fs::read_to_string(scene.path("log"))?);
    };
    let at = at["at"].as_f64().context("the simulation does not say when")?;
    Ok(Idle { child, seconds: at - seconds(began), name })
}

/// Ends an idle runner as an instance's end does.
pub(super) fn end(mut idle: Idle) -> Result<()> {
    signal(&idle.child, Signal::SIGTERM)?;
    idle.child.wait()?;
    Ok(())
}

/// Tells a runner that has a job to stop at once.
pub(super) fn abort(mut idle: Idle) -> Result<()> {
    signal(&idle.child, Signal::SIGTERM)?;
    signal(&idle.child, Signal::SIGTERM)?;
    idle.child.wait()?;
    Ok(())
}

pub(super) fn signal(child: &Child, signal: Signal) -> Result<()> {
    kill(Pid::from_raw(i32::try_from(child.id())?), signal).context("signal the boot")
}

fn agent(scene: &Scene, ca: Option<&Path>, runner: Runner) -> Command {
    let mut command = Command::new(scene.agent());
    command.arg("run").args(["--user", scene.user()]).arg("--home").arg(scene.home());
    command.arg("--state-dir").arg(scene.path("state"));
    command.arg("--runtime-dir").arg(scene.path("run"));
    if let Some(ca) = ca {
        // The machine that measures keeps its own authorities.
        command.arg("--ca-file").arg(ca).arg("--system-ca=false");
    }
    if matches!(runner, Runner::InAssets(_)) {
        command.arg("--assets").arg(scene.path("image"));
    }
    command
}

fn shell(scene: &Scene) -> Result<Command> {
    let script = scene.path("baseline.sh");
    fs::write(&script, BASELINE)?;
    let mut command = Command::new("bash");
    command.arg(script);
    Ok(command)
}

fn shell_env(
    command: &mut Command,
    scene: &Scene,
    ca: Option<&Path>,
    runner: Runner,
    instance: &Value,
) {
    command.env("DOWNLOAD_URL", instance["download"].as_str().unwrap_or_default());
    command.env("RUNNER_HOME", scene.home()).env("RUNNER_USER", scene.user());
    if let Some(ca) = ca {
        command.env("CA_FILE", ca);
    }
    if matches!(runner, Runner::InAssets(_)) {
        command.env("RUNNER_ASSETS", scene.path("image"));
    }
}

/// The authority of a simulation that speaks TLS, as a file.
fn ca_file(scene: &Scene, sim: &Sim) -> Result<Option<std::path::PathBuf>> {
    let ready = sim.ask(&json!({ "ask": "ready" }))?;
    let Some(pem) = ready["ca"].as_str() else { return Ok(None) };
    let file = scene.path("ca.pem");
    fs::write(&file, pem)?;
    Ok(Some(file))
}

fn cpu_of_children() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let micros = (usage.user_time() + usage.system_time()).num_microseconds();
    Ok(std::time::Duration::from_micros(u64::try_from(micros)?).as_secs_f64())
}

/// A figure of `/proc/PID/status`.
pub(super) fn status_kb(pid: u32, key: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

fn phases(state: &Path) -> Result<BTreeMap<String, f64>> {
    let text = fs::read(state.join("timeline.json")).context("read the timeline")?;
    let record: Value = serde_json::from_slice(&text)?;
    let phases = record["phases"].as_array().cloned().unwrap_or_default();
    let span =
        |phase: &Value| Some((phase["phase"].as_str()?.to_owned(), phase["seconds"].as_f64()?));
    Ok(phases.iter().filter_map(span).collect())
}
