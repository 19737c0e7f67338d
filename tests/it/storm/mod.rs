//! The same boot in a storm of faults: about every third call to GARM and to the download host goes
//! wrong in a random way, and each run must end in a runner that GARM knows of or in one true `failed`.
//!
//! `cargo xtask storm` is this same test with more seeds. A seed decides the faults, the kind of
//! instance and who boots it; it does not decide times, so a run is repeated closely, not exactly.

mod judge;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use garm_sim::{ArchiveSpec, Instance, InstanceSpec, RunnerScript, Sim, SimOptions, Storm};

use crate::support::seeds::{asked, try_each};
use crate::support::{Boot, Ended, Who, is_root};

/// Seeds in a usual run of the tests; `STORM_SEEDS` and `STORM_FIRST` say otherwise.
const SEEDS: u64 = 60;
/// Of a hundred calls so many meet a fault; `STORM_PERCENT` says otherwise.
const PERCENT: u32 = 30;
const DEADLINE: Duration = Duration::from_secs(25);
/// A boot mostly waits for its next attempt, so a core can lead several at once.
const BOOTS_PER_CORE: usize = 6;

/// One boot in its storm.
struct Trial {
    seed: u64,
    sim: Sim,
    instance: Instance,
    who: Who,
    took: Duration,
    ended: Ended,
}

#[test]
fn every_boot_in_a_storm_ends_in_idle_or_in_one_true_failure() {
    let first = asked("STORM_FIRST").unwrap_or(1);
    let last = first + asked("STORM_SEEDS").unwrap_or(SEEDS) - 1;
    let percent = asked("STORM_PERCENT").unwrap_or(PERCENT);
    let began = Instant::now();
    let trial = |seed| judge::judge(&Trial::run(seed, percent));
    let verdicts = try_each(first..=last, BOOTS_PER_CORE, trial);
    println!("{}", summary(&verdicts, began.elapsed()));
    let broken: Vec<_> = verdicts.iter().filter_map(|(_, v)| v.as_ref().err()).collect();
    assert!(broken.is_empty(), "{} of {} runs broke a rule", broken.len(), verdicts.len());
}

impl Trial {
    fn run(seed: u64, percent: u32) -> Self {
        let spec = if seed.is_multiple_of(2) {
            InstanceSpec::default()
        } else {
            InstanceSpec::with_token()
        };
        let who = if is_root() && seed % 4 < 2 { Who::Root } else { Who::Plain };
        // Some jobs come before GARM has heard of `idle`, most do not.
        let wait = Duration::from_millis(if seed.is_multiple_of(3) { 50 } else { 1500 });
        let sim = Sim::start(SimOptions {
            archive: ArchiveSpec::scripted(RunnerScript::one_job(wait, Duration::from_millis(100))),
            storm: Some(Storm::new(seed, f64::from(percent) / 100.0)),
            ..SimOptions::default()
        });
        let instance = sim.create(spec);
        let began = Instant::now();
        let boot = Boot::of(&instance).who(who);
        let ended = boot.env("GARM_DEADLINE", &format!("{}s", DEADLINE.as_secs())).run();
        Self { seed, sim, instance, who, took: began.elapsed(), ended }
    }
}

fn summary(verdicts: &[(u64, Result<&'static str, String>)], took: Duration) -> String {
    let mut text = String::new();
    for (_, verdict) in verdicts {
        if let Err(violation) = verdict {
            let _ = writeln!(text, "{violation}\n");
        }
    }
    let mut kinds: Vec<&str> =
        verdicts.iter().filter_map(|(_, v)| v.as_ref().ok().copied()).collect();
    kinds.sort_unstable();
    let _ = write!(text, "{} boots in {:.1} s:", verdicts.len(), took.as_secs_f64());
    for kind in kinds.chunk_by(|a, b| a == b) {
        let _ = write!(text, " {} {},", kind.len(), kind[0]);
    }
    let broken = verdicts.iter().filter(|(_, verdict)| verdict.is_err()).count();
    let _ = write!(text, " {broken} broke a rule");
    text
}
