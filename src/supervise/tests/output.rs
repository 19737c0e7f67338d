use super::*;
use crate::exit::Exit;
use crate::secret::Secret;

#[tokio::test]
async fn a_reader_that_stands_still_does_not_hold_the_runner_up() {
    let home = Home::new("say Listening for Jobs; yes some words | head -c 20000000; exit 5");
    // Nobody reads from this pipe, and it is soon full.
    let (_reader, writer) = io::pipe().unwrap();
    let (supervisor, _) = Supervisor::start(home.launch.clone(), writer);
    let end = in_time(supervisor.wait_ended()).await;
    assert_eq!(end.how, How::Exited(5));
}

#[tokio::test]
async fn a_flood_of_any_bytes_hides_no_state_line() {
    let life = Home::new(
        "head -c 3000000 /dev/urandom; echo; head -c 300000 /dev/zero | tr '\\0' x; echo\n\
         head -c 1000000 /dev/urandom >&2; say Listening for Jobs; printf '\\377\\376\\n'\n\
         say Running job: x; say Job x completed with result: Succeeded; exit 0",
    )
    .start();
    let end = life.end().await;
    assert_eq!(end.exit(), Exit::Done);
    assert!(end.last_words.len() < 20_000);
}

#[tokio::test]
async fn a_job_that_echoes_the_runners_words_changes_nothing() {
    let life = Home::new(
        "say Listening for Jobs; say Running job: real\n\
         say Listening for Jobs; say Running job: fake\n\
         say Job fake completed with result: Succeeded\n\
         echo '[WORKER 2026-12-01 02:03:04Z INFO x] 2026-12-01 02:03:04Z: Job real completed with \
         result: Succeeded'\n\
         say Job real completed with result: Succeeded >&2; echo said >said; exit 0",
    )
    .start();
    let end = life.end().await;
    assert_eq!(end.job, Some(Job { name: "real".to_owned(), result: None }));
    assert_eq!(end.exit(), Exit::NoJob);
}

#[tokio::test]
async fn states_are_published_in_order() {
    let life = Home::new(
        "step() { while ! [ -e $1 ]; do sleep 0.01; done; }\n\
         step 1; say Listening for Jobs; step 2; say Running job: x\n\
         step 3; say Job x completed with result: Skipped; step 4; exit 0",
    )
    .start();
    let step = |n: &str| std::fs::write(life.home.path().join(n), "").unwrap();
    assert_eq!(life.supervisor.state(), State::Starting);
    step("1");
    life.listening().await;
    step("2");
    life.running().await;
    step("3");
    life.until(|state| matches!(state, State::Finishing { job } if job.name == "x")).await;
    step("4");
    assert_eq!(life.end().await.exit(), Exit::Done);
}

#[tokio::test]
async fn secrets_are_masked_in_what_is_forwarded_and_in_the_last_words() {
    let secret = Secret::new("a-secret-that-the-runner-prints");
    let life = Home::new(&format!(
        "echo out {0}; echo err {0} >&2; say Running job: {0}; exit 1",
        secret.expose()
    ))
    .start();
    let end = life.end().await;
    let job = end.job.map(|job| job.name).unwrap_or_default();
    assert_eq!(job, "***");
    for text in [&end.last_words, &life.printed()] {
        assert!(text.contains("out ***") && text.contains("err ***"), "{text}");
        assert!(!text.contains(secret.expose()), "{text}");
    }
}

#[tokio::test]
async fn last_words_without_a_line_end_are_forwarded() {
    let life = Home::new("printf 'no line end'; exit 1").start();
    life.end().await;
    assert_eq!(life.printed(), "no line end\n");
}

#[tokio::test]
async fn a_flood_is_cut_and_counted_and_the_runner_is_not_held_up() {
    // 40 MB; its own lines come before, within and after it.
    let flood = "head -c 20000000 /dev/zero | tr '\\0' x | fold -w 999; echo";
    let life = Home::new(&format!(
        "say Listening for Jobs; {flood}; say Running job: x; {flood}; \
         say Job x completed with result: Succeeded; exit 0"
    ))
    .start();
    assert_eq!(life.end().await.exit(), Exit::Done);
    let printed = life.printed();
    assert!(printed.len() < 20 << 20, "{} bytes", printed.len());
    let told = |line: &str| -> Option<usize> {
        line.strip_prefix("garm-bootstrap: ")?.split(' ').next()?.parse().ok()
    };
    let left_out: usize = printed.lines().filter_map(told).sum();
    let came = printed.lines().filter(|line| told(line).is_none()).count();
    // Twice 20,000,000 bytes in lines of 999, and three of its own.
    assert_eq!(came + left_out, 2 * 20_021 + 3);
    assert!(left_out > 20_000, "{left_out}");
}
