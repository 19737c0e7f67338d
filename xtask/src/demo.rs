//! `cargo xtask demo`: one boot to look at.
//!
//! The static binary, the very one that goes into an image, boots a runner for a simulated GARM, as the
//! current user and in a temp folder.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use garm_sim::{ArchiveSpec, InstanceSpec, RunnerScript, Sim, SimOptions};

use crate::{dist, shell};

pub(crate) fn run() -> Result<()> {
    let binary = dist::run()?;
    let script = RunnerScript::one_job(Duration::from_millis(800), Duration::from_millis(1500));
    let archive = ArchiveSpec::scripted(script);
    let sim = Sim::start(SimOptions { archive, ..SimOptions::default() });
    let instance = sim.create(InstanceSpec::with_token());
    let temp = tempfile::tempdir()?;
    let (home, state) = (temp.path().join("runner"), temp.path().join("state"));
    println!(
        "\nA simulated GARM listens on {}. Booting its runner {}:\n",
        sim.base_url(),
        instance.name()
    );
    let user = shell::read(Command::new("id").arg("-un"))?;
    let mut boot = Command::new(&binary);
    boot.arg("run").args(["--user", user.trim()]).arg("--home").arg(&home);
    boot.arg("--state-dir").arg(&state).arg("--runtime-dir").arg(temp.path().join("run"));
    boot.envs(instance.env());
    let status = boot.status().context("start the binary")?;
    println!("\ngarm-bootstrap ended with {status}.\n\nWhat GARM and the forge saw:\n");
    println!("{}", sim.calls_table());
    print_timeline(&state.join("timeline.json"))?;
    ensure!(status.success(), "the boot failed");
    ensure!(instance.runner_status() == "terminated", "the job did not run to its end");
    Ok(())
}

fn print_timeline(file: &Path) -> Result<()> {
    let text = fs::read(file).with_context(|| format!("read {}", file.display()))?;
    let record: serde_json::Value = serde_json::from_slice(&text)?;
    println!("Where the time went ({}):\n", record["began_at"].as_str().unwrap_or_default());
    println!("  {:<14}{:>9}{:>10}{:>12}", "phase", "from/s", "took/s", "bytes");
    for phase in record["phases"].as_array().into_iter().flatten() {
        let number = |key: &str| phase[key].as_f64().unwrap_or_default();
        let bytes = phase["bytes"].as_u64().map(|bytes| bytes.to_string()).unwrap_or_default();
        let name = phase["phase"].as_str().unwrap_or_default();
        println!("  {name:<14}{:>9.3}{:>10.3}{bytes:>12}", number("start"), number("seconds"));
    }
    Ok(())
}
