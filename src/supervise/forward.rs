//! The runner's lines on their way to our own stdout.
//!
//! A thread of its own writes them, fed by a queue of at most [`QUEUE`] bytes. When the reader behind
//! the sink is slow or gone, lines are dropped and counted, and a line says how many; the runner never
//! waits for it. A flood is cut before it comes to the queue (`flood`). Must not: write through
//! `std::io::stdout`, the lock of which a log line may want while this thread stands in a full pipe.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::flood::Bucket;

/// How much may wait to be written.
const QUEUE: usize = 1024 * 1024;
/// What a queued line costs beside its bytes.
const PER_LINE: usize = 64;

/// Our stdout, for a [`Forwarder`] alone.
pub fn our_stdout() -> io::Result<File> {
    Ok(io::stdout().as_fd().try_clone_to_owned()?.into())
}

/// The sending end. Dropping it ends the thread, once that has written what is queued.
pub struct Forwarder {
    lines: mpsc::Sender<String>,
    bucket: Mutex<Bucket>,
    shared: Arc<Shared>,
    done: oneshot::Receiver<()>,
}

#[derive(Default)]
struct Shared {
    queued: AtomicUsize,
    dropped: AtomicUsize,
}

impl Forwarder {
    pub fn start(sink: impl Write + Send + 'static) -> Self {
        let (lines, queue) = mpsc::channel();
        let (done_tx, done) = oneshot::channel();
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let writer = move || {
            write_all(&queue, sink, &theirs);
            let _ = done_tx.send(());
        };
        // Without a thread the lines count as dropped: the receiver is gone then.
        let _ = std::thread::Builder::new().name("forward".to_owned()).spawn(writer);
        let bucket = Mutex::new(Bucket::new(Instant::now()));
        Self { lines, bucket, shared, done }
    }

    /// Queues `line`, to which a line end is added; drops it if there is no room.
    pub fn send(&self, line: &str) {
        let cost = line.len() + PER_LINE;
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let is_flood = !bucket.admits(line.len() + 1, Instant::now());
        if is_flood || self.shared.queued.load(Relaxed) + cost > QUEUE {
            self.shared.dropped.fetch_add(1, Relaxed);
            return;
        }
        self.shared.queued.fetch_add(cost, Relaxed);
        if self.lines.send(format!("{line}\n")).is_err() {
            self.shared.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Returns when all is written, or when `limit` has passed.
    pub async fn finish(self, limit: Duration) {
        drop(self.lines);
        let _ = tokio::time::timeout(limit, self.done).await;
    }
}

fn write_all(queue: &mpsc::Receiver<String>, mut sink: impl Write, shared: &Shared) {
    for line in queue {
        shared.queued.fetch_sub(line.len() - 1 + PER_LINE, Relaxed);
        let written = announce_dropped(&mut sink, shared)
            .and_then(|()| sink.write_all(line.as_bytes()))
            .is_ok();
        if !written {
            // The reader is gone, or a pipe that somebody made non-blocking is full.
            shared.dropped.fetch_add(1, Relaxed);
        }
    }
    let _ = announce_dropped(&mut sink, shared).and_then(|()| sink.flush());
}

fn announce_dropped(sink: &mut impl Write, shared: &Shared) -> io::Result<()> {
    let dropped = shared.dropped.load(Relaxed);
    if dropped == 0 {
        return Ok(());
    }
    writeln!(sink, "garm-bootstrap: {dropped} lines of the runner's output were dropped here")?;
    shared.dropped.fetch_sub(dropped, Relaxed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    #[tokio::test]
    async fn a_slow_reader_costs_lines_and_is_told_how_many() {
        let (reader, writer) = io::pipe().unwrap();
        let forwarder = Forwarder::start(writer);
        let line = "x".repeat(1000);
        for _ in 0..10_000 {
            forwarder.send(&line);
        }
        let reading = std::thread::spawn(move || {
            BufReader::new(reader).lines().map_while(Result::ok).collect::<Vec<_>>()
        });
        forwarder.finish(Duration::from_secs(20)).await;
        let lines = reading.join().unwrap();
        let told: usize = lines
            .iter()
            .filter_map(|l| {
                l.strip_prefix("garm-bootstrap: ")?.split(' ').next()?.parse::<usize>().ok()
            })
            .sum();
        let came = lines.iter().filter(|l| **l == line).count();
        assert_eq!(came + told, 10_000);
        assert!(told > 0);
    }

    #[tokio::test]
    async fn a_reader_that_is_gone_holds_nothing_up() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let forwarder = Forwarder::start(writer);
        for _ in 0..1000 {
            forwarder.send("line");
        }
        forwarder.finish(Duration::from_secs(20)).await;
    }

    #[tokio::test]
    async fn a_reader_that_stands_still_is_not_waited_for() {
        let (_reader, writer) = io::pipe().unwrap();
        let forwarder = Forwarder::start(writer);
        forwarder.send(&"x".repeat(200_000));
        let began = std::time::Instant::now();
        forwarder.finish(Duration::from_millis(50)).await;
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}
