//! The runner's process: our own child, or one that an earlier agent has started and left to us.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use nix::sys::signal::Signal;
use tokio::process::Child;

use super::end::How;
use super::output::Output;
use crate::host::process::{Group, ProcessError, Program};
use crate::host::service::Service;
use crate::host::{oom, pidfd};

/// Under which names the service manager keeps what an agent needs to lead the runner on.
pub const KEPT: [&str; 3] = ["runner-process", "runner-stdout", "runner-stderr"];

/// A started runner. Kept apart from the actor, so that waiting for it and answering to what it says
/// do not lock each other out.
pub(super) struct Runner {
    pub(super) process: Process,
    /// Its process id, which a child forgets when it is reaped.
    pub(super) pid: Option<u32>,
    pub(super) group: Group,
    pub(super) output: Output,
    pub(super) memory: oom::Watch,
}

pub(super) enum Process {
    Own(Child),
    Adopted(pidfd::Watched),
}

/// What the service manager has kept of a runner whose agent has crashed.
#[derive(Debug)]
pub struct Orphan {
    pub pid: u32,
    pub process: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

impl Runner {
    /// Starts `program`; what another agent would need goes to `service`.
    pub(super) fn start(program: &Program, service: &Service) -> Result<Self, ProcessError> {
        let memory = oom::Watch::start();
        let mut child = program.spawn()?;
        let (pid, group, output) = (child.id(), Group::of(&child), Output::of(&mut child));
        if service.keeps() {
            keep(service, pid, &output);
        }
        Ok(Self { process: Process::Own(child), pid, group, output, memory })
    }

    /// Takes over one that runs, or has ended meanwhile.
    pub(super) fn adopt(orphan: Orphan) -> io::Result<Self> {
        let Orphan { pid, process, stdout, stderr } = orphan;
        let (pid, group) = match pidfd::pid(process.as_fd()) {
            // The handle knows better than notes that may be of an earlier start.
            Ok(Some(pid)) => (pid, Group::led_by(pid)),
            Ok(None) => (pid, Group::once_led_by(pid)),
            Err(_) => (pid, Group::led_by(pid)),
        };
        Ok(Self {
            process: Process::Adopted(pidfd::Watched::new(process)?),
            pid: Some(pid),
            group,
            output: Output::from_fds(stdout, stderr)?,
            memory: oom::Watch::start(),
        })
    }
}

impl Drop for Runner {
    /// A fault of our own must not leave the runner alone, with nobody to read its output.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.group.signal(Signal::SIGKILL);
        }
    }
}

impl Process {
    /// Waits for the end. Nothing is lost if the future is dropped.
    pub(super) async fn wait(&mut self) -> How {
        match self {
            Self::Own(child) => how(child.wait().await),
            Self::Adopted(process) => match process.ended().await {
                Ok(Some(status)) => how(Ok(status)),
                Ok(None) => How::Unseen,
                Err(error) => How::Unknown(error.to_string()),
            },
        }
    }
}

fn keep(service: &Service, pid: Option<u32>, output: &Output) {
    let [process, stdout, stderr] = KEPT;
    // It keeps several under one name, and those of an earlier start would be taken for this one's.
    forget(service);
    match pid.map(pidfd::open) {
        Some(Ok(handle)) => service.keep(process, handle.as_fd()),
        // Without it there is no adoption; the rest would only lie there.
        _ => return,
    }
    let (out, err) = output.fds();
    for (name, fd) in [(stdout, out), (stderr, err)] {
        if let Some(fd) = fd {
            service.keep(name, fd);
        }
    }
}

/// What was kept is of no use any more.
pub(super) fn forget(service: &Service) {
    for name in KEPT {
        service.forget(name);
    }
}

fn how(status: io::Result<ExitStatus>) -> How {
    match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => How::Exited(code),
            (None, Some(signal)) => How::Signalled(signal),
            (None, None) => How::Unknown(format!("its status is {status}")),
        },
        Err(error) => How::Unknown(error.to_string()),
    }
}
