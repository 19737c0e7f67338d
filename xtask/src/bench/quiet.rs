//! What the agent costs while it only watches: memory in a job, wake-ups while idle. And what the fake
//! Listener takes by itself, which is not the agent's.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use garm_sim::RunnerScript;
use serde_json::{Value, json};

use super::boot::{self, Who, status_kb};
use super::figures::Spread;
use super::scene::{Runner, Scene};
use super::sim::Sim;

/// The job of the archive's script is on from 2 s to 10 s after "Listening".
const INTO_THE_JOB: Duration = Duration::from_secs(5);
/// The boot's own last timers (a thread of the pool lives 10 s) are over by then.
const SETTLE: Duration = Duration::from_secs(15);

/// The time that the Listener takes from its exec to "Listening for Jobs".
pub(super) fn listener(scene: &Scene, sim: &Sim, rounds: usize) -> Result<Spread> {
    // It listens only with papers, and a boot leaves them there.
    boot::boot(scene, sim, Who::Agent, Runner::InHome)?;
    let home = scene.home();
    scene.write_script(&RunnerScript::new().offline())?;
    let mut seconds = Vec::new();
    for _ in 0..=rounds {
        let began = Instant::now();
        let mut listener = Command::new(home.join("bin/Runner.Listener"))
            .arg("run")
            .current_dir(&home)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let stdout = listener.stdout.take().context("no stdout")?;
        let listening = BufReader::new(stdout)
            .lines()
            .map_while(Result::ok)
            .any(|line| line.contains("Listening for Jobs"));
        seconds.push(began.elapsed().as_secs_f64());
        listener.kill()?;
        listener.wait()?;
        ensure!(listening, "the Listener ended before it listened");
    }
    Ok(Spread::of(seconds.split_off(1)))
}

/// The agent's resident size while a job runs, after a boot that has downloaded and unpacked.
pub(super) fn memory_in_a_job(scene: &Scene, sim: &Sim) -> Result<Value> {
    scene.prepare(Runner::Nowhere)?;
    let idle = boot::start(scene, sim, Who::Agent, Runner::Nowhere)?;
    let at_idle = status_kb(idle.child.id(), "VmRSS");
    std::thread::sleep(INTO_THE_JOB);
    let pid = idle.child.id();
    let kb = |key| status_kb(pid, key);
    let memory = json!({
        "rss_idle_kb": at_idle,
        "rss_in_job_kb": kb("VmRSS"),
        "rss_anon_in_job_kb": kb("RssAnon"),
        "rss_file_in_job_kb": kb("RssFile"),
        "peak_kb": kb("VmHWM"),
        "threads": kb("Threads"),
    });
    let log = fs::read_to_string(scene.path("log"))?;
    boot::abort(idle)?;
    ensure!(log.contains("Running job"), "no job was running when memory was measured:\n{log}");
    Ok(memory)
}

/// Context switches of all the agent's threads while the runner is idle, for a minute.
pub(super) fn wake_ups(scene: &Scene, sim: &Sim, time: Duration) -> Result<Value> {
    scene.prepare(Runner::InHome)?;
    scene.write_script(&RunnerScript::new().offline())?;
    let idle = boot::start(scene, sim, Who::Agent, Runner::InHome)?;
    std::thread::sleep(SETTLE);
    let before = switches(idle.child.id())?;
    std::thread::sleep(time);
    let count = switches(idle.child.id())? - before;
    let rss = status_kb(idle.child.id(), "VmRSS");
    boot::end(idle)?;
    let seconds = time.as_secs().max(1);
    Ok(
        json!({ "count": count, "seconds": seconds, "per_minute": count * 60 / seconds, "rss_kb": rss }),
    )
}

fn switches(pid: u32) -> Result<u64> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = fs::read_to_string(task?.path().join("status"))?;
        let counts = status.lines().filter_map(|line| line.split_once("ctxt_switches:"));
        sum += counts.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum::<u64>();
    }
    Ok(sum)
}
