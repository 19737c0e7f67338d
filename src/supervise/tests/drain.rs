use super::*;
use crate::exit::Exit;
use crate::forge::JobResult;

const SHORT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_drain_ends_an_idle_runner_with_sigint_to_it_alone() {
    let life = Home::new(
        "sh -c 'trap \"echo INT >child-got\" INT; trap \"exit 0\" TERM; echo up >child-up; \
         while :; do sleep 60 & wait $!; done' &\n\
         while ! [ -s child-up ]; do :; done\n\
         trap 'echo INT >got; exit 0' INT; say Listening for Jobs; idle",
    )
    .start();
    life.listening().await;
    life.supervisor.drain(Why::Asked);
    let end = life.end().await;
    assert_eq!((&end.how, end.exit(), end.starts), (&How::Exited(0), Exit::Done, 1));
    assert_eq!(life.home.read("got"), "INT\n");
    assert_eq!(life.home.read("child-got"), "");
}

#[tokio::test]
async fn a_job_that_starts_while_a_drain_interrupts_is_waited_for() {
    let mut home = Home::new(
        "trap 'sleep 0.2; say Running job: x; sleep 2; \
         say Job x completed with result: Succeeded; exit 0' INT\n\
         trap 'exit 77' TERM; say Listening for Jobs; idle",
    );
    home.launch.stop_grace = Duration::from_millis(1500);
    let life = home.start();
    life.listening().await;
    life.supervisor.drain(Why::IdleLimit);
    life.running().await;
    let end = life.end().await;
    assert_eq!((&end.how, end.exit()), (&How::Exited(0), Exit::Done));
}

#[tokio::test]
async fn a_job_that_stands_unread_in_the_pipe_is_waited_for() {
    let life = Home::new(
        "trap 'echo INT >>got' INT; trap 'echo TERM >>got' TERM; say Listening for Jobs\n\
         while ! [ -e go-on ]; do sleep 0.02; done; say Running job: x; echo said >said; sleep 0.3\n\
         say Job x completed with result: Succeeded; exit 0",
    )
    .start();
    life.listening().await;
    std::fs::write(life.home.path().join("go-on"), "").unwrap();
    while life.home.read("said").is_empty() {
        // Not in the runtime: the supervisor is to have no time to read it.
        std::thread::yield_now();
    }
    life.supervisor.drain(Why::Asked);
    let end = life.end().await;
    assert_eq!(end.job.as_ref().and_then(|job| job.result), Some(JobResult::Succeeded));
    assert_eq!((end.exit(), life.home.read("got").as_str()), (Exit::Done, ""));
}

#[tokio::test]
async fn a_drain_waits_for_the_job_and_signals_nobody() {
    let life = Home::new(
        "trap 'echo INT >>got' INT; trap 'echo TERM >>got' TERM; say Listening for Jobs\n\
         say Running job: x; while ! [ -e go-on ]; do sleep 0.02; done\n\
         say Job x completed with result: Succeeded; exit 0",
    )
    .start();
    life.running().await;
    life.supervisor.drain(Why::Asked);
    life.supervisor.drain(Why::Asked);
    std::fs::write(life.home.path().join("go-on"), "").unwrap();
    let end = life.end().await;
    assert_eq!(end.job.as_ref().and_then(|job| job.result), Some(JobResult::Succeeded));
    assert_eq!((end.exit(), life.home.read("got").as_str()), (Exit::Done, ""));
}

#[tokio::test]
async fn a_drain_whose_time_has_passed_cancels_the_job() {
    let mut home = Home::new(
        "trap 'say Job x completed with result: Canceled; exit 0' INT\n\
         say Listening for Jobs; say Running job: x; idle",
    );
    home.launch.drain_timeout = Some(SHORT);
    let life = home.start();
    life.running().await;
    life.supervisor.drain(Why::Asked);
    let end = life.end().await;
    assert_eq!(end.asked, Some(Order { manner: Manner::Stop, why: Why::DrainTimeout }));
    assert_eq!(end.exit(), Exit::Killed);
}

#[tokio::test]
async fn a_runner_that_does_not_go_after_its_job_is_interrupted_after_the_grace() {
    let mut home = Home::new(
        "trap 'exit 0' INT; say Listening for Jobs; say Running job: x\n\
         while ! [ -e go-on ]; do sleep 0.02; done\n\
         say Job x completed with result: Succeeded; idle",
    );
    home.launch.stop_grace = SHORT;
    let life = home.start();
    life.running().await;
    life.supervisor.drain(Why::Asked);
    std::fs::write(life.home.path().join("go-on"), "").unwrap();
    let end = life.end().await;
    assert_eq!((&end.how, end.exit()), (&How::Exited(0), Exit::Done));
}

#[tokio::test]
async fn a_stop_interrupts_then_terminates_then_kills_the_group() {
    let mut home = Home::new(
        "trap 'echo INT >>got' INT; trap 'echo TERM >>got' TERM\n\
         sh -c 'trap \"\" INT TERM; echo $$ >child; while :; do sleep 60; done' &\n\
         while ! [ -s child ]; do :; done; say Listening for Jobs; say Running job: x; idle",
    );
    home.launch.stop_grace = SHORT;
    let life = home.start();
    life.running().await;
    life.supervisor.stop(Why::JobLimit);
    let end = life.end().await;
    assert_eq!((&end.how, end.exit()), (&How::Signalled(9), Exit::LimitPassed));
    assert_eq!(life.home.read("got"), "INT\nTERM\n");
    assert!(!is_alive(life.home.read("child").trim()));
}

