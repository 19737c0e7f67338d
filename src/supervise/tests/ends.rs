use super::*;
use crate::exit::Exit;
use crate::forge::{Cause, JobResult};

async fn life_of(script: &str) -> (End, Home) {
    let life = Home::new(script).start();
    (life.end().await, life.home)
}

#[tokio::test]
async fn every_exit_code_is_acted_on() {
    let table = [
        (0, How::Exited(0), 1, Exit::NoJob),
        (1, How::Exited(1), 1, Exit::NoJob),
        (2, How::Exited(2), 3, Exit::NoJob),
        (3, How::UpdateFailed, 1, Exit::NotReady),
        (4, How::UpdateFailed, 1, Exit::NotReady),
        (5, How::Exited(5), 1, Exit::RegistrationGone),
        (6, How::Exited(6), 3, Exit::NoJob),
        (7, How::Exited(7), 1, Exit::VersionRefused),
        (99, How::Exited(99), 1, Exit::NoJob),
    ];
    for (code, how, starts, exit) in table {
        let mut home = Home::new(&format!("say Listening for Jobs; exit {code}"));
        home.launch.relaunch.as_mut().unwrap().update_limit = Duration::from_millis(300);
        let end = home.start().end().await;
        assert_eq!((&end.how, end.starts, end.exit()), (&how, starts, exit), "code {code}");
        assert!(end.was_listening);
    }
}

#[tokio::test]
async fn a_command_of_the_users_own_is_started_once_whatever_its_code_is() {
    for code in [2, 3, 6] {
        let mut home = Home::new(&format!("exit {code}"));
        home.launch.relaunch = None;
        let end = home.start().end().await;
        assert_eq!((end.how, end.starts), (How::Exited(code), 1));
    }
}

#[tokio::test]
async fn death_by_signal_is_told_as_such() {
    let (end, _) = life_of("say Listening for Jobs; say Running job: x; kill -9 $$").await;
    assert_eq!((&end.how, end.exit()), (&How::Signalled(9), Exit::Killed));
    assert_eq!(end.job, Some(Job { name: "x".to_owned(), result: None }));
}

#[tokio::test]
async fn a_job_that_is_done_is_success_with_its_result() {
    let (end, _) = life_of(
        "say Listening for Jobs; say Running job: build; \
         say Job build completed with result: Failed; exit 0",
    )
    .await;
    assert_eq!(end.job.as_ref().and_then(|j| j.result), Some(JobResult::Failed));
    assert_eq!(end.exit(), Exit::Done);
    assert_eq!(end.last_words.lines().count(), 3);
}

#[tokio::test]
async fn a_runner_that_had_a_job_is_never_started_again() {
    let (end, home) = life_of(
        "say Listening for Jobs; say Running job: x; rm .runner; \
         say Job x completed with result: Canceled; exit 2",
    )
    .await;
    assert_eq!((end.starts, end.exit()), (1, Exit::Done));
    assert_eq!(home.read("starts"), "1\n");
}

#[tokio::test]
async fn a_runner_without_its_registration_is_not_started_again() {
    for file in [".runner", ".credentials"] {
        let (end, _) = life_of(&format!("say Listening for Jobs; rm {file}; exit 2")).await;
        assert_eq!((end.starts, end.cause), (1, Some(Cause::RegistrationGone)), "{file}");
        assert_eq!(end.exit(), Exit::RegistrationGone);
    }
}

#[tokio::test]
async fn an_end_that_is_retryable_is_retried_and_the_next_start_may_succeed() {
    let (end, _) = life_of(
        "[ $started = 0 ] && exit 2; say Listening for Jobs; say Running job: x; \
         say Job x completed with result: Succeeded; exit 0",
    )
    .await;
    assert_eq!((end.starts, end.exit()), (2, Exit::Done));
}

