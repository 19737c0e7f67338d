//! SIGKILL at any point of fetch and configure, and then another boot: it succeeds, and nothing tells
//! its home from that of a boot that was left in peace.
//!
//! The points are drawn by a seed over the time that the slowed-down phases take.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use garm_sim::archive::runner_starts;
use garm_sim::{
    ArchiveSpec, Endpoint, Fault, FaultKind, Instance, InstanceSpec, RunnerScript, Sim, SimOptions,
};
use nix::sys::signal::Signal;

use crate::support::traces::{files_below, processes_of};
use crate::support::{Boot, Ended, LONG, Who, is_root, wait_until};

const POINTS: u64 = 20;
/// How long the download is made to take; config.sh takes as long.
const SLOWLY: Duration = Duration::from_millis(1500);

fn sim(script: RunnerScript) -> Sim {
    let archive = ArchiveSpec::scripted(script.keep_files());
    Sim::start(SimOptions { archive, ..SimOptions::default() })
}

fn one_job() -> RunnerScript {
    RunnerScript::one_job(Duration::from_millis(50), Duration::from_millis(50))
}

/// One job, and a first config.sh that takes its time.
fn slow_config() -> RunnerScript {
    one_job().on_start(1, &RunnerScript::new().config(SLOWLY))
}

/// Content, mode and owner of everything in a home but for what each boot and each run makes anew.
fn tree(home: &Path) -> BTreeMap<String, (u32, u32, Vec<u8>)> {
    let anew = ["_sim", "_diag", "_work", ".runner", ".credentials", ".garm-bootstrap.json"];
    files_below(home)
        .into_iter()
        .map(|name| {
            let path = home.join(&name);
            let meta = fs::symlink_metadata(&path).unwrap();
            let own = anew.iter().any(|own| name.starts_with(own));
            let content = match meta.file_type() {
                _ if own => Vec::new(),
                kind if kind.is_file() => fs::read(&path).unwrap(),
                kind if kind.is_symlink() => {
                    fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
                }
                _ => Vec::new(),
            };
            (name, (meta.mode(), meta.uid(), content))
        })
        .filter(|(name, _)| !name.starts_with("_sim/") && !name.starts_with("_diag/"))
        .collect()
}

/// The home of a boot that nobody disturbed.
fn undisturbed(spec: InstanceSpec, who: Who) -> BTreeMap<String, (u32, u32, Vec<u8>)> {
    let sim = sim(slow_config());
    let instance = sim.create(spec);
    let ended = Boot::of(&instance).who(who).run();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    tree(&ended.home())
}

/// splitmix64, to draw the points.
fn drawn(seed: u64) -> u64 {
    let z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 31)
}

/// Boots with a slow download and a slow config.sh, kills the agent `after` it has begun, and boots again.
fn killed_and_booted_again(
    spec: InstanceSpec,
    who: Who,
    after: Duration,
) -> (Sim, Instance, Ended, bool) {
    let sim = sim(slow_config());
    let bytes = u64::try_from(sim.archive_bytes().len()).unwrap();
    let bytes_per_sec = bytes * 1000 / u64::try_from(SLOWLY.as_millis()).unwrap();
    sim.fault(Fault::new(Endpoint::Download).once().kind(FaultKind::SlowBody { bytes_per_sec }));
    let instance = sim.create(spec);
    let running = Boot::of(&instance).who(who).spawn();
    // The point of a kill is a time: whatever the boot is at then is what it is to be torn out of.
    std::thread::sleep(after);
    running.signal(Signal::SIGKILL);
    let killed = running.wait(LONG);
    assert_eq!(killed.code, 137, "{}", killed.stderr);
    let served = sim.calls().iter().any(|call| call.endpoint == Endpoint::RegistrationToken);
    let kept =
        files_below(killed.dir.path()).iter().any(|name| name.contains("registration-token"));
    let unseen = served && !kept && !killed.home().join(".runner").exists();
    let ended = killed.again(&instance).who(who).run();
    (sim, instance, ended, unseen)
}

