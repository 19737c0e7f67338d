//! `report`: what a script says to GARM, and what its exit code says to the script.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use garm_sim::{Endpoint, Fault, FaultKind, Instance, InstanceSpec, Sim, SimOptions};

use crate::support::page::Page;
use crate::support::{Boot, Ended, calls_to, garm_calls, statuses};

/// Quotes, line ends, a tab, a colour, a bell, and bytes that are not UTF-8.
const HOSTILE: &[u8] = b"curl: \"no\" 'route'\n\tto \\host\x1b[31m red\x1b[0m\x07 \xff\xfe end";
/// The same, as GARM is to have it.
const READABLE: &str = "curl: \"no\" 'route'\n to \\host red \u{fffd}\u{fffd} end";

fn quiet() -> Sim {
    Sim::start(SimOptions::default())
}

fn report(instance: &Instance, words: &[&str]) -> Boot {
    Boot::of(instance).doing(&["report"]).args(words)
}

/// An instance that has said `installing`.
fn known(sim: &Sim, spec: InstanceSpec) -> Instance {
    let instance = sim.create(spec);
    report(&instance, &["installing", "hello"]).run().expect(sim, 0);
    instance
}

fn last_message(instance: &Instance) -> String {
    instance.messages().last().map(|message| message.message.clone()).unwrap_or_default()
}

/// No lock, no state, nothing but what was there.
fn assert_nothing_made(ended: &Ended) {
    let made: Vec<_> = fs::read_dir(ended.dir.path().join("work")).unwrap().collect();
    assert!(made.is_empty(), "{made:?}");
}

#[test]
fn the_four_statuses_reach_garm_one_after_the_other() {
    let sim = quiet();
    let instance = known(&sim, InstanceSpec::default());
    assert_eq!(instance.runner_status(), "installing");
    report(&instance, &["system-info"]).run().expect(&sim, 0);
    let info = instance.system_info();
    assert!(!info.os_name.is_empty(), "{info:?}");
    let ended = report(&instance, &["idle", "ready", "at", "last"]).run().expect(&sim, 0);
    assert_eq!(instance.runner_status(), "idle");
    assert_eq!(last_message(&instance), "ready at last");
    assert_nothing_made(&ended);

    let instance = sim.create(InstanceSpec::default());
    report(&instance, &["failed", "no disk"]).run().expect(&sim, 0);
    assert_eq!(instance.runner_status(), "failed");
    assert_eq!(last_message(&instance), "no disk");
}

#[test]
fn a_hostile_text_arrives_readable_as_an_argument_and_on_stdin() {
    let sim = quiet();
    let argument = |boot: Boot| boot.arg(OsStr::from_bytes(HOSTILE)).run();
    let dash = |boot: Boot| boot.arg("-").run_with_stdin(HOSTILE);
    let stdin = |boot: Boot| boot.run_with_stdin(HOSTILE);
    let ways: [fn(Boot) -> Ended; 3] = [argument, dash, stdin];
    for (number, way) in ways.into_iter().enumerate() {
        for status in ["installing", "failed"] {
            let instance = sim.create(InstanceSpec::default());
            way(report(&instance, &[status])).expect(&sim, 0);
            assert_eq!(last_message(&instance), READABLE, "{status}, way {number}");
        }
    }
}

#[test]
fn a_text_that_looks_like_a_flag_is_a_text() {
    let sim = quiet();
    let instance = sim.create(InstanceSpec::default());
    report(&instance, &["failed", "-bash: apt: command not found"]).run().expect(&sim, 0);
    assert_eq!(last_message(&instance), "-bash: apt: command not found");
    let instance = sim.create(InstanceSpec::default());
    report(&instance, &["failed", "--", "--home", "is full"]).run().expect(&sim, 0);
    assert_eq!(last_message(&instance), "--home is full");
}

#[test]
fn without_a_text_garm_still_gets_a_sentence() {
    let sim = quiet();
    let instance = sim.create(InstanceSpec::default());
    report(&instance, &["failed"]).run().expect(&sim, 0);
    assert!(last_message(&instance).contains("did not say why"), "{}", last_message(&instance));
}

#[test]
fn of_a_flood_the_beginning_and_the_end_arrive() {
    let sim = quiet();
    let instance = sim.create(InstanceSpec::default());
    let flood = format!("make: what was built\n{}make: *** Error 2\n", "noise\n".repeat(500_000));
    report(&instance, &["failed", "-"]).run_with_stdin(flood).expect(&sim, 0);
    let message = last_message(&instance);
    assert!(message.starts_with("make: what was built"), "{message}");
    assert!(message.ends_with("make: *** Error 2"), "{message}");
    assert!(message.chars().count() <= 2000, "{}", message.len());
}

