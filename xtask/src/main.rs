//! The project's own commands.
//!
//! `cargo xtask demo` shows a boot, `cargo xtask test` runs every check, `cargo xtask dist` builds the
//! static binary with its man pages, `cargo xtask packages` a .deb and an .rpm of it, `cargo xtask roots`
//! makes the images that container tests start from, `cargo xtask storm` boots in a storm of faults,
//! `cargo xtask soak` with signals and kills at random times, `cargo xtask bench` beside a shell script,
//! `cargo xtask instructions` counts what the pure parts take.
//! Each says what it does, and fails loudly when something that it needs is missing.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "these are commands for people")]

mod bench;
mod demo;
mod dist;
mod instructions;
mod man;
mod package;
mod roots;
mod shell;
mod size;
mod soak;
mod storm;
mod test;

use std::process::ExitCode;

const HELP: &str = "\
The commands of this project:

  cargo xtask demo    build, start a simulated GARM, boot a runner, run one job, show what GARM saw
  cargo xtask test    format, lints, all tests, documentation; as root it installs what it needs
  cargo xtask dist    build the static release binary, say what of it belongs to which crate, check it;
                      with man pages and completions
  cargo xtask packages   the same, and a .deb and an .rpm of it
  cargo xtask roots   make the Debian images that the container tests start from, once (podman, debootstrap)
  cargo xtask storm   boot in a storm of faults; --seeds N (300), --first S (1), --percent P (30)
  cargo xtask soak    boot with signals and kills at random times; --boots N (500), --first S (1)
  cargo xtask bench   measure boots beside a shell script's; --rounds N (5), --only SCENARIO, --idle SECONDS (60)
  cargo xtask bench herd   many agents at once against one GARM; --agents N (500)
  cargo xtask instructions   count the instructions of the pure parts (valgrind), beside the committed figures;
                             --update commits to these
";

fn main() -> ExitCode {
    let command = std::env::args().nth(1).unwrap_or_default();
    let result = match command.as_str() {
        "demo" => demo::run(),
        "soak" => soak::run(std::env::args().skip(2)),
        "storm" => storm::run(std::env::args().skip(2)),
        "bench" => bench::run(std::env::args().skip(2)),
        bench::sim::COMMAND => bench_sim(),
        bench::inflate::COMMAND => bench::inflate::run(&path(2)),
        "instructions" => instructions::run(std::env::args().skip(2)),
        "test" => test::run(),
        "roots" => roots::run(),
        "dist" => dist::run().map(|_| ()),
        "packages" => package::run().map(|_| ()),
        "" | "help" | "--help" | "-h" => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        other => Err(anyhow::anyhow!("there is no command \"{other}\"\n\n{HELP}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {command}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The bench's simulation, in this process.
fn bench_sim() -> anyhow::Result<()> {
    let has = |word: &str| std::env::args().skip(3).any(|arg| arg == word);
    bench::sim::serve(&path(2), has("far"), has("large"))
}

fn path(nth: usize) -> std::path::PathBuf {
    std::env::args_os().nth(nth).unwrap_or_default().into()
}
