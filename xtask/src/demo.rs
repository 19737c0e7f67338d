//! `cargo xtask demo`: one boot to look at.
//!
//! The static binary, the very one that goes into an image, boots a runner for a simulated GARM, as the
//! current user and in a temp folder.

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
    println!("Where the time went:\n");
    shell::run(Command::new(&binary).arg("timeline").arg("--state-dir").arg(&state))?;
    ensure!(status.success(), "the boot failed");
    ensure!(instance.runner_status() == "terminated", "the job did not run to its end");
    Ok(())
}
