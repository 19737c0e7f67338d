use super::*;
use crate::exit::Exit;

/// A Listener that updates itself at its first start: the updater runs on in its group, takes `bin`
/// away for a while, and puts the new one there.
const UPDATING: &str = "if [ $started = 0 ]; then\n\
    (mv bin bin.old; echo updating; sleep 0.5; touch update.finished; sleep 0.5; mv bin.old bin; \
     echo swapped >swapped) &\n\
    say Listening for Jobs; exit 3\n\
    fi\n\
    say Listening for Jobs; say Running job: x; say Job x completed with result: Succeeded; exit 0\n";

#[tokio::test]
async fn an_update_is_waited_for_and_the_new_runner_is_started_in_place() {
    for code in [3, 4] {
        let life = Home::new(&UPDATING.replace("exit 3", &format!("exit {code}"))).start();
        let end = life.end().await;
        assert_eq!((&end.how, end.starts, end.exit()), (&How::Exited(0), 2, Exit::Done));
        assert_eq!(life.written("swapped").await, "swapped");
        assert!(!life.home.path().join("update.finished").exists());
        assert!(life.printed().contains("updating"), "{}", life.printed());
    }
}

#[tokio::test]
async fn an_old_marker_is_not_taken_for_the_end_of_an_update() {
    let mut home = Home::new("say Listening for Jobs; exit 3");
    home.launch.relaunch.as_mut().unwrap().update_limit = Duration::from_millis(300);
    std::fs::write(home.path().join("update.finished"), "").unwrap();
    let end = home.start().end().await;
    assert_eq!((end.how, end.starts), (How::UpdateFailed, 1));
}

#[tokio::test]
async fn a_bin_that_never_comes_back_is_a_failed_update() {
    let mut home = Home::new("rm -r bin; touch update.finished; say Listening for Jobs; exit 3");
    home.launch.relaunch.as_mut().unwrap().update_limit = Duration::from_millis(300);
    let end = home.start().end().await;
    assert_eq!((&end.how, end.starts, end.exit()), (&How::UpdateFailed, 1, Exit::NotReady));
}

#[tokio::test]
async fn updates_without_end_are_given_up() {
    let life = Home::new("touch update.finished; say Listening for Jobs; exit 3").start();
    let end = life.end().await;
    assert_eq!((end.how, end.starts), (How::Exited(3), 3));
}

#[tokio::test]
async fn an_order_during_an_update_is_the_end() {
    let script = "say Listening for Jobs; while ! [ -e go-on ]; do sleep 0.01; done; exit 3";
    let life = Home::new(script).start();
    life.listening().await;
    std::fs::write(life.home.path().join("go-on"), "").unwrap();
    life.until(|state| *state == State::Starting).await;
    life.supervisor.drain(Why::Asked);
    let end = life.end().await;
    assert_eq!((&end.how, end.starts, end.exit()), (&How::Exited(3), 1, Exit::Done));
}
