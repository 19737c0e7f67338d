//! `garm-sim serve`: a GARM on loopback to try an image against.

// This program's output is its purpose.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod options;

use std::process::ExitCode;
use std::time::Duration;

use garm_sim::{Call, Instance, RunnerEvent, Sim, table_head};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use options::{Format, Serve};

fn main() -> ExitCode {
    let serve = match options::read() {
        Ok(serve) => serve,
        Err(error) => error.exit(),
    };
    match run(&serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("garm-sim: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(serve: &Serve) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Before anything is printed that a script could answer with a signal.
    let (mut interrupt, mut terminate) = runtime.block_on(async {
        let interrupt = signal(SignalKind::interrupt())?;
        Ok::<_, std::io::Error>((interrupt, signal(SignalKind::terminate())?))
    })?;
    let sim = Sim::try_start(serve.sim.clone())?;
    if let Some(path) = &serve.ca_file {
        std::fs::write(path, sim.ca_pem().unwrap_or_default())?;
    }
    for fault in &serve.faults {
        sim.fault(fault.clone());
    }
    let one = sim.create(serve.instance.clone());
    introduce(serve, &sim, &one);

    let over = CancellationToken::new();
    std::thread::scope(|scope| {
        scope.spawn(|| follow(serve, &sim, &over));
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                () = over.cancelled() => {}
            }
        });
        over.cancel();
    });
    println!("\n{}", sim.calls_table());
    println!(
        "# instance {}: {}, runner {}, agent id {}",
        one.name(),
        one.status(),
        one.runner_status(),
        one.agent_id()
    );
    Ok(())
}

/// What an image needs, in a form that a shell or a provider takes.
fn introduce(serve: &Serve, sim: &Sim, one: &Instance) {
    match serve.format {
        Format::Bootstrap => println!("{}", one.bootstrap_json()),
        Format::Shell => {
            println!("# GARM at {}, forge at {}", sim.base_url(), sim.forge_url());
            if let Some(path) = &serve.ca_file {
                println!("# its private CA: {}", path.display());
            }
            println!("# instance {}", one.name());
            for (name, value) in one.env() {
                println!("export {name}={value}");
            }
        }
    }
    println!("{}", table_head());
}

/// Prints each call once it is answered, in order; one that hangs holds the others up shortly.
fn follow(serve: &Serve, sim: &Sim, over: &CancellationToken) {
    const PATIENCE: Duration = Duration::from_millis(250);
    let settled = |call: &Call| call.status.is_some() || call.fault.is_some();
    let mut shown = 0;
    while !over.is_cancelled() {
        sim.wait_until(PATIENCE, |calls| calls.get(shown).is_some_and(settled));
        for call in sim.calls().iter().skip(shown) {
            println!("{}", call.row());
            shown += 1;
        }
        let completed = |event: &RunnerEvent| event.event == "job_completed";
        if serve.until_job_ends && sim.runner_events().iter().any(completed) {
            over.cancel();
        }
    }
}
