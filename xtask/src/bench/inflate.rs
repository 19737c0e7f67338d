//! Inflating an archive to nowhere: the least that a fetch can take.
//!
//! It runs in a process of its own, of the same profile and library as the agent.

use std::io::{self, Cursor};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use flate2::bufread::GzDecoder;

/// The hidden command.
pub(crate) const COMMAND: &str = "bench-inflate";

/// Prints the seconds that inflating `archive`, which is in memory by then, takes.
pub(crate) fn run(archive: &Path) -> Result<()> {
    let packed = std::fs::read(archive).with_context(|| format!("read {}", archive.display()))?;
    let began = Instant::now();
    let mut nowhere = io::sink();
    let mut inflated = io::BufReader::with_capacity(512 << 10, GzDecoder::new(Cursor::new(packed)));
    io::copy(&mut inflated, &mut nowhere)?;
    println!("{}", began.elapsed().as_secs_f64());
    Ok(())
}