#[tokio::test]
async fn the_cause_is_read_from_stderr() {
    let (end, _) = life_of(
        "echo 'An error occurred: Runner version v2.300.0 is deprecated and cannot receive \
         messages.' >&2; exit 1",
    )
    .await;
    assert_eq!((end.cause, end.exit()), (Some(Cause::VersionRefused), Exit::VersionRefused));
    assert!(end.last_words.contains("v2.300.0"));
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named() {
    let mut home = Home::new("");
    home.launch.program.path = home.path().join("bin/Runner.Missing");
    let end = home.start().end().await;
    let How::NotStarted(error) = &end.how else { panic!("{end:?}") };
    assert!(error.contains("bin/Runner.Missing: no such file"), "{error}");
    assert_eq!((end.starts, end.exit()), (0, Exit::NotReady));
}

#[tokio::test]
async fn nothing_of_the_process_group_is_left_after_the_end() {
    let (end, home) = life_of(
        "(sh -c 'trap \"\" TERM; while :; do sleep 60; done' & echo $! >orphan); \
         sleep 60 & echo $! >child; say Listening for Jobs; exit 0",
    )
    .await;
    assert_eq!(end.how, How::Exited(0));
    for file in ["orphan", "child"] {
        let pid = home.read(file);
        assert!(!pid.is_empty() && !is_alive(pid.trim()), "{file} {pid}");
    }
}

#[tokio::test]
async fn a_process_that_left_the_group_and_holds_the_pipe_does_not_hold_the_end_up() {
    let script = "setsid sh -c 'echo $$ >escaped; exec sleep 60' & \
        while ! [ -s escaped ]; do :; done; say Listening for Jobs; exit 0";
    let began = std::time::Instant::now();
    let (end, home) = life_of(script).await;
    assert_eq!(end.how, How::Exited(0));
    assert!(began.elapsed() < Duration::from_secs(10));
    let pid = nix::unistd::Pid::from_raw(home.read("escaped").trim().parse().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
}

#[tokio::test]
async fn a_runner_that_is_up_lets_wait_up_return_and_one_that_is_not_says_why() {
    let life = Home::new("say Listening for Jobs; trap 'exit 0' INT; idle").start();
    assert_eq!(in_time(life.supervisor.wait_up()).await, Ok(()));
    life.supervisor.drain(Why::Asked);
    life.end().await;
    let life = Home::new("echo no good >&2; exit 1").start();
    let end = in_time(life.supervisor.wait_up()).await.unwrap_err();
    assert_eq!((end.exit(), end.last_words.as_str()), (Exit::NotReady, "no good"));
}

#[tokio::test]
async fn a_fault_of_the_supervisor_itself_costs_nobody_a_job() {
    let mut home = Home::new(
        "trap 'echo INT >>got' INT; trap 'echo TERM >>got' TERM; say Listening for Jobs\n\
         sleep 60 & echo $! >child; say Running job: x; sleep 1\n\
         say Job x completed with result: Failed; exit 0",
    );
    home.launch.limits.job = Some(Duration::MAX);
    let life = home.start();
    life.running().await;
    life.supervisor.drain(Why::Asked);
    let end = life.end().await;
    assert_eq!(end.job.as_ref().and_then(|job| job.result), Some(JobResult::Failed));
    assert_eq!((end.exit(), life.home.read("got").as_str()), (Exit::Done, ""));
    assert!(!is_alive(life.home.read("child").trim()));
}

#[tokio::test]
async fn a_stop_is_heeded_after_a_fault_of_the_supervisor_itself() {
    let mut home = Home::new(
        "trap 'echo INT >>got' INT; trap '' TERM; say Listening for Jobs; say Running job: x; idle",
    );
    home.launch.limits.job = Some(Duration::MAX);
    home.launch.stop_grace = Duration::from_millis(300);
    let life = home.start();
    life.running().await;
    life.supervisor.stop(Why::Asked);
    let end = life.end().await;
    assert_eq!((end.exit(), life.home.read("got").as_str()), (Exit::Killed, "INT\n"));
}

#[tokio::test]
async fn a_fault_of_the_supervisor_itself_does_not_leave_the_runner_alone() {
    let mut home = Home::new("echo $$ >pid; say Listening for Jobs; idle");
    // No clock goes that far: the sum is a panic, and settings never hold such a value.
    home.launch.limits.idle = Some(Duration::MAX);
    let life = home.start();
    let pid = life.written("pid").await;
    let end = life.end().await;
    assert_eq!(end.exit(), crate::exit::Exit::Internal);
    for _ in 0..200 {
        if !is_alive(&pid) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the runner {pid} is alive");
}
