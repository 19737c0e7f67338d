//! Many boots with signals and kills at random times: whatever happens to a boot, it leaves nothing behind,
//! and its exit code and its `state.json` say what happened.
//!
//! `cargo xtask soak` is this same test with more boots. A seed decides the kind of instance, how it is
//! started, its job, and what happens when; the machine decides how far the boot is by then.

mod judge;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use garm_sim::archive::runner_runs;
use garm_sim::{Instance, InstanceSpec, RunnerScript, Sim};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::seeds::{asked, try_each};
use crate::support::{Boot, Ended, LONG, Running, Who, is_root, scripted};

/// Boots in a usual run of the tests; `SOAK_BOOTS` and `SOAK_FIRST` say otherwise.
const BOOTS: u64 = 50;
/// A boot mostly waits, so a core can lead several at once.
const BOOTS_PER_CORE: usize = 4;
/// When a runner without a job is told to leave, if nothing has ended it by then.
const ENOUGH: Duration = Duration::from_millis(3000);

/// What happens to a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// Somebody asks the agent to leave.
    Asked(Signal),
    /// The Listener is killed, if there is one by then.
    ListenerKilled,
    /// The agent is killed, and the platform starts another one.
    AgentKilled,
}

/// One boot, and what has become of it.
struct Trial {
    seed: u64,
    plan: Plan,
    sim: Sim,
    instance: Instance,
    /// Whether the boot was told to leave because nothing else had ended it.
    told_enough: bool,
    /// Whether the agent that was killed had left anything to kill.
    restarted: bool,
    ended: Ended,
}

#[derive(Debug)]
struct Plan {
    jit: bool,
    way: Way,
    job: Option<(Duration, Duration)>,
    events: Vec<(Duration, Event)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Plain,
    Root,
    /// With an init above the agent.
    Init,
    /// As the first process of a PID namespace.
    Pid1,
}

/// The splitmix64 generator: enough to scatter, and the same everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % sides
    }

    fn time(&mut self, longest: u64) -> Duration {
        Duration::from_millis(self.roll(longest))
    }
}

impl Plan {
    fn of(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let way = match dice.roll(4) {
            0 if is_root() => Way::Root,
            1 if is_root() => Way::Pid1,
            2 => Way::Init,
            _ => Way::Plain,
        };
        let job = (dice.roll(3) > 0).then(|| (dice.time(1500), dice.time(1500)));
        let mut events: Vec<(Duration, Event)> = (0..dice.roll(4))
            .map(|_| {
                let event = match dice.roll(8) {
                    0 => Event::ListenerKilled,
                    // As PID 1 everything would go with it.
                    1 if matches!(way, Way::Plain | Way::Root) => Event::AgentKilled,
                    2 => Event::Asked(Signal::SIGHUP),
                    3 | 4 => Event::Asked(Signal::SIGINT),
                    _ => Event::Asked(Signal::SIGTERM),
                };
                (dice.time(2500), event)
            })
            .collect();
        events.sort_by_key(|(at, _)| *at);
        Self { jit: dice.roll(2) == 0, way, job, events }
    }

    fn boot(&self, boot: Boot) -> Boot {
        let boot = boot.env("GARM_STOP_GRACE", "300ms").env("GARM_DEADLINE", "20s");
        match self.way {
            Way::Plain => boot,
            Way::Root => boot.who(Who::Root),
            Way::Init => boot.arg("--init"),
            Way::Pid1 => {
                let namespace = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
                boot.who(Who::Root).through(&namespace)
            }
        }
    }

    fn asks(&self) -> usize {
        self.events.iter().filter(|(_, event)| matches!(event, Event::Asked(_))).count()
    }

    fn has(&self, event: Event) -> bool {
        self.events.iter().any(|(_, happens)| *happens == event)
    }
}

impl Trial {
    fn run(seed: u64) -> Self {
        let plan = Plan::of(seed);
        let script = match plan.job {
            Some((wait, length)) => RunnerScript::one_job(wait, length),
            None => RunnerScript::new(),
        };
        let sim = scripted(script);
        let spec = if plan.jit { InstanceSpec::default() } else { InstanceSpec::with_token() };
        let instance = sim.create(spec);
        let mut running = plan.boot(Boot::of(&instance)).spawn();
        let (began, mut restarted) = (Instant::now(), false);
        for (at, event) in &plan.events {
            std::thread::sleep(at.saturating_sub(began.elapsed()));
            match event {
                Event::Asked(signal) => ask(&mut running, plan.way, *signal),
                Event::ListenerKilled => kill_listener(&running),
                Event::AgentKilled => {
                    // It may have ended by itself, and then nobody starts another one.
                    if !running.has_ended() {
                        restarted = true;
                        running = plan.boot(running.kill_alone().again(&instance)).spawn();
                    }
                }
            }
        }
        let mut told_enough = false;
        if plan.job.is_none() {
            std::thread::sleep(ENOUGH.saturating_sub(began.elapsed()));
            told_enough = !running.has_ended();
            ask(&mut running, plan.way, Signal::SIGTERM);
        }
        let ended = running.wait(LONG);
        if ended.code == 41 {
            // The next agent has left it alone, as it must; nobody else is there to end it.
            for run in runner_runs(&ended.home()) {
                let _ = kill(Pid::from_raw(run.pid), Signal::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Self { seed, plan, sim, instance, told_enough, restarted, ended }
    }
}

fn ask(running: &mut Running, way: Way, signal: Signal) {
    if running.has_ended() {
        return;
    }
    let pid = running.pid();
    let to = match way {
        // unshare does not pass signals on: what the platform signals is its child.
        Way::Pid1 => {
            let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            children.unwrap_or_default().trim().parse().ok().map(Pid::from_raw)
        }
        _ => Some(pid),
    };
    if let Some(to) = to {
        let _ = kill(to, signal);
    }
}

/// By its process id in the first namespace, which is not what it knows itself by.
fn kill_listener(running: &Running) {
    let exe = running.home().join("bin/Runner.Listener");
    for process in crate::support::after::processes_under(&running.home()) {
        let link = std::fs::read_link(format!("/proc/{}/exe", process.pid));
        if link.is_ok_and(|link| link == exe) && process.command.contains(" run") {
            let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
        }
    }
}

#[test]
fn a_boot_leaves_nothing_behind_and_says_how_it_ended_whatever_happens_to_it() {
    let first = asked("SOAK_FIRST").unwrap_or(1);
    let last = first + asked("SOAK_BOOTS").unwrap_or(BOOTS) - 1;
    let began = Instant::now();
    let tried = try_each(first..=last, BOOTS_PER_CORE, |seed| judge::judge(&Trial::run(seed)));
    let verdicts: Vec<_> = tried.into_iter().map(|(_, verdict)| verdict).collect();
    let broken: Vec<&String> = verdicts.iter().filter_map(|v| v.as_ref().err()).collect();
    let mut codes: Vec<i32> = verdicts.iter().filter_map(|v| v.as_ref().ok().copied()).collect();
    codes.sort_unstable();
    let mut text = format!("{} boots in {:.1} s:", verdicts.len(), began.elapsed().as_secs_f64());
    for code in codes.chunk_by(|a, b| a == b) {
        let _ = write!(text, " {} with exit code {},", code.len(), code[0]);
    }
    println!("{text} {} broke a rule", broken.len());
    assert!(broken.is_empty(), "{}", broken.iter().map(|b| format!("{b}\n\n")).collect::<String>());
}