#[test]
fn a_stdin_that_never_ends_does_not_keep_what_has_come() {
    let sim = quiet();
    let instance = sim.create(InstanceSpec::default());
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::io::Write::write_all(&mut &ours, b"so far").unwrap();
    let boot = report(&instance, &["installing", "--deadline", "1s", "-"]);
    let began = Instant::now();
    boot.run_with_stdin_from(theirs.into()).expect(&sim, 0);
    assert_eq!(last_message(&instance), "so far");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    drop(ours);
}

#[test]
fn a_secret_in_the_text_is_masked() {
    let sim = quiet();
    let instance = sim.create(InstanceSpec::default());
    let text = format!("curl -H 'Authorization: Bearer {}'", instance.token());
    report(&instance, &["failed", &text]).run().expect(&sim, 0);
    assert_eq!(last_message(&instance), "curl -H 'Authorization: Bearer ***'");
}

#[test]
fn idle_carries_the_agent_id_that_was_given_or_that_stands_in_the_home() {
    for (arguments, file, expected) in [
        (vec!["--agent-id", "77"], "{\"agentId\":5}", 77),
        (vec!["--agent-id", ""], "{\"agentId\":5}", 5),
        (vec!["--agent-id", "null"], "{}", 0),
        (vec![], "\u{feff}{\"agentId\":1234}", 1234),
        (vec![], "{\"AgentId\":\"1235\"}", 1235),
        (vec![], "{\"agentId\"", 0),
    ] {
        let sim = quiet();
        let instance = known(&sim, InstanceSpec::with_token());
        let boot = report(&instance, &["idle", "up"]).args(&arguments);
        fs::create_dir(boot.home()).unwrap();
        fs::write(boot.home().join(".runner"), file).unwrap();
        boot.run().expect(&sim, 0);
        assert_eq!(instance.agent_id(), expected, "{file}");
        assert_eq!(instance.runner_status(), "idle");
    }
}

#[test]
fn an_agent_id_that_garm_refuses_does_not_cost_the_idle() {
    let sim = quiet();
    let instance = known(&sim, InstanceSpec::default());
    let preset = instance.agent_id();
    let ended = report(&instance, &["idle", "up", "--agent-id", "4711"]).run().expect(&sim, 0);
    ended.expect_said(&sim, "saying it without");
    assert_eq!((instance.runner_status().as_str(), instance.agent_id()), ("idle", preset));
    assert_eq!(statuses(&sim), ["installing", "idle", "idle"]);
}

#[test]
fn an_idle_whose_reply_was_lost_and_one_that_is_repeated_are_successes() {
    let sim = quiet();
    let instance = known(&sim, InstanceSpec::default());
    let lost = Fault::new(Endpoint::Status).posting("idle").once();
    sim.fault(lost.kind(FaultKind::EmptyReplyAfterApplying));
    report(&instance, &["idle", "up"]).run().expect(&sim, 0);
    assert_eq!(instance.runner_status(), "idle");
    let ended = report(&instance, &["idle", "up"]).run().expect(&sim, 0);
    ended.expect_said(&sim, "an earlier one has landed or a job was faster");
}

#[test]
fn the_exit_code_tells_that_garm_does_not_know_the_instance() {
    let superseded = |status| {
        let sim = quiet();
        let instance = sim.create(InstanceSpec::default());
        let old = report(&instance, &[status]);
        instance.requeue();
        let began = Instant::now();
        let ended = old.run().expect(&sim, 11);
        ended.expect_said(&sim, "does not know this instance");
        // It may have been too early, so it is not believed at once.
        assert!(garm_calls(&sim).len() > 3, "{}", sim.calls_table());
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    };
    std::thread::scope(|scope| {
        for status in ["installing", "failed", "system-info"] {
            scope.spawn(move || superseded(status));
        }
    });
}

#[test]
fn a_401_that_was_too_early_is_not_believed() {
    let sim = quiet();
    let instance = sim.create(InstanceSpec::default());
    sim.fault(Fault::new(Endpoint::Status).times(2).kind(FaultKind::unauthorized()));
    report(&instance, &["failed", "no disk"]).run().expect(&sim, 0);
    assert_eq!(instance.runner_status(), "failed");
}

#[test]
fn the_exit_code_tells_that_garm_refuses_and_its_words_are_said() {
    let sim = quiet();
    // GARM takes no `idle` of an instance that has not said `installing`.
    let instance = sim.create(InstanceSpec::default());
    let ended = report(&instance, &["idle"]).run().expect(&sim, 12);
    ended.expect_said(&sim, "invalid runner status transition from pending to idle");
    for (status, endpoint) in [
        ("installing", Endpoint::Status),
        ("failed", Endpoint::Status),
        ("system-info", Endpoint::SystemInfo),
    ] {
        let sim = quiet();
        let instance = sim.create(InstanceSpec::default());
        sim.fault(Fault::new(endpoint).kind(FaultKind::answer(400, "not like this")));
        let ended = report(&instance, &[status]).run().expect(&sim, 12);
        ended.expect_said(&sim, "not like this");
        assert_eq!(garm_calls(&sim).len(), 1, "{}", sim.calls_table());
    }
}

