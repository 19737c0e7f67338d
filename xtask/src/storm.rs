//! `cargo xtask storm`: boots in a storm of faults, as many as one has time for.
//!
//! The boots and what must hold for them are a test (`tests/it/storm`); this is its front door.

use anyhow::{Result, bail};

use crate::shell;

const SEEDS: u64 = 300;
const PERCENT: u64 = 30;
const TEST: &str = "storm::every_boot_in_a_storm_ends_in_idle_or_in_one_true_failure";

/// `--seeds N` boots from seed `--first S` on, with `--percent P` of the calls meeting a fault.
pub(crate) fn run(args: impl Iterator<Item = String>) -> Result<()> {
    let (mut seeds, mut first, mut percent) = (SEEDS, 1, PERCENT);
    let mut args = args;
    while let Some(arg) = args.next() {
        let value = args.next().and_then(|text| text.parse::<u64>().ok());
        match (arg.as_str(), value) {
            ("--seeds", Some(value)) => seeds = value,
            ("--first", Some(value)) => first = value,
            ("--percent", Some(value)) if value <= 100 => percent = value,
            _ => bail!(
                "this takes --seeds NUMBER, --first NUMBER and --percent NUMBER, not \"{arg}\""
            ),
        }
    }
    let mut test = shell::cargo();
    test.args(["test", "--locked", "--package", "garm-bootstrap", "--test", "it", "--"]);
    test.args([TEST, "--exact", "--nocapture"]);
    test.env("STORM_SEEDS", seeds.to_string()).env("STORM_FIRST", first.to_string());
    test.env("STORM_PERCENT", percent.to_string());
    shell::run(&mut test)
}