/// Between GARM's answer and the file that keeps it there is a moment in which a kill loses the token: GARM
/// gives it once. Then the next boot cannot do better than to say so.
fn is_lost_in_the_moment(unseen: bool, ended: &Ended) -> bool {
    unseen && ended.code == 12 && ended.stderr.contains("the token was handed out already")
}

fn check(at: &str, ended: &Ended, sim: &Sim, instance: &Instance) {
    let shown = || format!("{at}\n{}\n{}", sim.calls_table(), ended.stderr);
    assert_eq!(ended.code, 0, "{}", shown());
    assert_eq!(instance.runner_status(), "terminated", "{}", shown());
    let dir = ended.dir.path();
    let left: Vec<String> = files_below(dir)
        .into_iter()
        .filter(|name| name.contains(".partial-") || name.contains("registration-token"))
        .collect();
    assert!(left.is_empty(), "{left:?}\n{}", shown());
    assert!(processes_of(dir).is_empty(), "{:?}\n{}", processes_of(dir), shown());
}

fn crash_everywhere(spec: &InstanceSpec, longest: Duration) {
    let whole: Vec<_> = [Who::Plain, Who::Root]
        .into_iter()
        .filter(|who| *who == Who::Plain || is_root())
        .map(|who| (who, undisturbed(spec.clone(), who)))
        .collect();
    let lost = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for lane in 0..4 {
            let (whole, lost) = (&whole, &lost);
            scope.spawn(move || {
                for seed in (0..POINTS).filter(|seed| seed % 4 == lane) {
                    let longest = u64::try_from(longest.as_millis()).unwrap();
                    let after = Duration::from_millis(100 + drawn(seed + 1) % longest);
                    let (who, wanted) = &whole[usize::try_from(seed / 4).unwrap() % whole.len()];
                    let (sim, instance, ended, unseen) =
                        killed_and_booted_again(spec.clone(), *who, after);
                    if is_lost_in_the_moment(unseen, &ended) {
                        lost.fetch_add(1, Relaxed);
                        continue;
                    }
                    let at = format!("seed {seed}, killed after {after:?}, {who:?}");
                    check(&at, &ended, &sim, &instance);
                    let found = tree(&ended.home());
                    let differs: Vec<_> = wanted
                        .iter()
                        .filter(|(name, entry)| found.get(*name) != Some(*entry))
                        .map(|(name, _)| name)
                        .chain(found.keys().filter(|name| !wanted.contains_key(*name)))
                        .collect();
                    assert!(differs.is_empty(), "{at}: {differs:?}");
                }
            });
        }
    });
    // The moment is short: of so many points hardly one falls into it.
    let lost = lost.into_inner();
    assert!(lost <= 1, "{lost} of {POINTS} kills lost the token");
}

#[test]
fn a_boot_with_a_token_that_is_killed_anywhere_is_made_good_by_the_next_one() {
    crash_everywhere(&InstanceSpec::with_token(), SLOWLY * 2);
}

#[test]
fn a_jit_boot_that_is_killed_anywhere_is_made_good_by_the_next_one() {
    crash_everywhere(&InstanceSpec::default(), SLOWLY);
}

#[test]
fn a_token_that_was_fetched_before_the_kill_is_used_after_it() {
    let script = one_job().on_start(1, &RunnerScript::new().config(LONG));
    let sim = sim(script);
    let instance = sim.create(InstanceSpec::with_token());
    let running = Boot::of(&instance).spawn();
    let home = running.home();
    wait_until("config.sh is at work", || !runner_starts(&home).is_empty());
    running.signal(Signal::SIGKILL);
    let killed = running.wait(LONG);
    let kept = killed.dir.path().join("work/run");
    let kept = files_below(&kept).into_iter().find(|name| name.starts_with("registration-token-"));
    let kept = killed.dir.path().join("work/run").join(kept.unwrap());
    assert_eq!(fs::metadata(&kept).unwrap().mode() & 0o777, 0o600);
    // config.sh outlives us, and would go on writing into the home of the next boot.
    let survivor = runner_starts(&home).remove(0).pid;
    assert!(fs::exists(format!("/proc/{survivor}/exe")).unwrap());
    let ended = killed.again(&instance).run();
    check("token kept", &ended, &sim, &instance);
    assert_eq!(sim.registrations().len(), 0, "the job is over");
    let asked = sim.calls().iter().filter(|c| c.endpoint == Endpoint::RegistrationToken).count();
    assert_eq!(asked, 1);
    let mut registering = runner_starts(&home).into_iter().filter(|s| s.subcommand == "configure");
    assert!(registering.next_back().unwrap().args().contains(&"--replace".to_owned()));
}

