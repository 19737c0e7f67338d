//! What the service manager hears of us.
//!
//! It is told that we are ready when GARM has heard that the runner is idle, or a job was faster: then
//! `systemctl start` returns with the truth.

use std::time::Duration;

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
        Status::Booting => service.status(&format!("booting: {}", life.phase)),
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

/// Tells it again and again that we are alive, as often as it wants to hear it. From the one thread that
/// does everything else, so that one which hangs is noticed.
pub(super) async fn stay_alive(service: Service) {
    let Some(within) = service.watchdog else { return };
    let mut beat = tokio::time::interval((within / 2).max(Duration::from_millis(100)));
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        beat.tick().await;
        service.alive();
    }
}
