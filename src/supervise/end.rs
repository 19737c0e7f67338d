//! How a runner's life ended, and what that means.

use nix::sys::signal::Signal;

use super::{Manner, Order, Why};
use crate::exit::Exit;
use crate::forge::{Cause, JobResult};

/// How the last process of the runner ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum How {
    Exited(i32),
    /// By a signal, the number of which this is.
    Signalled(i32),
    /// There was none: the program could not be started; why, as it reads after "failed to".
    NotStarted(String),
    /// It went away to replace itself, and did not come back in time.
    UpdateFailed,
    /// It was no child of this agent, and the kernel does not tell a stranger.
    Unseen,
    /// The kernel did not say.
    Unknown(String),
}

impl How {
    /// Whether it was SIGKILL; a shell in between makes a code of it.
    pub(super) fn is_kill(&self) -> bool {
        const SIGKILL: i32 = Signal::SIGKILL as i32;
        matches!(self, Self::Signalled(SIGKILL) | Self::Exited(137))
    }
}

/// The one job of a runner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub name: String,
    /// `None`: the runner ended without saying.
    pub result: Option<JobResult>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    pub how: How,
    pub job: Option<Job>,
    /// Whether it was online at any time.
    pub was_listening: bool,
    /// The last and strongest order to leave.
    pub asked: Option<Order>,
    /// What its last words or its files say; only for a runner that had no job, because a job can print
    /// anything.
    pub cause: Option<Cause>,
    /// Whether the kernel has killed it for want of memory.
    pub out_of_memory: bool,
    /// The beginning and end of what its last process printed: readable, without secrets.
    pub last_words: String,
    /// The last lines of its own log, where it has ended badly: readable, without secrets.
    pub log: String,
    /// How often it was started.
    pub starts: u32,
}

impl End {
    /// For a life whose end nobody has recorded.
    pub(super) fn lost() -> Self {
        Self {
            how: How::Unknown("the supervisor itself has failed".to_owned()),
            job: None,
            was_listening: false,
            asked: None,
            cause: None,
            out_of_memory: false,
            last_words: String::new(),
            log: String::new(),
            starts: 0,
        }
    }

    /// The exit code of ours that this end asks for.
    pub fn exit(&self) -> Exit {
        match self.asked {
            Some(order) => self.exit_when_asked(order),
            None => self.exit_by_itself(),
        }
    }

    /// One sentence about the end, for a person.
    pub fn summary(&self) -> String {
        let how = match &self.how {
            How::Exited(code) => format!("the runner ended with code {code}"),
            How::Signalled(signal) => format!("the runner was killed by signal {signal}"),
            How::NotStarted(error) => format!("failed to {error}"),
            How::UpdateFailed => "the runner did not come back from its update".to_owned(),
            How::Unseen => "the runner has ended".to_owned(),
            How::Unknown(why) => format!("the runner's end is unknown: {why}"),
        };
        let cause = self.cause.map_or("", |cause| match cause {
            Cause::RegistrationGone => ": its registration is gone from the forge",
            Cause::NotConfigured => ": it is not configured",
            Cause::SessionConflict => ": another process holds its session",
            Cause::VersionRefused => ": the forge refuses this version of the runner",
        });
        let job = match &self.job {
            None => "no job was run".to_owned(),
            Some(Job { name, result: None }) => format!("the job {name} was not finished"),
            Some(Job { name, result: Some(result) }) => format!("job {name}: {}", result.name()),
        };
        let asked = self.asked.map_or("", |order| match order.why {
            Why::Asked => ", as asked",
            Why::NotReady => ", stopped because it did not listen in time",
            Why::IdleLimit => ", stopped by the idle limit",
            Why::JobLimit => ", stopped by the job limit",
            Why::Lingers => ", stopped because it did not leave after its job",
            Why::Lifetime => ", stopped by the lifetime limit",
            Why::DrainTimeout => ", stopped by the drain timeout",
            Why::Forgotten => ", stopped because GARM has forgotten this instance",
            Why::Ghost => ", stopped because the forge has forgotten it",
            Why::BootFailed => ", stopped because the boot has failed",
        });
        let memory = if self.out_of_memory { " (by the kernel, for want of memory)" } else { "" };
        format!("{how}{memory}{cause}{asked}; {job}")
    }

