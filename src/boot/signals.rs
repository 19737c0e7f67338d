//! How often we were asked to leave.
//!
//! The first signal asks politely, the second means it. Who sent it does not matter: systemd sends
//! SIGTERM, a terminal SIGINT, a closed terminal SIGHUP. Some say one thing twice: a session that ends sends SIGHUP
//! right after SIGTERM (`SendSIGHUP=` of systemd.kill(5)), and that must not cost a job.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::Instant;

/// Within this time another kind of signal is the same asking.
const TOGETHER: Duration = Duration::from_secs(1);

/// Counts the signals that ask this process to leave. Cloning counts on.
#[derive(Debug, Clone)]
pub struct Signals {
    count: watch::Receiver<u32>,
}

impl Signals {
    /// Starts to listen, on the current runtime.
    pub fn listen() -> std::io::Result<Self> {
        let mut kinds = [
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
            signal(SignalKind::quit())?,
        ];
        let (send, count) = watch::channel(0);
        tokio::spawn(async move {
            let mut counted: Option<(usize, Instant)> = None;
            loop {
                let [term, int, hup, quit] = &mut kinds;
                let (kind, now) = (any(term, int, hup, quit).await, Instant::now());
                let is_the_same = |(last, at)| last != kind && now - at < TOGETHER;
                if !counted.is_some_and(is_the_same) {
                    counted = Some((kind, now));
                    send.send_modify(|count| *count += 1);
                }
            }
        });
        Ok(Self { count })
    }

    /// Signals that somebody else counts: for a boot inside another program.
    pub fn counted_by(count: watch::Receiver<u32>) -> Self {
        Self { count }
    }

    pub fn count(&self) -> u32 {
        *self.count.borrow()
    }

    /// Returns the count when it is above `seen`; never if nobody listens any more.
    pub async fn more_than(&self, seen: u32) -> u32 {
        let mut count = self.count.clone();
        let reached = count.wait_for(|count| *count > seen).await.map(|count| *count);
        match reached {
            Ok(count) => count,
            Err(_) => std::future::pending().await,
        }
    }
}

/// Which of them came.
async fn any(term: &mut Signal, int: &mut Signal, hup: &mut Signal, quit: &mut Signal) -> usize {
    tokio::select! {
        _ = term.recv() => 0,
        _ = int.recv() => 1,
        _ = hup.recv() => 2,
        _ = quit.recv() => 3,
    }
}
