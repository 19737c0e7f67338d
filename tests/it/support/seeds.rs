//! Trials by number, many at a time: what `storm` and `soak` have in common.

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Makes a trial of each seed, `per_core` at a time on each core; what came of them, by seed.
pub fn try_each<T: Send>(
    seeds: RangeInclusive<u64>,
    per_core: usize,
    trial: impl Fn(u64) -> T + Sync,
) -> Vec<(u64, T)> {
    let (next, results) = (AtomicU64::new(*seeds.start()), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(2, usize::from) * per_core;
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Relaxed);
                    if !seeds.contains(&seed) {
                        return;
                    }
                    let result = trial(seed);
                    results.lock().unwrap().push((seed, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap();
    results.sort_unstable_by_key(|(seed, _)| *seed);
    results
}

/// A number from the environment.
pub fn asked<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}
