//! Many agents at once against one GARM: what each asks of it, and what they do when it refuses them all.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use garm_sim::{Call, Host};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::options::Options;
use super::sim::{Sim, SimOrder, is_idle_of};
use super::{Tools, boot};
use crate::shell;

const REFUSED_FOR: Duration = Duration::from_secs(20);
const LIMIT: Duration = Duration::from_mins(5);

/// Runs `cargo xtask bench herd`.
pub(super) fn run(tools: &Tools, options: &Options) -> Result<()> {
    let calm = herd(tools, options.agents, Duration::ZERO)?;
    show("GARM answers", &calm);
    let refused = herd(tools, options.agents, REFUSED_FOR)?;
    show("GARM answers 503 for the first 20 s", &refused);
    let report = json!({ "agents": options.agents, "calm": calm, "refused": refused });
    let file = tools.folder.join("herd.json");
    fs::write(&file, serde_json::to_vec_pretty(&report)?)?;
    println!("\nwritten: {}", file.display());
    for (name, figures) in [("calm", &calm), ("refused", &refused)] {
        ensure!(figures["idle"] == options.agents, "not every agent became idle ({name})");
    }
    Ok(())
}

fn herd(tools: &Tools, agents: usize, refused_for: Duration) -> Result<Value> {
    let sim = Sim::start(tools, &SimOrder::herd())?;
    let meadow = Meadow::new(tools, &sim)?;
    if refused_for > Duration::ZERO {
        sim.ask(&json!({ "ask": "refuse" }))?;
    }
    let mut herd = Herd(Vec::new());
    let began = Instant::now();
    for n in 0..agents {
        herd.0.push(meadow.start(n, &sim)?);
    }
    let started = began.elapsed();
    std::thread::sleep(refused_for.saturating_sub(started));
    if refused_for > Duration::ZERO {
        sim.ask(&json!({ "ask": "relent" }))?;
    }
    let mut figures = Value::Null;
    while began.elapsed() < LIMIT && figures["idle"] != agents {
        std::thread::sleep(Duration::from_millis(500));
        figures = sim.ask(&json!({ "ask": "herd" }))?;
    }
    let (mut peaks, mut ended) = (Vec::new(), 0);
    for child in &mut herd.0 {
        peaks.extend(boot::status_kb(child.id(), "VmHWM"));
        ended += usize::from(child.try_wait()?.is_some());
    }
    figures["peak_kb"] = peaks.into_iter().max().into();
    figures["ended_early"] = ended.into();
    figures["seconds_to_start_all"] = started.as_secs_f64().into();
    Ok(figures)
}

/// The agents; they end with the measurement, and their Listeners with them.
struct Herd(Vec<Child>);

impl Drop for Herd {
    fn drop(&mut self) {
        for child in &self.0 {
            let _ = boot::signal(child, Signal::SIGTERM);
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

/// Where they all live.
struct Meadow {
    root: tempfile::TempDir,
    agent: PathBuf,
}

impl Meadow {
    fn new(tools: &Tools, sim: &Sim) -> Result<Self> {
        let tmpfs = Path::new("/dev/shm");
        let place = if tmpfs.is_dir() { tmpfs } else { &tools.folder };
        let root = tempfile::Builder::new().prefix("garm-herd-").tempdir_in(place)?;
        let archive = root.path().join("archive.tar.gz");
        sim.ask(&json!({ "ask": "archive", "file": archive }))?;
        let image = root.path().join("image");
        fs::create_dir(&image)?;
        shell::read(Command::new("tar").arg("xf").arg(&archive).arg("-C").arg(&image))?;
        let agent = root.path().join("garm-bootstrap");
        fs::copy(&tools.agent, &agent)?;
        Ok(Self { root, agent })
    }

    fn start(&self, n: usize, sim: &Sim) -> Result<Child> {
        let home = self.root.path().join(format!("home-{n}"));
        // As links: nobody writes into the runner's own files.
        shell::read(Command::new("cp").arg("-al").arg(self.root.path().join("image")).arg(&home))?;
        let instance = sim.ask(&json!({ "ask": "create" }))?;
        let mut command = Command::new(&self.agent);
        command.arg("run").args(["--user", "root"]).arg("--home").arg(&home);
        for (flag, name) in [("--state-dir", "state"), ("--runtime-dir", "run")] {
            command.arg(flag).arg(self.root.path().join(format!("{name}-{n}")));
        }
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        for (key, value) in instance["env"].as_object().into_iter().flatten() {
            command.env(key, value.as_str().unwrap_or_default());
        }
        let log = File::create(self.root.path().join(format!("log-{n}")))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.spawn().context("start an agent")
    }
}

/// What GARM saw of all of them.
pub(super) fn summary(calls: &[Call]) -> Value {
    #[derive(Default)]
    struct One {
        requests: u64,
        refused: u64,
        connections: BTreeSet<u64>,
        idle: bool,
        failed: bool,
    }
    let mut all: BTreeMap<&str, One> = BTreeMap::new();
    let mut seconds: BTreeMap<u64, u64> = BTreeMap::new();
    for call in calls.iter().filter(|call| call.host == Host::Garm) {
        *seconds.entry(call.at.as_secs()).or_default() += 1;
        let Some(name) = call.instance.as_deref() else { continue };
        let one = all.entry(name).or_default();
        one.requests += 1;
        one.refused += u64::from(call.status == Some(503));
        one.connections.insert(call.connection);
        one.idle |= is_idle_of(call, name);
        one.failed |= call.posted_status().as_deref() == Some("failed");
    }
    let most = |figure: fn(&One) -> u64| all.values().map(figure).max();
    let last = calls.iter().filter(|call| call.posted_status().as_deref() == Some("idle"));
    json!({
        "idle": all.values().filter(|one| one.idle).count(),
        "failed": all.values().filter(|one| one.failed).count(),
        "requests_most": most(|one| one.requests - one.refused),
        "requests_mean": mean(all.values().map(|one| one.requests - one.refused)),
        "connections_most": most(|one| one.connections.len() as u64),
        "refused_most": most(|one| one.refused),
        "refused_mean": mean(all.values().map(|one| one.refused)),
        "calls_in_the_busiest_second": seconds.values().max(),
        "calls_by_second": seconds.values().collect::<Vec<_>>(),
        "seconds_to_the_last_idle": last.map(|call| call.at.as_secs_f64()).fold(0.0, f64::max),
    })
}

#[allow(clippy::cast_precision_loss, reason = "a few thousand calls")]
fn mean(values: impl ExactSizeIterator<Item = u64>) -> f64 {
    let count = values.len().max(1);
    values.sum::<u64>() as f64 / count as f64
}

fn show(title: &str, figures: &Value) {
    println!("\n{title}:");
    for (name, value) in figures.as_object().into_iter().flatten() {
        println!("  {name:<30} {value}");
    }
}
