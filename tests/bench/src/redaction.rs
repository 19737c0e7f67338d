//! Redaction: the lines of a chatty job on their way to our stdout, past every secret that a boot with JIT
//! files and a proxy knows.

use garm_bootstrap::secret::{MASK, learn, redact};

use crate::{Workload, chatter};

const LINES: usize = 6000;
/// Every so many lines one has a secret in it.
const LEAK: usize = 100;
/// GARM's token, the key in the JIT files (`d` and the modulus, then its five short parts), two
/// credentials of the forge, a proxy's password: lengths in bytes.
const SECRETS: [usize; 11] = [412, 344, 344, 172, 172, 172, 172, 172, 64, 29, 16];

pub(crate) fn workload() -> Workload {
    let secrets: Vec<String> =
        SECRETS.iter().zip(1..).map(|(length, n)| noise(*length, n)).collect();
    let mut lines = chatter::lines(LINES);
    for (line, secret) in lines.iter_mut().step_by(LEAK).zip(secrets.iter().cycle()) {
        line.push_str(secret);
    }
    for secret in &secrets {
        learn(secret);
    }
    Workload {
        name: "redaction",
        elements: LINES as u64,
        expected: LINES.div_ceil(LEAK) as u64,
        work: Box::new(move || mask(&lines)),
    }
}

/// How many lines had something to mask.
fn mask(lines: &[String]) -> u64 {
    lines.iter().filter(|line| redact(line).ends_with(MASK)).count() as u64
}

/// Text as of a key, the same in every run.
fn noise(length: usize, seed: u64) -> String {
    const SYMBOLS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut state = seed;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(SYMBOLS[(state >> 58) as usize])
    };
    (0..length).map(|_| next()).collect()
}
