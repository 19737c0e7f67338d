//! One job, from its line to its result.

use std::env;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::run::{Run, out};
use crate::{clock, system};

/// How a job ended.
pub enum Ended {
    Finished,
    /// Cancelled; the program leaves with that code.
    BySignal(i32),
}

pub fn run(run: &Run<'_>) -> Ended {
    let script = run.script;
    let name = script.bytes("job_name").map_or_else(
        || "build".to_owned(),
        |name| String::from_utf8_lossy(&name).into_owned(),
    );
    if script.is_set("forget_registration") {
        run.home.forget_registration();
    }
    run.line(&format!("Running job: {name}"));
    run.home.note("job started");
    run.forge.tell("job_started", &[("job", &name)]);
    let environment = environment(run);
    run.home.dump_job_environment(&environment);
    hook("ACTIONS_RUNNER_HOOK_JOB_STARTED", &environment);
    if let Some(text) = script.bytes("job_output") {
        let text = String::from_utf8_lossy(&text).replace("%now%", &clock::line_time());
        out(&text);
    }
    if run.traces {
        run.trace("WORKER", "JobRunner", "Listening for Jobs");
        run.trace(
            "WORKER",
            "JobRunner",
            &format!("Job {name} completed with result: Failed"),
        );
    }
    for _ in 0..script.number("job_children").unwrap_or(0) {
        system::spawn(|| {
            system::ignore_signals();
            std::thread::sleep(Duration::from_secs(3600));
        });
    }
    let mut command = script.bytes("job_command").and_then(|text| {
        let text = String::from_utf8_lossy(&text).into_owned();
        start(Command::new("sh").arg("-c").arg(text), &environment)
    });
    let length = script.time("job_ms").unwrap_or(Duration::from_millis(100));
    let signal = system::wait(Some(Instant::now() + length));
    if let Some(command) = &mut command {
        if signal.is_some() {
            let _ = command.kill();
        }
        let _ = command.wait();
    }
    let planned = script.text("job_result").unwrap_or("Succeeded");
    let result = if signal.is_some() {
        "Canceled"
    } else {
        planned
    };
    if let Some(number) = signal {
        run.signalled(number);
        if let Some(time) = script.time("stop_takes_ms") {
            let until = Instant::now() + time;
            while let Some(number) = system::wait(Some(until)) {
                run.signalled(number);
            }
        }
    }
    hook("ACTIONS_RUNNER_HOOK_JOB_COMPLETED", &environment);
    if !script.is_set("no_result") {
        run.line(&format!("Job {name} completed with result: {result}"));
        run.forge
            .tell("job_completed", &[("job", &name), ("result", result)]);
    }
    run.home.note(&format!("job ended {result}"));
    if run.forge.ephemeral && !script.is_set("keep_files") {
        run.home.forget_registration();
    }
    match signal {
        Some(_) => Ended::BySignal(script.number("signal_exit_code").unwrap_or(0) as i32),
        None => Ended::Finished,
    }
}

/// This program's environment with `.env` over it, as the real Listener loads it.
fn environment(run: &Run<'_>) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = env::vars_os()
        .map(|(key, value)| {
            let key = key.to_string_lossy().into_owned();
            (key, value.to_string_lossy().into_owned())
        })
        .filter(|(key, _)| !key.starts_with("ACTIONS_RUNNER_INPUT_"))
        .collect();
    for line in run.home.read(".env").unwrap_or_default().lines() {
        if let Some((key, value)) = line.split_once('=') {
            all.retain(|(known, _)| known != key);
            all.push((key.to_owned(), value.to_owned()));
        }
    }
    all
}

fn hook(variable: &str, environment: &[(String, String)]) {
    let found = environment.iter().find(|(key, _)| key == variable);
    if let Some((_, path)) = found.filter(|(_, path)| !path.is_empty()) {
        if let Some(mut child) = start(Command::new("sh").arg(path), environment) {
            let _ = child.wait();
        }
    }
}

fn start(command: &mut Command, environment: &[(String, String)]) -> Option<Child> {
    command
        .env_clear()
        .envs(environment.iter().map(|(key, value)| (key, value)))
        .spawn()
        .ok()
}
