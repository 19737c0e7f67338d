//! What the service manager hears of us.
//!
//! It is told that we are ready when GARM has heard that the runner is idle, or a job was faster: then
//! `systemctl start` returns with the truth.

use super::Signals;
use crate::host::service::Service;
use crate::state::{Life, Status};
use crate::timeline::Phase;

/// Tells it how things stand.
pub(super) fn tell(service: &Service, life: &Life) {
    if !service.is_there() {
        return;
    }
    let is_up = life.phase == Phase::Supervise;
    match life.status {
        Status::Booting if is_up => {
            service.status("the runner is up; GARM has not taken it as idle");
        }
        Status::Booting => service.status(&format!("{}: {}", life.phase, doing(life.phase))),
        Status::Idle => service.status("idle: waiting for a job"),
        Status::Running => {
            let job = life.job.as_deref().unwrap_or_default();
            service.status(&format!("running the job {job}"));
        }
        Status::Ended => {
            service.status(life.message.as_deref().unwrap_or_default());
            service.stopping();
        }
    }
    if is_up || matches!(life.status, Status::Idle | Status::Running) {
        service.ready();
    }
}

fn doing(phase: Phase) -> &'static str {
    match phase {
        Phase::Preflight => "looking at this machine",
        Phase::Discover => "asking GARM who this is",
        Phase::Fetch => "finding or downloading the runner",
        Phase::Dependencies => "looking for what the runner needs",
        Phase::Configure => "configuring the runner",
        Phase::Introduce => "telling GARM about this system",
        Phase::Start => "waiting until the runner listens",
        Phase::Announce => "telling GARM that the runner is idle",
        Phase::Supervise => "watching over the runner",
        Phase::Finish => "telling GARM how it ended",
    }
}

/// Passes it on when we are asked to leave, and until then and after that that we are alive.
pub(super) async fn keep_informed(service: Service, signals: Signals) {
    let asked = async {
        signals.more_than(0).await;
        service.stopping();
    };
    tokio::join!(service.stay_alive(), asked);
}
