//! The executable: the init check, then the program.

use std::process::ExitCode;

use garm_bootstrap::{host, init};

fn main() -> ExitCode {
    // First of all: a job under the same uid must never read our environment or memory.
    let _ = host::process::make_private();
    if init::is_wanted(std::env::args_os()) {
        return init::run();
    }
    init::signals::hold();
    host::names::without_modules();
    garm_bootstrap::run(std::env::args_os()).into()
}
