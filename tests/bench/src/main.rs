//! Runs one workload once, for callgrind: `garm-bench NAME`. Without a name it tells them all.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a command")]

use std::process::ExitCode;

use garm_bench::Workload;

fn main() -> ExitCode {
    let Some(name) = std::env::args().nth(1) else {
        for workload in Workload::all() {
            println!("{}", workload.name);
        }
        return ExitCode::SUCCESS;
    };
    let Some(workload) = Workload::all().into_iter().find(|workload| workload.name == name) else {
        eprintln!("garm-bench: there is no workload \"{name}\"");
        return ExitCode::FAILURE;
    };
    if counted(&workload) {
        return ExitCode::SUCCESS;
    }
    eprintln!("garm-bench: {name} did not come to what it should");
    ExitCode::FAILURE
}

/// What callgrind counts: all that happens in here, found by this name.
#[inline(never)]
fn counted(workload: &Workload) -> bool {
    workload.run()
}
