//! Whether a download still moves.

use std::time::{Duration, Instant};

/// The slowest that a download may be. A limit on its whole time would fail a slow line, and none at all
/// would sit out the boot beside a server that sends a byte a minute.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    pub bytes_per_second: u64,
    /// Averaged over so much time of waiting for the network; what the disk takes does not count.
    pub over: Duration,
}

impl Default for Pace {
    /// A runner of 200 MB takes five and a half hours at this rate: it ends nobody's honest download.
    fn default() -> Self {
        Self { bytes_per_second: 10_000, over: Duration::from_secs(60) }
    }
}

/// Less came in the last [`Pace::over`] than there had to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stalled {
    pub(super) received: u64,
}

/// Looks at a body's pace while it is waited for.
pub(super) struct Watch {
    pace: Pace,
    /// Of the present stretch of [`Pace::over`].
    waited: Duration,
    received: u64,
}

impl Watch {
    pub(super) fn new(pace: Pace) -> Self {
        Self { pace, waited: Duration::ZERO, received: 0 }
    }

    /// What `next` gives, or that it is not worth waiting for.
    pub(super) async fn wait<E>(
        &mut self,
        next: impl Future<Output = Result<Option<bytes::Bytes>, E>>,
    ) -> Result<Result<Option<bytes::Bytes>, E>, Stalled> {
        tokio::pin!(next);
        loop {
            let began = Instant::now();
            let left = self.pace.over.saturating_sub(self.waited);
            let chunk = tokio::time::timeout(left, &mut next).await;
            self.waited += began.elapsed();
            match chunk {
                Ok(chunk) => {
                    if let Ok(Some(bytes)) = &chunk {
                        self.received += bytes.len() as u64;
                    }
                    return Ok(chunk);
                }
                Err(_) if self.received < self.least() => {
                    return Err(Stalled { received: self.received });
                }
                Err(_) => *self = Self::new(self.pace),
            }
        }
    }

    fn least(&self) -> u64 {
        let millis = u64::try_from(self.pace.over.as_millis()).unwrap_or(u64::MAX);
        self.pace.bytes_per_second.saturating_mul(millis) / 1000
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bytes::Bytes;

    use super::*;

    /// Pieces of `size` bytes, one every `every`, until it has stalled or `count` have come.
    async fn drip(pace: Pace, size: usize, every: Duration, count: u32) -> Result<(), Stalled> {
        let mut watch = Watch::new(pace);
        for _ in 0..count {
            let next = async {
                tokio::time::sleep(every).await;
                Ok::<_, Infallible>(Some(Bytes::from(vec![0; size])))
            };
            let _ = watch.wait(next).await?;
        }
        Ok(())
    }

    const PACE: Pace = Pace { bytes_per_second: 1000, over: Duration::from_millis(200) };

    #[tokio::test]
    async fn a_body_that_drips_has_stalled_although_it_is_never_silent() {
        let stalled = drip(PACE, 1, Duration::from_millis(10), 1000).await.unwrap_err();
        assert!((1..=20).contains(&stalled.received), "{stalled:?}");
    }

    #[tokio::test]
    async fn a_silent_body_has_stalled() {
        let stalled = drip(PACE, 1, Duration::from_secs(3600), 1).await.unwrap_err();
        assert_eq!(stalled.received, 0);
    }

    #[tokio::test]
    async fn a_body_that_is_slow_but_moves_is_waited_for() {
        drip(PACE, 100, Duration::from_millis(10), 60).await.unwrap();
    }
}
