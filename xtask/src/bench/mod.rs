//! `cargo xtask bench`: a boot beside what people run today, in figures.
//!
//! Owns: what is measured and in which order. In turns (A B A B) the static binary and a shell script
//! boot a runner for a simulated GARM, each from its exec to the moment when GARM has its `idle`; what
//! comes out are medians and ratios of one run, for machines differ and are noisy. Everything lies on
//! tmpfs, and the simulation is a process of its own, so that its work does not count.
//!
//! Must not: hold what a boot is ([`scene`]) or how figures are shown ([`figures`], [`chart`]).

mod boot;
mod chart;
mod figures;
mod herd;
pub(crate) mod inflate;
mod options;
mod quiet;
mod relay;
mod scene;
pub(crate) mod sim;

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use self::boot::{Boot, Who};
use self::figures::Spread;
use self::options::Options;
use self::scene::{Runner, Scene, Whose};
use self::sim::{Sim, SimOrder};
use crate::{dist, shell};

/// Runs `cargo xtask bench`, or `cargo xtask bench herd`.
pub(crate) fn run(args: impl Iterator<Item = String>) -> Result<()> {
    let options = Options::read(args)?;
    let tools = Tools::build(&options)?;
    if options.herd { herd::run(&tools, &options) } else { measure(&tools, &options) }
}

/// The programs that take part.
struct Tools {
    agent: std::path::PathBuf,
    /// Ourselves, built as the agent is: for the simulation and for inflating.
    helper: std::path::PathBuf,
    folder: std::path::PathBuf,
}

impl Tools {
    fn build(options: &Options) -> Result<Self> {
        let agent = match &options.binary {
            Some(binary) => binary.clone(),
            None => dist::run()?,
        };
        let target = dist::target_dir()?;
        let helper = if let Some(helper) = &options.helper {
            helper.clone()
        } else {
            let build = ["build", "--release", "--locked", "--package", "xtask"];
            shell::run(shell::cargo().args(build))?;
            target.join("release/xtask")
        };
        let folder = target.join("bench");
        fs::create_dir_all(&folder)?;
        Ok(Self { agent, helper, folder })
    }
}

/// One way to boot, as both do it.
#[derive(Debug, Clone, Copy)]
struct Scenario {
    name: &'static str,
    runner: Runner,
    /// With TLS, and a network that takes its time.
    far: bool,
}

const SCENARIOS: [Scenario; 7] = [
    Scenario { name: "fresh", runner: Runner::Nowhere, far: false },
    Scenario { name: "fresh, 50 ms", runner: Runner::Nowhere, far: true },
    Scenario { name: "in the image", runner: Runner::InHome, far: false },
    Scenario { name: "in the image, 50 ms", runner: Runner::InHome, far: true },
    Scenario { name: "in a folder of root's", runner: Runner::InAssets(Whose::Root), far: false },
    Scenario { name: "same, 50 ms", runner: Runner::InAssets(Whose::Root), far: true },
    Scenario {
        name: "in a folder of the user's",
        runner: Runner::InAssets(Whose::User),
        far: false,
    },
];

/// The name of what is measured while the agent only watches, for `--only`.
const QUIET: &str = "quiet";

fn measure(tools: &Tools, options: &Options) -> Result<()> {
    let near = Sim::start(tools, &SimOrder::near())?;
    let far = Sim::start(tools, &SimOrder::far())?;
    let mut scene = Scene::new(&tools.folder)?;
    scene.lay_image(tools, &near)?;
    let mut results = Vec::new();
    for scenario in SCENARIOS {
        if options.only.as_ref().is_some_and(|only| scenario.name != only) {
            continue;
        }
        let sim = if scenario.far { &far } else { &near };
        results.push(race(tools, &scene, sim, scenario, options.rounds)?);
    }
    let mut report = json!({
        "machine": machine(),
        "rounds": options.rounds,
        "binary_bytes": fs::metadata(&tools.agent)?.len(),
        "scenarios": results,
    });
    let wanted = |part| options.only.as_ref().is_none_or(|only| only == part);
    if wanted(QUIET) {
        report["memory"] = quiet::memory_in_a_job(&scene, &near)?;
        report["wake_ups"] = quiet::wake_ups(&scene, &near, options.idle)?;
    }
    if options.only.is_none() {
        let listener = quiet::listener(&scene, &near, options.rounds)?;
        report["listener_seconds"] = listener.to_json();
        fs::write(tools.folder.join("boot.svg"), chart::draw(&report))?;
    }
    let file = tools.folder.join("boot.json");
    fs::write(&file, serde_json::to_vec_pretty(&report)?)?;
    print!("{}", figures::table(&report));
    println!("\nwritten: {}", file.display());
    Ok(())
}

/// Both boot in turns; after a fresh one the same archive is inflated to nowhere, for the fetch to be held to.
fn race(
    tools: &Tools,
    scene: &Scene,
    sim: &Sim,
    scenario: Scenario,
    rounds: usize,
) -> Result<Value> {
    let mut ours: Vec<Boot> = Vec::new();
    let mut theirs: Vec<Boot> = Vec::new();
    let (mut inflate, mut ratios) = (Vec::new(), Vec::new());
    let is_fresh = scenario.runner == Runner::Nowhere && !scenario.far;
    for round in 0..=rounds {
        for (who, boots) in [(Who::Agent, &mut ours), (Who::Shell, &mut theirs)] {
            let boot = boot::boot(scene, sim, who, scenario.runner)
                .with_context(|| format!("boot \"{}\" by {who:?}", scenario.name))?;
            eprintln!("{:<32} {who:?} {:.3} s, CPU {:.3} s", scenario.name, boot.seconds, boot.cpu);
            // The first of each warms up what both use.
            if round > 0 {
                boots.push(boot);
            }
        }
        if let Some(fetch) = ours.last().and_then(|boot| boot.phases.get("fetch"))
            && is_fresh
        {
            let seconds = inflate_once(scene, tools)?;
            inflate.push(seconds);
            ratios.push(fetch / seconds);
        }
    }
    let mut result = figures::compare(scenario.name, &ours, &theirs);
    if is_fresh {
        let (inflate, ratio) = (Spread::of(inflate).to_json(), Spread::of(ratios).to_json());
        result["fetch_to_inflate"] = json!({ "inflate": inflate, "ratio": ratio });
    }
    Ok(result)
}

/// The seconds that inflating the archive to nowhere takes.
fn inflate_once(scene: &Scene, tools: &Tools) -> Result<f64> {
    let mut inflater = Command::new(&tools.helper);
    let text = shell::read(inflater.arg(inflate::COMMAND).arg(scene.archive()))?;
    text.trim().parse().context("what the inflater printed is no number")
}

/// What the figures were measured on.
fn machine() -> Value {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    json!({
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "model": model.map(|(_, name)| name),
        "kernel": fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
        "load": load.split(' ').next(),
    })
}
