//! The simulated GARM and forge in a process of their own, and how the bench talks to it.
//!
//! One JSON value a line in each direction. The times in the answers are those of the simulation's own
//! record, as seconds of the system's clock, which both processes share.

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, ensure};
use garm_sim::archive::ArchiveSize;
use garm_sim::{
    ArchiveSpec, Call, Endpoint, Fault, FaultKind, Host, InstanceSpec, RunnerScript, SimOptions,
};
use serde_json::{Value, json};

use super::Tools;
use super::relay::Relay;

/// The hidden command.
pub(crate) const COMMAND: &str = "bench-sim";
const ONE_WAY: Duration = Duration::from_millis(25);
const IDLE_LIMIT: Duration = Duration::from_mins(5);

/// What the simulation is to be like.
pub(super) struct SimOrder {
    /// TLS, and a relay that takes its time.
    far: bool,
    large: bool,
}

impl SimOrder {
    pub(super) fn near() -> Self {
        Self { far: false, large: true }
    }

    pub(super) fn far() -> Self {
        Self { far: true, large: true }
    }

    pub(super) fn herd() -> Self {
        Self { far: false, large: false }
    }
}

/// The bench's end.
pub(super) struct Sim {
    child: Child,
    wires: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Sim {
    pub(super) fn start(tools: &Tools, order: &SimOrder) -> Result<Self> {
        let mut command = Command::new(&tools.helper);
        command.arg(COMMAND).arg(&tools.folder);
        command.args(order.far.then_some("far")).args(order.large.then_some("large"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take().context("the simulation has no stdin")?;
        let stdout = child.stdout.take().context("the simulation has no stdout")?;
        let sim = Self { child, wires: Mutex::new((stdin, BufReader::new(stdout))) };
        // Packing the archive may come first.
        sim.ask(&json!({ "ask": "ready" }))?;
        Ok(sim)
    }

    /// Asks, and waits for the answer.
    pub(super) fn ask(&self, order: &Value) -> Result<Value> {
        let mut wires = self.wires.lock().map_err(|_| anyhow!("an earlier question has failed"))?;
        writeln!(wires.0, "{order}").context("ask the simulation")?;
        let mut line = String::new();
        wires.1.read_line(&mut line)?;
        ensure!(!line.is_empty(), "the simulation has ended");
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The simulation's end: answers until its stdin is closed.
pub(crate) fn serve(folder: &Path, far: bool, large: bool) -> Result<()> {
    let size = if large { ArchiveSize::Large } else { ArchiveSize::Small };
    // The job comes late enough for a boot to be over, and is there for the memory during a job.
    let script = if large {
        RunnerScript::one_job(Duration::from_secs(2), Duration::from_secs(8)).offline()
    } else {
        RunnerScript::new().offline()
    };
    let archive =
        ArchiveSpec { cache: Some(folder.to_owned()), size, ..ArchiveSpec::scripted(script) };
    let options = SimOptions { tls: far, forge_tls: far, archive, ..SimOptions::default() };
    let sim = garm_sim::Sim::start(options);
    let began = SystemTime::now() - sim.now();
    let server = Server { began, relays: Relays::start(&sim, far)?, sim };
    for line in io::stdin().lines() {
        let answer = server.answer(&serde_json::from_str(&line?)?)?;
        println!("{answer}");
    }
    Ok(())
}

struct Relays {
    garm: Option<(String, String)>,
    forge: Option<(String, String)>,
}

impl Relays {
    fn start(sim: &garm_sim::Sim, far: bool) -> Result<Self> {
        let relay = |url: String| -> Result<Option<(String, String)>> {
            if !far {
                return Ok(None);
            }
            let port = url.rsplit(':').next().and_then(|port| port.parse().ok());
            let relay = Relay::start(port.context("the simulation's URL has no port")?, ONE_WAY)?;
            let relayed = format!("https://127.0.0.1:{}", relay.port);
            Ok(Some((url, relayed)))
        };
        Ok(Self { garm: relay(sim.base_url())?, forge: relay(sim.forge_url())? })
    }

    fn through(way: Option<&(String, String)>, url: &str) -> String {
        way.map_or_else(|| url.to_owned(), |(from, to)| url.replace(from, to))
    }
}

struct Server {
    sim: garm_sim::Sim,
    /// When the simulation's clock was at 0.
    began: SystemTime,
    relays: Relays,
}

impl Server {
    fn answer(&self, order: &Value) -> Result<Value> {
        let name = order["name"].as_str().unwrap_or_default();
        Ok(match order["ask"].as_str().unwrap_or_default() {
            "ready" => json!({ "ca": self.sim.ca_pem() }),
            "archive" => {
                let file = order["file"].as_str().context("no file")?;
                std::fs::write(file, self.sim.archive_bytes())?;
                json!({})
            }
            "create" => self.create(),
            "idle" => {
                let idle = |call: &Call| is_idle_of(call, name);
                ensure!(
                    self.sim.wait_until(IDLE_LIMIT, |calls| calls.iter().any(idle)),
                    "{name} has not become idle in {IDLE_LIMIT:?}:\n{}",
                    self.sim.calls_table()
                );
                let calls = self.sim.calls();
                let at = calls.iter().find(|call| idle(call)).map(|call| self.began + call.at);
                json!({ "at": at.map(seconds) })
            }
            "calls" => self.calls_of(name),
            "herd" => super::herd::summary(&self.sim.calls()),
            "refuse" => {
                self.sim.fault(Fault::new(Endpoint::AnyGarm).kind(FaultKind::status(503)));
                json!({ "at": self.sim.calls().len() })
            }
            "relent" => {
                self.sim.clear_faults();
                json!({})
            }
            other => return Err(anyhow!("nobody knows how to \"{other}\"")),
        })
    }

    fn create(&self) -> Value {
        let download = Relays::through(self.relays.forge.as_ref(), &self.sim.download_url());
        let spec = InstanceSpec { download_url: Some(download.clone()), ..InstanceSpec::default() };
        let one = self.sim.create(spec);
        let garm = self.relays.garm.as_ref();
        let env =
            one.env().into_iter().map(|(key, value)| (key, Relays::through(garm, &value).into()));
        let env: serde_json::Map<String, Value> = env.collect();
        json!({ "name": one.name(), "env": env, "download": download })
    }

    fn calls_of(&self, name: &str) -> Value {
        let calls = self.sim.calls();
        let ours: Vec<&Call> = calls
            .iter()
            .filter(|call| call.host == Host::Garm && call.instance.as_deref() == Some(name))
            .collect();
        let mut connections: Vec<u64> = ours.iter().map(|call| call.connection).collect();
        connections.sort_unstable();
        connections.dedup();
        json!({ "requests": ours.len(), "connections": connections.len() })
    }
}

/// Whether GARM has taken that instance's `idle`.
pub(super) fn is_idle_of(call: &Call, name: &str) -> bool {
    call.instance.as_deref() == Some(name)
        && call.status.is_some_and(|status| status < 300)
        && call.posted_status().as_deref() == Some("idle")
}

pub(super) fn seconds(at: SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
