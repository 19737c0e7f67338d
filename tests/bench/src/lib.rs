//! The pure parts of garm-bootstrap at work: what an archive of 8,000 entries, a chatty job and a boot's
//! secrets give them to do.
//!
//! Owns: the inputs, which are the same on every machine and in every run, and what a run has to come to.
//! Must not: measure. Time is criterion's (`benches/pure.rs`), and callgrind counts the instructions of the
//! program in `main.rs` (`cargo xtask instructions`).

mod archive;
mod chatter;
mod output;
mod redaction;

/// A piece of work with its input made: it can be run any number of times.
pub struct Workload {
    pub name: &'static str,
    /// How many entries or lines one run goes through.
    pub elements: u64,
    /// What a run comes to, if the part does what it should.
    expected: u64,
    work: Box<dyn Fn() -> u64>,
}

impl Workload {
    /// One for each part.
    pub fn all() -> [Self; 3] {
        [archive::workload(), output::workload(), redaction::workload()]
    }

    /// Runs it once; whether it came to what it should.
    pub fn run(&self) -> bool {
        (self.work)() == self.expected
    }
}