    fn exit_when_asked(&self, Order { manner, why }: Order) -> Exit {
        if manner == Manner::Drain && self.job.is_some() {
            // A job that came to grief while it was waited for did so by no doing of ours.
            return self.exit_by_itself();
        }
        let result = self.job.as_ref().and_then(|job| job.result);
        match why {
            Why::NotReady => Exit::NotReady,
            Why::BootFailed => Exit::Stopped,
            Why::Forgotten => Exit::Superseded,
            Why::Ghost => Exit::RegistrationGone,
            // It came to its own end in that very moment.
            Why::JobLimit if result.is_some_and(|result| result != JobResult::Canceled) => {
                Exit::Done
            }
            Why::IdleLimit | Why::JobLimit | Why::Lingers | Why::Lifetime => Exit::LimitPassed,
            Why::Asked | Why::DrainTimeout => match (&self.job, result) {
                (None, _) if self.was_listening => Exit::Done,
                (None, _) => Exit::Stopped,
                (Some(_), None | Some(JobResult::Canceled)) => Exit::Killed,
                (Some(_), Some(_)) => Exit::Done,
            },
        }
    }

    fn exit_by_itself(&self) -> Exit {
        if self.job.as_ref().is_some_and(|job| job.result.is_some()) {
            return Exit::Done;
        }
        match (&self.how, self.cause) {
            (How::Exited(7), _) | (_, Some(Cause::VersionRefused)) => Exit::VersionRefused,
            (How::Exited(5), _) | (_, Some(_)) => Exit::RegistrationGone,
            (How::Signalled(_), _) => Exit::Killed,
            _ if self.out_of_memory => Exit::Killed,
            (How::Unknown(_), _) => Exit::Internal,
            (How::Exited(_) | How::Unseen, _) if self.was_listening || self.job.is_some() => {
                Exit::NoJob
            }
            (How::Exited(_) | How::Unseen | How::NotStarted(_) | How::UpdateFailed, _) => {
                Exit::NotReady
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(how: How) -> End {
        End { how, was_listening: true, starts: 1, ..End::lost() }
    }

    fn job(result: Option<JobResult>) -> Job {
        Job { name: "build".to_owned(), result }
    }

    fn asked(manner: Manner, why: Why) -> Order {
        Order { manner, why }
    }

    #[test]
    fn an_end_that_nobody_asked_for_has_its_exit_code() {
        use JobResult::{Canceled, Failed, Succeeded};
        let ok = || ended(How::Exited(0));
        let killed = || ended(How::Signalled(9));
        let table = [
            (End { job: Some(job(Some(Succeeded))), ..ok() }, Exit::Done),
            (End { job: Some(job(Some(Failed))), ..ok() }, Exit::Done),
            (End { job: Some(job(Some(Canceled))), ..ended(How::Exited(2)) }, Exit::Done),
            (End { job: Some(job(None)), ..ok() }, Exit::NoJob),
            (End { job: Some(job(None)), ..killed() }, Exit::Killed),
            (ok(), Exit::NoJob),
            (ended(How::Exited(1)), Exit::NoJob),
            (ended(How::Exited(2)), Exit::NoJob),
            (ended(How::Exited(5)), Exit::RegistrationGone),
            (ended(How::Exited(7)), Exit::VersionRefused),
            (killed(), Exit::Killed),
            (ended(How::UpdateFailed), Exit::NotReady),
            (ended(How::Unknown(String::new())), Exit::Internal),
            (End { was_listening: false, ..ok() }, Exit::NotReady),
            (End { was_listening: false, ..ended(How::Exited(1)) }, Exit::NotReady),
            (End { was_listening: false, ..ended(How::NotStarted(String::new())) }, Exit::NotReady),
            (
                End { cause: Some(Cause::VersionRefused), ..ended(How::Exited(1)) },
                Exit::VersionRefused,
            ),
            (
                End { cause: Some(Cause::RegistrationGone), ..ended(How::Exited(1)) },
                Exit::RegistrationGone,
            ),
            (
                End {
                    cause: Some(Cause::NotConfigured),
                    was_listening: false,
                    ..ended(How::Exited(1))
                },
                Exit::RegistrationGone,
            ),
        ];
        for (end, exit) in table {
            assert_eq!(end.exit(), exit, "{end:?}");
        }
    }

    #[test]
    fn an_end_that_was_asked_for_has_its_exit_code() {
        use JobResult::{Canceled, Failed, Succeeded};
        use Manner::{Drain, Stop};
        let ok = || ended(How::Exited(0));
        let killed = || ended(How::Signalled(9));
        let table = [
            // By a signal.
            (End { asked: Some(asked(Drain, Why::Asked)), ..ok() }, Exit::Done),
            (End { asked: Some(asked(Stop, Why::Asked)), ..killed() }, Exit::Done),
            (
                End { asked: Some(asked(Drain, Why::Asked)), was_listening: false, ..killed() },
                Exit::Stopped,
            ),
            (
                End { asked: Some(asked(Drain, Why::Asked)), job: Some(job(Some(Failed))), ..ok() },
                Exit::Done,
            ),
            (
                End { asked: Some(asked(Drain, Why::Asked)), job: Some(job(None)), ..killed() },
                Exit::Killed,
            ),
            (
                End { asked: Some(asked(Drain, Why::Asked)), job: Some(job(None)), ..ok() },
                Exit::NoJob,
            ),
            (
                End { asked: Some(asked(Stop, Why::Asked)), job: Some(job(None)), ..ok() },
                Exit::Killed,
            ),
            (
                End {
                    asked: Some(asked(Stop, Why::Asked)),
                    job: Some(job(Some(Canceled))),
                    ..ok()
                },
                Exit::Killed,
            ),
            (
                End {
                    asked: Some(asked(Stop, Why::Asked)),
                    job: Some(job(Some(Succeeded))),
                    ..ok()
                },
                Exit::Done,
            ),
            (
                End { asked: Some(asked(Stop, Why::DrainTimeout)), job: Some(job(None)), ..ok() },
                Exit::Killed,
            ),
            // For another reason.
            (End { asked: Some(asked(Drain, Why::IdleLimit)), ..ok() }, Exit::LimitPassed),
            (
                End {
                    asked: Some(asked(Drain, Why::IdleLimit)),
                    job: Some(job(Some(Succeeded))),
                    ..ok()
                },
                Exit::Done,
            ),
            (
                End {
                    asked: Some(asked(Stop, Why::JobLimit)),
                    job: Some(job(Some(Canceled))),
                    ..ok()
                },
                Exit::LimitPassed,
            ),
            (
                End {
                    asked: Some(asked(Stop, Why::JobLimit)),
                    job: Some(job(Some(Succeeded))),
                    ..ok()
                },
                Exit::Done,
            ),
            (End { asked: Some(asked(Drain, Why::Lifetime)), ..ok() }, Exit::LimitPassed),
            (
                End { asked: Some(asked(Drain, Why::Lifetime)), job: Some(job(None)), ..killed() },
                Exit::Killed,
            ),
            (
                End {
                    asked: Some(asked(Drain, Why::Lingers)),
                    job: Some(job(Some(Failed))),
                    ..killed()
                },
                Exit::Done,
            ),
            (End { asked: Some(asked(Drain, Why::Forgotten)), ..ok() }, Exit::Superseded),
            (End { asked: Some(asked(Drain, Why::Ghost)), ..ok() }, Exit::RegistrationGone),
            (
                End { asked: Some(asked(Stop, Why::NotReady)), was_listening: false, ..killed() },
                Exit::NotReady,
            ),
        ];
        for (end, exit) in table {
            assert_eq!(end.exit(), exit, "{end:?}");
        }
    }

    #[test]
    fn the_summary_says_how_why_and_what_became_of_the_job() {
        let end = End {
            job: Some(job(None)),
            asked: Some(asked(Manner::Stop, Why::DrainTimeout)),
            ..ended(How::Signalled(9))
        };
        assert_eq!(
            end.summary(),
            "the runner was killed by signal 9, stopped by the drain timeout; \
             the job build was not finished"
        );
    }
}
