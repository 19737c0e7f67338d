//! A fault storm: whether a call meets a fault, and which, decided by a seed.
//!
//! The draw depends on the seed, the endpoint, the status that is posted and how many such calls came
//! before, and on nothing else: what happens beside it at the same time does not change it, so a seed
//! that broke something once shows the same faults again. Calls of the runner to the forge are spared;
//! a fake Listener that cannot report is a fault of the test. Handlers run or do not run as each
//! [`FaultKind`] says, so a registration token that was handed out in a lost reply stays handed out.

use std::collections::HashMap;
use std::time::Duration;

use super::fault::FaultKind;
use crate::endpoint::Endpoint;

/// Of a hundred faulty downloads, those in which a byte is wrong: no retry is to mend that when there is
/// a checksum, so such a boot must fail.
const FLIPPED_OF_100: u64 = 5;
/// Offsets of cuts in a small answer.
const SMALL: u64 = 200;
/// Offsets of cuts in the archive.
const LARGE: u64 = 800_000;

/// The weather that a simulation is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Storm {
    seed: u64,
    probability: f64,
}

impl Storm {
    /// Each call meets a fault with that probability (0 to 1).
    pub fn new(seed: u64, probability: f64) -> Self {
        Self { seed, probability }
    }
}

/// A storm with the calls that it has seen.
#[derive(Debug)]
pub(crate) struct Weather {
    storm: Storm,
    seen: HashMap<(Endpoint, Option<String>), u64>,
}

impl Weather {
    pub(crate) fn new(storm: Storm) -> Self {
        Self { storm, seen: HashMap::new() }
    }

    /// What the next call for `endpoint` meets.
    pub(crate) fn meets(&mut self, endpoint: Endpoint, posted: Option<&str>) -> Option<FaultKind> {
        if !Endpoint::Any.covers(endpoint) {
            return None;
        }
        let seen = self.seen.entry((endpoint, posted.map(str::to_owned))).or_default();
        *seen += 1;
        let mut dice = Dice::new(self.storm.seed);
        dice.stir(endpoint as u64);
        posted.unwrap_or_default().bytes().for_each(|byte| dice.stir(byte.into()));
        dice.stir(*seen);
        (dice.fraction() < self.storm.probability).then(|| draw(&mut dice, endpoint))
    }
}

/// One fault of all that end by themselves within a second: a hanging peer costs a whole attempt, and
/// would only say how long that is.
fn draw(dice: &mut Dice, endpoint: Endpoint) -> FaultKind {
    let download = endpoint == Endpoint::Download;
    if download && dice.below(100) < FLIPPED_OF_100 {
        return FaultKind::FlipByte(dice.below(LARGE));
    }
    let cut = dice.below(if download { LARGE } else { SMALL });
    match dice.below(13) {
        0 => FaultKind::status(500),
        1 => FaultKind::answer(502, "<html><h1>502 Bad Gateway</h1></html>"),
        2 => FaultKind::retry_after(503, 1),
        3 => FaultKind::retry_after(429, 1),
        4 => FaultKind::status(504),
        5 => FaultKind::ResetBeforeReply,
        6 => FaultKind::ResetAfter(cut),
        7 => FaultKind::CloseAfter(cut),
        8 => FaultKind::EmptyReply,
        9 => FaultKind::EmptyReplyAfterApplying,
        10 => FaultKind::WrongLength(1 << 24),
        11 => FaultKind::Garbage(b"\x00\x01not http at all\r\n\r\n".to_vec()),
        _ => FaultKind::Delay(Duration::from_millis(dice.below(500))),
    }
}

/// splitmix64: small, well spread, the same everywhere.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        let mut dice = Self(seed);
        dice.next();
        dice
    }

    fn stir(&mut self, value: u64) {
        self.0 ^= value.wrapping_mul(0xff51_afd7_ed55_8ccd);
        self.0 = self.next();
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// In `0.0..1.0`.
    fn fraction(&mut self) -> f64 {
        f64::from(u32::try_from(self.next() >> 32).unwrap_or(u32::MAX))
            / (f64::from(u32::MAX) + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forecast(seed: u64) -> Vec<Option<String>> {
        let mut weather = Weather::new(Storm::new(seed, 0.3));
        (0..200)
            .map(|_| weather.meets(Endpoint::Status, Some("installing")).map(|kind| kind.label()))
            .collect()
    }

    #[test]
    fn a_seed_brings_the_same_faults_each_time_and_another_one_others() {
        assert_eq!(forecast(7), forecast(7));
        assert_ne!(forecast(7), forecast(8));
    }

    #[test]
    fn what_happens_at_other_endpoints_changes_nothing() {
        let mut weather = Weather::new(Storm::new(7, 0.3));
        let beside: Vec<_> = (0..200)
            .map(|_| {
                let _ = weather.meets(Endpoint::Download, None);
                weather.meets(Endpoint::Status, Some("installing")).map(|kind| kind.label())
            })
            .collect();
        assert_eq!(beside, forecast(7));
    }

    #[test]
    fn about_as_many_calls_as_asked_meet_a_fault_and_the_runners_own_none() {
        let hits: usize = (0..50).map(|seed| forecast(seed).iter().flatten().count()).sum();
        assert!((2600..3400).contains(&hits), "{hits} of 10,000 at 0.3");
        let mut weather = Weather::new(Storm::new(7, 1.0));
        assert_eq!(weather.meets(Endpoint::Forge, None), None);
    }
}
