//! Log lines on their way to stderr.
//!
//! A thread of its own writes them: whoever is behind our stderr (a terminal, a container's log driver, a pipe)
//! may stop reading, and must hold up neither the signals that we are sent nor the runner, the pipes of which
//! the same thread reads that logs. What does not fit into the queue is dropped and counted.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender, sync_channel};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

use crate::secret;

/// How many lines may wait.
const QUEUE: usize = 1024;

/// `None`: there could be no thread, and whoever logs writes by itself.
static LINES: OnceLock<Option<SyncSender<Message>>> = OnceLock::new();
static DROPPED: AtomicUsize = AtomicUsize::new(0);

enum Message {
    Line(String),
    /// Answered when everything before it is written.
    Flush(Sender<()>),
}

/// stderr behind the redaction. tracing hands over whole events.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let line = secret::redact(&String::from_utf8_lossy(event)).into_owned();
        match LINES.get_or_init(start) {
            Some(lines) => {
                if lines.try_send(Message::Line(line)).is_err() {
                    DROPPED.fetch_add(1, Relaxed);
                }
            }
            None => put(&line),
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Stderr {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        *self
    }
}

/// Returns when all that was logged is written, or when `limit` has passed.
pub(super) fn finish(limit: Duration) {
    let Some(Some(lines)) = LINES.get() else { return };
    let (done, written) = mpsc::channel();
    if lines.try_send(Message::Flush(done)).is_ok() {
        let _ = written.recv_timeout(limit);
    }
}

fn start() -> Option<SyncSender<Message>> {
    let (lines, queue) = sync_channel(QUEUE);
    let writer = move || write_all(&queue);
    std::thread::Builder::new().name("log".to_owned()).spawn(writer).ok().map(|_| lines)
}

fn write_all(queue: &Receiver<Message>) {
    for message in queue {
        match message {
            Message::Line(line) => {
                let dropped = DROPPED.swap(0, Relaxed);
                if dropped > 0 {
                    put(&format!("garm-bootstrap: {dropped} log lines were dropped here\n"));
                }
                put(&line);
            }
            Message::Flush(done) => drop(done.send(())),
        }
    }
}

fn put(line: &str) {
    // A log that cannot be written must not end the boot.
    let _ = io::stderr().lock().write_all(line.as_bytes());
}
