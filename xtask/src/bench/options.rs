//! The command line of the bench.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// What was asked for.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) herd: bool,
    /// Boots of each kind, beside the first one, which warms up.
    pub(super) rounds: usize,
    /// Only this scenario.
    pub(super) only: Option<String>,
    /// An executable to measure instead of the one that is built.
    pub(super) binary: Option<PathBuf>,
    /// A build of this program to take for the simulation and the inflating, instead of a release build.
    pub(super) helper: Option<PathBuf>,
    /// For how long an idle agent's wake-ups are counted.
    pub(super) idle: Duration,
    /// How many agents the herd has.
    pub(super) agents: usize,
}

impl Options {
    pub(super) fn read(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self {
            herd: false,
            rounds: 5,
            only: None,
            binary: None,
            helper: None,
            idle: Duration::from_secs(60),
            agents: 500,
        };
        while let Some(arg) = args.next() {
            if arg == "herd" {
                options.herd = true;
                continue;
            }
            let value = args.next().with_context(|| format!("{arg} has no value"))?;
            match arg.as_str() {
                "--rounds" => options.rounds = number(&arg, &value)?.max(1),
                "--helper" => options.helper = Some(PathBuf::from(value)),
                "--agents" => options.agents = number(&arg, &value)?,
                "--idle" => options.idle = Duration::from_secs(number(&arg, &value)? as u64),
                "--only" => options.only = Some(value),
                "--binary" => options.binary = Some(PathBuf::from(value)),
                _ => bail!(
                    "this takes herd, --rounds NUMBER, --only SCENARIO, --binary FILE, --helper FILE, --idle SECONDS \
                     and --agents NUMBER, not \"{arg}\""
                ),
            }
        }
        Ok(options)
    }
}

fn number(name: &str, value: &str) -> Result<usize> {
    value.parse().with_context(|| format!("{name} takes a number, not \"{value}\""))
}