#[tokio::test]
async fn a_second_term_kills_the_group_without_waiting() {
    // The grace is longer than the scenario may take.
    let life = Home::new(
        "trap 'echo INT >>got' INT; trap 'echo TERM >>got' TERM; say Listening for Jobs; idle",
    )
    .start();
    life.listening().await;
    life.supervisor.drain(Why::Asked);
    life.written("got").await;
    life.supervisor.stop(Why::Asked);
    let end = life.end().await;
    assert_eq!((&end.how, end.exit()), (&How::Signalled(9), Exit::Done));
    assert_eq!(life.home.read("got"), "INT\nTERM\n");
}

#[tokio::test]
async fn a_stop_during_a_drain_does_not_wait_for_the_job() {
    let life =
        Home::new("trap 'exit 0' INT; say Listening for Jobs; say Running job: x; idle").start();
    life.running().await;
    life.supervisor.drain(Why::Asked);
    life.supervisor.stop(Why::Asked);
    let end = life.end().await;
    assert_eq!((&end.how, end.exit()), (&How::Exited(0), Exit::Killed));
    assert_eq!(end.asked, Some(Order { manner: Manner::Stop, why: Why::Asked }));
}

#[tokio::test]
async fn an_order_to_leave_prevents_every_relaunch() {
    for code in [2, 3, 4, 6] {
        let life =
            Home::new(&format!("trap 'exit {code}' INT; say Listening for Jobs; idle")).start();
        life.listening().await;
        life.supervisor.drain(Why::Asked);
        let end = life.end().await;
        assert_eq!((&end.how, end.starts, end.exit()), (&How::Exited(code), 1, Exit::Done));
    }
}

#[tokio::test]
async fn an_order_in_the_pause_before_a_relaunch_is_the_end() {
    let mut home = Home::new("exit 2");
    home.launch.relaunch.as_mut().unwrap().pause = LONG;
    let life = home.start();
    life.written("starts").await;
    life.supervisor.drain(Why::Asked);
    let end = life.end().await;
    assert_eq!((end.starts, end.exit()), (1, Exit::Stopped));
}

#[tokio::test]
async fn a_runner_that_does_not_listen_in_time_is_stopped_for_that() {
    let life = Home::new("trap 'exit 0' INT; echo up >up; idle").start();
    life.written("up").await;
    life.supervisor.stop(Why::NotReady);
    let end = in_time(life.supervisor.wait_up()).await.unwrap_err();
    assert_eq!(end.exit(), Exit::NotReady);
}

#[tokio::test]
async fn a_runner_that_never_leaves_after_its_job_is_ended_and_the_job_stays_done() {
    let mut home = Home::new(
        "trap 'echo INT >>got' INT; trap 'echo TERM >>got' TERM; say Listening for Jobs\n\
         say Running job: x; say Job x completed with result: Failed; idle",
    );
    home.launch.limits.after_job = Some(SHORT);
    home.launch.stop_grace = SHORT;
    let life = home.start();
    let end = life.end().await;
    assert_eq!((&end.how, end.exit()), (&How::Signalled(9), Exit::Done));
    assert_eq!(end.job.as_ref().and_then(|job| job.result), Some(JobResult::Failed));
    assert_eq!(life.home.read("got"), "INT\nTERM\n");
}

#[tokio::test]
async fn a_further_job_calls_the_end_after_a_job_off() {
    let mut home = Home::new(
        "trap 'echo INT >>got' INT; trap 'echo TERM >>got' TERM; say Listening for Jobs\n\
         say Running job: x; say Job x completed with result: Succeeded; sleep 0.8\n\
         say Running job: y; sleep 2; say Job y completed with result: Succeeded; exit 0",
    );
    home.launch.limits.after_job = Some(SHORT);
    // The drain has begun, and would interrupt it in a second.
    home.launch.stop_grace = Duration::from_secs(1);
    let life = home.start();
    let end = life.end().await;
    assert_eq!((&end.how, end.exit()), (&How::Exited(0), Exit::Done));
    assert_eq!(end.job.map(|job| job.name), Some("y".to_owned()));
    assert_eq!(life.home.read("got"), "");
}

#[tokio::test]
async fn a_runner_that_hangs_after_its_job_is_ended_by_the_job_limit() {
    let mut home = Home::new(
        "trap 'echo INT >got; exit 0' INT; say Listening for Jobs; say Running job: x\n\
         say Job x completed with result: Succeeded; idle",
    );
    home.launch.limits.job = Some(SHORT);
    home.launch.stop_grace = SHORT;
    let life = home.start();
    let end = life.end().await;
    assert_eq!((&end.how, end.exit()), (&How::Exited(0), Exit::Done));
    assert_eq!(life.home.read("got"), "INT\n");
}