#[test]
fn a_kept_token_is_not_taken_by_another_instance() {
    let script = one_job().on_start(1, &RunnerScript::new().config(LONG));
    let sim = sim(script);
    let (one, other) =
        (sim.create(InstanceSpec::with_token()), sim.create(InstanceSpec::with_token()));
    let running = Boot::of(&one).spawn();
    let home = running.home();
    wait_until("config.sh is at work", || !runner_starts(&home).is_empty());
    running.signal(Signal::SIGKILL);
    let ended = running.wait(LONG).again(&other).run();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let asked = sim.calls().iter().filter(|c| c.endpoint == Endpoint::RegistrationToken).count();
    assert_eq!(asked, 2);
}

#[test]
fn a_registration_that_was_complete_before_the_kill_is_used_after_it() {
    let sim = sim(one_job());
    let instance = sim.create(InstanceSpec::with_token());
    sim.fault(Fault::new(Endpoint::SystemInfo).once().kind(FaultKind::HangForever));
    let running = Boot::of(&instance).spawn();
    let asked = |endpoint| sim.calls().iter().filter(|call| call.endpoint == endpoint).count();
    wait_until("the runner is registered", || asked(Endpoint::SystemInfo) == 1);
    running.signal(Signal::SIGKILL);
    let ended = running.wait(LONG).again(&instance).run();
    check("registered", &ended, &sim, &instance);
    assert_eq!(asked(Endpoint::RegistrationToken), 1);
    let configured =
        runner_starts(&ended.home()).into_iter().filter(|s| s.subcommand == "configure");
    assert_eq!(configured.count(), 1);
}

#[test]
fn an_instance_whose_agent_was_killed_after_idle_is_not_booted_again() {
    let sim = sim(RunnerScript::new());
    let instance = sim.create(InstanceSpec::default());
    let running = Boot::of(&instance).spawn();
    assert!(instance.wait_for_runner_status("idle", LONG));
    let used = running.home().with_file_name("state").join("used.json");
    wait_until("the instance is marked", || used.exists());
    let runner = runner_starts(&running.home()).remove(0);
    running.signal(Signal::SIGKILL);
    let again = running.wait(LONG).again(&instance).run();
    let calls = sim.calls().len();
    assert_eq!(again.code, 41, "{}", again.stderr);
    // The runner may have a job: it is left alone.
    assert!(fs::exists(format!("/proc/{}/exe", runner.pid)).unwrap());
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(runner.pid), Signal::SIGKILL).unwrap();
    // Without the marker (a new disk), it is GARM that does not know the instance any more.
    let fresh = Boot::of(&instance).run();
    assert_eq!(fresh.code, 11, "{}", fresh.stderr);
    assert!(sim.calls().len() > calls);
}

#[test]
fn a_runner_that_outlived_its_agent_before_idle_is_left_alone() {
    let sim = sim(RunnerScript::new());
    let instance = sim.create(InstanceSpec::default());
    sim.fault(Fault::new(Endpoint::Status).posting("idle").kind(FaultKind::status(503)));
    let running = Boot::of(&instance).spawn();
    let home = running.home();
    wait_until("idle is under way", || {
        sim.calls().iter().any(|call| call.posted_status().as_deref() == Some("idle"))
    });
    running.signal(Signal::SIGKILL);
    let killed = running.wait(LONG);
    let calls = sim.calls().len();
    let again = killed.again(&instance).run();
    assert_eq!(again.code, 41, "{}", again.stderr);
    assert!(again.stderr.contains("this instance's runner is alive (pid "), "{}", again.stderr);
    assert_eq!(sim.calls().len(), calls, "a second starter says nothing to GARM");
    let runner = runner_starts(&home).remove(0);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(runner.pid), Signal::SIGKILL).unwrap();
}
