use super::*;

fn program(script: &str) -> Program {
    Program {
        path: PathBuf::from("/bin/sh"),
        args: vec!["-c".into(), script.into()],
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        dir: PathBuf::from("/"),
        user: None,
    }
}

async fn output_of(program: &Program) -> String {
    let cancel = CancellationToken::new();
    let finished = program.run(Duration::from_secs(20), &cancel).await.unwrap();
    assert!(finished.status.success());
    finished.output.text()
}

/// Killed is not dead yet, and dead not reaped.
async fn in_time(done: impl Fn() -> bool) {
    let waiting = async {
        while !done() {
            tokio::time::sleep(GROUP_LOOK).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap();
}

#[tokio::test]
async fn a_child_has_exactly_the_environment_it_was_given_and_leads_its_group() {
    let program = Program {
        path: PathBuf::from("/usr/bin/env"),
        args: vec![],
        env: vec![("A".into(), "b".into())],
        ..program("")
    };
    assert_eq!(output_of(&program).await, "A=b");
    let ids = output_of(&self::program("cut -d' ' -f5 /proc/$$/stat; echo $$")).await;
    let ids: Vec<_> = ids.lines().collect();
    assert_eq!(ids[0], ids[1]);
}

#[tokio::test]
async fn a_child_has_default_signals_whatever_we_were_started_with() {
    // This test program again, with signals ignored and blocked.
    let probe = Program {
        path: PathBuf::from("/usr/bin/env"),
        args: [
            "--block-signal=INT,TERM,HUP,USR1",
            "--ignore-signal=INT,TERM,QUIT",
            std::env::current_exe().unwrap().to_str().unwrap(),
            "host::process::tests::prints_the_signals_of_a_child",
            "--exact",
            "--ignored",
            "--nocapture",
        ]
        .map(OsString::from)
        .to_vec(),
        ..program("")
    };
    let text = output_of(&probe).await;
    for name in ["SigBlk:", "SigIgn:"] {
        let mask = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
        // Signals without a name (real-time ones) are left as they are.
        assert_eq!(mask & 0x7fff_ffff, 0, "{name} {text}");
    }
}

#[tokio::test]
#[ignore = "no test: the program that the one above starts"]
async fn prints_the_signals_of_a_child() {
    let status = Program {
        path: PathBuf::from("/bin/cat"),
        args: vec!["/proc/self/status".into()],
        ..program("")
    };
    println!("\n{}", output_of(&status).await);
}

#[tokio::test]
async fn a_program_over_its_limit_is_ended_with_its_group_and_its_words_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let script = "sleep 60 & echo $! >child; echo so far; wait";
    let program = Program { dir: dir.path().to_owned(), ..program(script) };
    let error =
        program.run(Duration::from_millis(500), &CancellationToken::new()).await.unwrap_err();
    let ProcessError::TimedOut { output, .. } = &error else { panic!("{error}") };
    assert_eq!(output, "so far");
    let pid = std::fs::read_to_string(dir.path().join("child")).unwrap();
    let status = format!("/proc/{}/status", pid.trim());
    let runs = |text: String| text.lines().any(|l| l.starts_with("State:") && !l.contains('Z'));
    in_time(|| !std::fs::read_to_string(&status).is_ok_and(runs)).await;
}

#[tokio::test]
async fn a_cancelled_program_is_ended_at_once() {
    let cancel = CancellationToken::new();
    cancel.cancel();
    let error = program("sleep 60").run(Duration::from_mins(1), &cancel).await.unwrap_err();
    assert!(matches!(error, ProcessError::Cancelled { .. }), "{error}");
}

#[tokio::test]
async fn the_rest_of_a_group_that_ignores_sigterm_is_killed() {
    let mut child = program("trap '' TERM; (while :; do sleep 60; done) & exit 0").spawn().unwrap();
    let group = Group::of(&child);
    child.wait().await.unwrap();
    assert!(group.is_alive());
    group.end_rest().await;
    in_time(|| !group.is_alive()).await;
}

#[tokio::test]
async fn a_group_whose_number_is_another_processs_now_is_not_signalled() {
    let (mut stranger, mut gone) =
        (program("sleep 60").spawn().unwrap(), program("exit 0").spawn().unwrap());
    let gone_pid = gone.id().unwrap();
    gone.wait().await.unwrap();
    assert!(!Group::once_led_by(stranger.id().unwrap()).signal(Signal::SIGKILL));
    assert!(stranger.try_wait().unwrap().is_none());
    assert!(!Group::once_led_by(gone_pid).is_alive());
    stranger.kill().await.unwrap();
    // One that the leader has left behind is still of the group.
    let mut leader = program("sleep 60 & exec 1>&- 2>&-").spawn().unwrap();
    let pid = leader.id().unwrap();
    leader.wait().await.unwrap();
    let group = Group::once_led_by(pid);
    assert!(group.signal(Signal::SIGKILL));
    in_time(|| !group.is_alive()).await;
}
