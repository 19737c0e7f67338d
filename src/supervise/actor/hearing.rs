//! What the actor does with the runner's lines.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::super::output::{Lines, Output, Source};
use super::super::process::Runner;
use super::super::progress::Progress;
use super::Actor;
use crate::secret::redact;

/// How long the output is still awaited when the process group is gone: something that left the group
/// may hold the pipe open for ever.
pub(super) const LAST_WORDS: Duration = Duration::from_millis(500);
/// How long the runner's pipes are heard before it is signalled for having no job: that it got one may stand in
/// them, unread.
const UNREAD_WORDS: Duration = Duration::from_millis(50);

impl Actor {
    pub(super) fn hear(&mut self, lines: Lines<'_>) {
        let source = lines.source;
        lines.for_each(|line| {
            self.record.printed(line);
            let line = String::from_utf8_lossy(line);
            if source == Source::Stdout {
                self.heed(&line);
            }
            self.forward.send(&redact(&line));
        });
    }

    /// Lets a line of the runner's stdout change the state, if it is one that may.
    fn heed(&mut self, line: &str) {
        let Some(event) = self.launch.dialect.read_line(line) else { return };
        if self.record.heard(event, self.times(), Instant::now()) {
            self.remember();
            self.publish();
        }
    }

    /// Hears what stands in the pipes by now. One that does not listen yet has no job, and is not waited for.
    pub(super) async fn hear_unread(&mut self, output: &mut Output) {
        if self.record.progress == Progress::Starting {
            return;
        }
        let _ = timeout(UNREAD_WORDS, self.hear_to_the_end(output)).await;
    }

    /// Ends what the runner has left in its group, and hears the last words of both.
    pub(super) async fn bury(&mut self, runner: &mut Runner) {
        let Runner { group, output, .. } = runner;
        self.hear_until(output, group.end_rest()).await;
        self.hear_rest(output).await;
    }

    /// Hears what an ended process has left in its pipes.
    pub(super) async fn hear_rest(&mut self, output: &mut Output) {
        let _ = timeout(LAST_WORDS, self.hear_to_the_end(output)).await;
    }

    pub(super) async fn hear_to_the_end(&mut self, output: &mut Output) {
        while let Some(lines) = output.next().await {
            self.hear(lines);
        }
    }

    /// Hears until `done`, at the least.
    pub(super) async fn hear_until<T>(
        &mut self,
        output: &mut Output,
        done: impl Future<Output = T>,
    ) -> T {
        let mut output_open = true;
        tokio::pin!(done);
        loop {
            tokio::select! {
                value = &mut done => return value,
                lines = output.next(), if output_open => match lines {
                    Some(lines) => self.hear(lines),
                    None => output_open = false,
                },
            }
        }
    }
}