#[test]
fn the_exit_code_tells_that_garm_was_not_reached_in_time() {
    for status in ["installing", "idle", "failed", "system-info"] {
        let sim = quiet();
        let instance = sim.create(InstanceSpec::default());
        sim.garm_down();
        let ended = report(&instance, &[status, "--deadline", "2s"]).run().expect(&sim, 10);
        ended.expect_said(&sim, "does not accept connections");
    }
}

#[test]
fn a_garm_that_comes_back_in_time_gets_it() {
    let sim = quiet();
    let instance = sim.create(InstanceSpec::default());
    sim.fault(Fault::new(Endpoint::Status).times(2).kind(FaultKind::status(503)));
    report(&instance, &["failed", "no disk"]).run().expect(&sim, 0);
    assert_eq!(instance.runner_status(), "failed");
    assert_eq!(calls_to(&sim, Endpoint::Status).len(), 3);
}

#[test]
fn a_mistake_is_told_to_the_script_and_not_to_garm() {
    for (words, said) in [
        (vec!["finished"], "[possible values: installing, idle, failed, system-info]"),
        (vec![], "<STATUS>"),
        (vec!["idle", "--agent-id", "x"], "--agent-id"),
        (vec!["failed", "--ca-file", "/nowhere"], "/nowhere"),
        (vec!["failed", "--deadline", "soon"], "\"soon\""),
        (vec!["failed", "--bootstrap-file", "-", "-"], "cannot both come from stdin"),
    ] {
        let sim = quiet();
        let instance = sim.create(InstanceSpec::default());
        let boot = report(&instance, &words);
        let ended = boot.run_with_stdin(instance.bootstrap_json()).expect(&sim, 2);
        ended.expect_said(&sim, said);
        assert!(sim.calls().is_empty(), "{words:?}\n{}", sim.calls_table());
    }
    let ended = Boot::bare().doing(&["report", "failed", "x"]).run();
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("CALLBACK_URL"), "{}", ended.stderr);
}

#[test]
fn the_bootstrap_file_is_enough_and_may_come_on_stdin() {
    let sim = quiet();
    let instance = sim.create(InstanceSpec::default());
    let boot = Boot::bare().doing(&["report", "failed", "--bootstrap-file", "-", "no disk"]);
    boot.run_with_stdin(instance.bootstrap_json()).expect(&sim, 0);
    assert_eq!(last_message(&instance), "no disk");
}

#[test]
fn it_can_be_said_beside_a_boot_that_runs() {
    let sim = quiet();
    let instance = sim.create(InstanceSpec::default());
    sim.fault(Fault::new(Endpoint::Download).kind(FaultKind::HangForever));
    let boot = Boot::of(&instance).spawn();
    assert!(sim.wait_until(Duration::from_secs(30), |calls| {
        calls.iter().any(|call| call.endpoint == Endpoint::Download)
    }));
    report(&instance, &["installing", "warming the cache"]).run().expect(&sim, 0);
    assert!(instance.messages().iter().any(|m| m.message == "warming the cache"));
    boot.signal(nix::sys::signal::Signal::SIGTERM);
    boot.wait(Duration::from_secs(60)).expect(&sim, 40);
}

#[test]
fn the_functions_of_the_page_do_what_the_old_ones_do() {
    let page = Page::read("docs/report.md");
    for functions in [page.block("report-old"), page.block("report-new")] {
        let sim = quiet();
        let (good, bad) =
            (sim.create(InstanceSpec::with_token()), sim.create(InstanceSpec::default()));
        let script = format!(
            "{functions}\nsendStatus 'getting the runner'\nsystemInfo\nsuccess 'all set' 4242\n"
        );
        let ended = Boot::of(&good).with_its_folder_on_the_path().run_script(&script);
        assert_eq!(ended.code, 0, "{functions}\n{}", ended.story(&sim));
        let words: Vec<String> = good.messages().iter().map(|m| m.message.clone()).collect();
        assert_eq!(words, ["getting the runner", "all set"], "{functions}");
        assert_eq!((good.runner_status().as_str(), good.agent_id()), ("idle", 4242), "{functions}");
        assert!(!good.system_info().os_name.is_empty(), "{functions}");

        let script = format!("{functions}\nfail 'no disk'\n");
        let ended = Boot::of(&bad).with_its_folder_on_the_path().run_script(&script);
        assert_eq!(ended.code, 1, "{functions}\n{}", ended.story(&sim));
        assert_eq!(bad.runner_status(), "failed", "{functions}");
    }
}
