//! `cargo xtask soak`: boots with signals and kills at random times, as many as one has time for.
//!
//! The boots and what must hold for them are a test (`tests/it/soak`); this is its front door.

use anyhow::{Result, bail};

use crate::shell;

const BOOTS: u64 = 500;
const TEST: &str =
    "soak::a_boot_leaves_nothing_behind_and_says_how_it_ended_whatever_happens_to_it";

/// `--boots N` boots from seed `--first S` on.
pub(crate) fn run(args: impl Iterator<Item = String>) -> Result<()> {
    let (mut boots, mut first) = (BOOTS, 1);
    let mut args = args;
    while let Some(arg) = args.next() {
        let value = args.next().and_then(|text| text.parse::<u64>().ok());
        match (arg.as_str(), value) {
            ("--boots", Some(value)) => boots = value,
            ("--first", Some(value)) => first = value,
            _ => bail!("this takes --boots NUMBER and --first NUMBER, not \"{arg}\""),
        }
    }
    let mut test = shell::cargo();
    test.args(["test", "--locked", "--package", "garm-bootstrap", "--test", "it", "--"]);
    test.args([TEST, "--exact", "--nocapture"]);
    test.env("SOAK_BOOTS", boots.to_string()).env("SOAK_FIRST", first.to_string());
    shell::run(&mut test)
}
