//! How often we were asked to leave.
//!
//! The first signal asks politely, the second means it. Who sent it does not matter: systemd sends
//! SIGTERM, a terminal SIGINT, a closed terminal SIGHUP.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

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
            loop {
                let [term, int, hup, quit] = &mut kinds;
                any(term, int, hup, quit).await;
                send.send_modify(|count| *count += 1);
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

async fn any(term: &mut Signal, int: &mut Signal, hup: &mut Signal, quit: &mut Signal) {
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
        _ = hup.recv() => {}
        _ = quit.recv() => {}
    }
}
