//! The machine, the runner on it, and what an earlier boot has left.

use super::{Finding, fail, ok, warn};
use crate::config::Config;
use crate::exit::Exit;
use crate::forge::github::files;
use crate::host::{memory, os};
use crate::state::{self, Instance, Life, Past, Status};
use crate::text::one_line;
use crate::timeline::Record;
use crate::tools::dependencies::{self, Search};
use crate::tools::locate::{self, Found, Runner};

/// An unpacked runner takes some 600 MB, and a job wants room, too.
const LITTLE_DISK: u64 = 2 << 30;
const LITTLE_MEMORY: u64 = 512 << 20;

pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let mut findings = vec![system(), user(config), disk(config), memory()];
    findings.extend(runner(config));
    findings
}

fn system() -> Finding {
    let os::Os { name, version } = os::Os::read();
    ok("system", format!("{name} {version}, {}", os::forge_arch()))
}

fn user(config: &Config) -> Finding {
    let user = &config.user;
    let who = format!("the runner is {} (uid {})", user.name, user.uid);
    match user.barred_from(config.home.parent().unwrap_or(&config.home)) {
        Some(folder) if config.switch_to.is_some() => {
            fail("user", Exit::Usage, format!("{who}, and may not enter {}", folder.display()))
        }
        _ if user.is_root() => warn("user", format!("{who}: so are its jobs")),
        _ => ok("user", who),
    }
}

fn disk(config: &Config) -> Finding {
    let home = config.home.display();
    match os::free_disk(&config.home) {
        None => warn("disk", format!("nobody knows how much is free for {home}")),
        Some(free) => {
            let text = format!("{} MB are free for {home}", free >> 20);
            if free < LITTLE_DISK {
                warn("disk", text + ": that is little")
            } else {
                ok("disk", text)
            }
        }
    }
}

fn memory() -> Finding {
    match memory::total() {
        None => warn("memory", "nobody knows how much there is"),
        Some(bytes) if bytes < LITTLE_MEMORY => {
            warn("memory", format!("{} MB: the kernel may kill a job for it", bytes >> 20))
        }
        Some(bytes) => ok("memory", format!("{} MB", bytes >> 20)),
    }
}

fn runner(config: &Config) -> Vec<Finding> {
    let version = |runner: &Runner| runner.version.clone().unwrap_or_else(|| "unknown".to_owned());
    match locate::find(&config.home, config.assets.as_deref()) {
        Found::InHome(runner) => {
            let at = runner.home.display();
            let text = format!("a usable one is in its home {at}, version {}", version(&runner));
            let mut findings = vec![ok("runner", text), libraries(config, &runner)];
            if let Some(id) = files::agent_id(&config.home) {
                findings.push(ok("runner", format!("it is registered, with the agent id {id}")));
            }
            findings
        }
        Found::InAssets(runner) => {
            let at = runner.home.display();
            let text =
                format!("a usable one is in the image at {at}, version {}", version(&runner));
            vec![ok("runner", text), libraries(config, &runner)]
        }
        Found::Nothing(reasons) => {
            let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
            let text = format!("none to use here ({}); a boot downloads it", reasons.join("; "));
            vec![ok("runner", text)]
        }
    }
}

fn libraries(config: &Config, runner: &Runner) -> Finding {
    let search = Search::here(|name| config.environment.get(name));
    let missing = dependencies::missing_libraries(&runner.home, &search);
    let names = dependencies::names(&missing);
    if missing.is_empty() {
        ok("libraries", "all that the runner needs are there")
    } else if nix::unistd::geteuid().is_root() {
        warn("libraries", format!("{names} are missing; a boot installs them"))
    } else {
        warn("libraries", format!("{names} are missing, and only root can install them"))
    }
}

/// What the state folder tells of earlier boots.
pub(super) fn state(config: &Config) -> Vec<Finding> {
    let folders = &config.dirs.state;
    let instance = Instance::new(config.access.callback.as_str(), config.access.token.expose());
    let past = state::look(folders, &instance);
    let is_at_work = matches!(past, Past::Busy { .. });
    let mut findings = vec![match past {
        Past::Nothing => ok("state", "this instance has not had its run"),
        Past::Busy { path } => {
            let text = format!("a garm-bootstrap is at work here: it holds {}", path.display());
            fail("state", Exit::AlreadyRun, text)
        }
        Past::Used { path, at } => {
            let text = format!("this instance had its run at {at} ({})", path.display());
            fail("state", Exit::AlreadyRun, text)
        }
        Past::Unreadable { path, why } => warn("state", format!("{}: {why}", path.display())),
    }];
    findings.extend(last_life(config, is_at_work));
    findings.extend(last_boot(config));
    findings
}

/// What `state.json` tells of the runner here: what a person who logs in wants to know first.
fn last_life(config: &Config, is_at_work: bool) -> Option<Finding> {
    const ABOUT: &str = "last run";
    let path = state::existing(&config.dirs.state, state::LIFE)?;
    let life: Life = match std::fs::read(&path).map(|bytes| serde_json::from_slice(&bytes)) {
        Ok(Ok(life)) => life,
        Ok(Err(why)) => return Some(warn(ABOUT, format!("{}: {why}", path.display()))),
        Err(why) => return Some(warn(ABOUT, format!("{}: {why}", path.display()))),
    };
    let since = &life.since;
    let doing = match (life.status, life.job) {
        (Status::Ended, _) => {
            let code = life.exit.unwrap_or_default();
            let reason = life.reason.map(|reason| format!(", {reason}")).unwrap_or_default();
            let message = one_line(&life.message.unwrap_or_default());
            let text = format!("it ended at {since} with {code}{reason}: {message}");
            return Some(if code == 0 { ok(ABOUT, text) } else { warn(ABOUT, text) });
        }
        (Status::Running, Some(job)) => format!("it runs the job {job} since {since}"),
        (Status::Running | Status::Idle, _) => format!("it is idle since {since}"),
        (Status::Booting, _) => format!("it is in the phase {} since {since}", life.phase),
    };
    Some(if is_at_work {
        ok(ABOUT, format!("{doing} (process {})", life.pid))
    } else {
        let pid = life.pid;
        warn(ABOUT, format!("{doing}, it was said; process {pid}, which said so, is gone"))
    })
}

fn last_boot(config: &Config) -> Option<Finding> {
    let path = state::existing(&config.dirs.state, state::TIMELINE)?;
    let record: Record = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let last = record.phases.last()?;
    let seconds = record.phases.iter().map(|span| span.start + span.seconds.unwrap_or_default());
    let text = format!(
        "the last boot here began at {} and was in the phase {} after {:.1} s (`timeline` says more)",
        record.began_at,
        last.phase,
        seconds.fold(0.0, f64::max)
    );
    Some(ok("last boot", text))
}
