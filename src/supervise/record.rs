//! What is known of a runner's life so far, and what that makes of it. No I/O but for a look at its
//! registration at the end.

use tokio::time::Instant;

use super::end::{End, How, Job};
use super::leave::{Leave, Times, Work};
use super::limits::Clock;
use super::progress::Progress;
use super::{Launch, Order, State};
use crate::forge::{Cause, Event};
use crate::text::{Tail, one_line, readable};

#[derive(Default)]
pub(super) struct Record {
    pub(super) progress: Progress,
    pub(super) leave: Leave,
    /// The strongest order to leave.
    pub(super) asked: Option<Order>,
    pub(super) starts: u32,
    pub(super) clock: Clock,
    /// Whether the kernel has killed the last process for want of memory.
    pub(super) out_of_memory: bool,
    was_listening: bool,
    /// What the present process has printed.
    tail: Tail,
}

impl Record {
    /// Of a life that another agent has seen.
    pub(super) fn recalled(
        progress: Progress,
        clock: Clock,
        starts: u32,
        asked: Option<Order>,
        leave: Leave,
    ) -> Self {
        let was_listening = clock.listening.is_some();
        Self { progress, leave, asked, starts, clock, was_listening, ..Self::default() }
    }

    pub(super) fn started(&mut self) {
        self.starts += 1;
        self.clock.started(Instant::now());
        self.tail = Tail::default();
    }

    pub(super) fn printed(&mut self, line: &[u8]) {
        self.tail.push(line);
        self.tail.push(b"\n");
    }

    /// Whether `event` has changed anything.
    pub(super) fn heard(&mut self, event: Event, times: Times, now: Instant) -> bool {
        let Some(progress) = self.progress.after(event) else { return false };
        self.advance(progress, times, now);
        true
    }

    /// What the runner's own log tells of its state, where it is further than what was heard. `stays`: it may
    /// have gone on to another job.
    pub(super) fn learn(
        &mut self,
        progress: Progress,
        stays: bool,
        times: Times,
        now: Instant,
    ) -> bool {
        let is_news = match (&self.progress, &progress) {
            (Progress::Running { name }, Progress::Finished { name: done, .. }) => {
                stays || name == done
            }
            (now, logged) if stays && logged.has_seen_job() => now != logged,
            (now, logged) => logged.rank() > now.rank(),
        };
        if is_news {
            self.advance(progress, times, now);
        }
        is_news
    }

    fn advance(&mut self, progress: Progress, times: Times, now: Instant) {
        self.leave = match progress {
            Progress::Running { .. } => self.leave.job_started(times, now),
            Progress::Finished { .. } => self.leave.job_completed(times, now),
            Progress::Starting | Progress::Listening => self.leave,
        };
        self.clock.progressed(&progress, now);
        self.progress = progress;
        self.was_listening |= self.progress == Progress::Listening;
    }

    /// The strongest order counts, and of two equals the first.
    pub(super) fn note(&mut self, order: Order) {
        if self.asked.is_none_or(|asked| order.manner > asked.manner) {
            self.asked = Some(order);
        }
    }

    pub(super) fn work(&self) -> Work {
        match self.progress {
            Progress::Starting | Progress::Listening => Work::None,
            Progress::Running { .. } => Work::Job,
            Progress::Finished { .. } => Work::JustDone,
        }
    }

    /// What others are to see.
    pub(super) fn state(&self) -> State {
        match (self.asked, self.job()) {
            (Some(order), _) if self.leave.is_under_way() => State::Stopping { why: order.why },
            (_, Some(job)) if job.result.is_some() => State::Finishing { job },
            (_, Some(job)) => State::Running { job: job.name },
            (_, None) if self.progress == Progress::Listening => State::Listening,
            (_, None) => State::Starting,
        }
    }

    pub(super) fn end(&self, how: How, launch: &Launch) -> End {
        let (job, last_words) = (self.job(), self.tail.text());
        let cause = if job.is_some() {
            None
        } else if how == How::Exited(2) && !launch.dialect.is_registered(&launch.home) {
            Some(Cause::RegistrationGone)
        } else {
            launch.dialect.cause(&last_words)
        };
        End {
            how,
            job,
            was_listening: self.was_listening,
            asked: self.asked,
            cause,
            out_of_memory: self.out_of_memory,
            last_words,
            log: String::new(),
            starts: self.starts,
        }
    }

    /// The job under a name that is fit to be shown.
    fn job(&self) -> Option<Job> {
        let (name, result) = match &self.progress {
            Progress::Starting | Progress::Listening => return None,
            Progress::Running { name } => (name, None),
            Progress::Finished { name, result } => (name, Some(*result)),
        };
        Some(Job { name: one_line(&readable(name.as_bytes())), result })
    }
}
