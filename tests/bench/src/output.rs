//! The runner's output from bytes to events: cut into lines, kept for the last words, read for what they
//! mean, as the supervisor does with every chunk.

use garm_bootstrap::forge::Dialect;
use garm_bootstrap::supervise::output::Cutter;
use garm_bootstrap::text::Tail;

use crate::{Workload, chatter};

const LINES: usize = 24_000;
/// What a read of a pipe brings: as much as fits, or as little as there is.
const CHUNKS: [usize; 4] = [32 << 10, 4096, 517, 61];

pub(crate) fn workload() -> Workload {
    let bytes = chatter::lines(LINES).join("\n").into_bytes();
    // One kind of line in twelve is an event.
    let expected = (LINES + LINES / 12) as u64;
    Workload {
        name: "output-reader",
        elements: LINES as u64,
        expected,
        work: Box::new(move || read(&bytes)),
    }
}

/// The number of lines and of events.
fn read(bytes: &[u8]) -> u64 {
    let (mut cutter, mut tail, mut seen) = (Cutter::default(), Tail::default(), 0);
    let mut take = |line: &[u8]| {
        tail.push(line);
        tail.push(b"\n");
        let line = String::from_utf8_lossy(line);
        seen += 1 + u64::from(Dialect::GitHub.read_line(&line).is_some());
    };
    let (mut rest, mut sizes) = (bytes, CHUNKS.iter().cycle());
    while let Some(size) = sizes.next().filter(|_| !rest.is_empty()) {
        let (chunk, behind) = rest.split_at(rest.len().min(*size));
        cutter.push(chunk, &mut take);
        rest = behind;
    }
    cutter.finish(&mut take);
    if Dialect::GitHub.cause(&tail.text()).is_some() { 0 } else { seen }
}
