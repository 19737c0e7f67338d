//! Where a secret must not be seen: everywhere but in the call to GARM and the credential files.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use garm_sim::archive::{RunnerStart, runner_starts};
use garm_sim::{ArchiveSpec, Instance, InstanceSpec, RunnerScript, Sim, SimOptions};

use crate::support::after::{Scene, failures, statuses, wait_for_status};
use crate::support::{Boot, Ended, LONG, Who, is_root, one_job, own_all, read, runner};

/// So much of a secret in a row is a leak: half a token helps to guess the rest.
const FRAGMENT: usize = 24;

/// The secrets of one instance.
struct Secrets {
    whole: Vec<String>,
    fragments: HashSet<Vec<u8>>,
}

impl Secrets {
    fn of(instance: &Instance) -> Self {
        let mut whole = instance.secrets();
        whole.push(instance.registration_token());
        whole.retain(|secret| !secret.is_empty());
        let fragments = whole.iter().flat_map(|secret| secret.as_bytes().windows(FRAGMENT));
        Self { fragments: fragments.map(<[u8]>::to_vec).collect(), whole }
    }

    fn is_in(&self, text: impl AsRef<[u8]>) -> bool {
        let text = text.as_ref();
        let lossy = String::from_utf8_lossy(text);
        self.whole.iter().any(|secret| lossy.contains(secret.as_str()))
            || text.windows(FRAGMENT).any(|window| self.fragments.contains(window))
    }

    /// The first `text` that holds one fails the test; only its name is printed.
    fn assert_absent<N: std::fmt::Display>(&self, texts: impl IntoIterator<Item = (N, Vec<u8>)>) {
        for (name, text) in texts {
            assert!(!self.is_in(text), "a secret is in {name}");
        }
    }
}

/// Every file below `dir`, by its path from there.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() {
                let name = path.strip_prefix(dir).unwrap().display().to_string();
                found.push((name, fs::read(path).unwrap_or_default()));
            }
        }
    }
    found
}

/// What everybody on this machine can see of a process, again and again until `done`.
fn watch_arguments(secrets: &Secrets, done: &AtomicBool) {
    while !done.load(Ordering::Relaxed) {
        let pids = fs::read_dir("/proc").unwrap().flatten();
        for pid in pids.filter(|e| e.file_name().to_string_lossy().parse::<u32>().is_ok()) {
            let line = fs::read(pid.path().join("cmdline")).unwrap_or_default();
            assert!(!secrets.is_in(&line), "a secret is in an argument list");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn run_watched(boot: Boot, secrets: &Secrets) -> Ended {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| watch_arguments(secrets, &done));
        let ended = boot.run();
        done.store(true, Ordering::Relaxed);
        ended
    })
}

#[test]
fn no_secret_gets_out_of_a_boot() {
    let table = [
        ("text", Who::Plain, false),
        ("journal", Who::Plain, true),
        ("json", Who::Plain, false),
        ("json", Who::Plain, true),
        ("text", Who::Root, true),
        ("journal", Who::Root, false),
    ];
    std::thread::scope(|scope| {
        for (format, who, jit) in table {
            scope.spawn(move || keeps_its_secrets(format, who, jit));
        }
    });
}

fn keeps_its_secrets(format: &str, who: Who, jit: bool) {
    let sim = Sim::start(SimOptions {
        archive: ArchiveSpec::scripted(one_job()),
        ..SimOptions::default()
    });
    let spec = if jit { InstanceSpec::default() } else { InstanceSpec::with_token() };
    let download = Some("temp-download-token-0123456789abcdef".to_owned());
    let instance = sim.create(InstanceSpec { temp_download_token: download, ..spec });
    let boot = Boot::of(&instance)
        .who(who)
        .env("GARM_SECRET_OF_THE_IMAGE", "of no use to a job")
        .env("RUNNER_TOKEN", "of-an-older-image-0123456789")
        .env("RUNNER_NAME", instance.name())
        .arg("--log-level")
        .arg("trace")
        .arg("--log-format")
        .arg(format);
    let secrets = Secrets::of(&instance);
    let ended = run_watched(boot, &secrets);
    assert_eq!(ended.code, 0, "{format} {who:?} {jit}{}", Scene(&sim, &ended));
    secrets.assert_absent([
        ("stdout", ended.stdout.clone().into_bytes()),
        ("stderr", ended.stderr.clone().into_bytes()),
    ]);
    let told = sim.calls().into_iter().filter(|call| call.host == garm_sim::Host::Garm);
    secrets.assert_absent(told.map(|call| (call.path, call.body.into_bytes())));
    secrets.assert_absent(files(&ended.state()));
    secrets.assert_absent(files(&ended.dir.path().join("work/run")));
    let starts = runner_starts(&ended.home());
    assert!(starts.iter().any(|start| !start.job_env.is_empty()), "a job ran");
    // config.sh is told the token by its environment, and the simulation writes that down.
    let of_config = |name: &str| {
        let configures = starts.iter().filter(|start| start.subcommand == "configure");
        configures.map(|start| format!("_sim/env-{}", start.n)).any(|env| env == name)
    };
    let credentials = |name: &str| name == ".runner" || name.starts_with(".credentials");
    let in_home = files(&ended.home()).into_iter();
    secrets.assert_absent(in_home.filter(|(name, _)| !of_config(name) && !credentials(name)));
    starts.iter().for_each(assert_environment_is_clean);
}

/// Nothing of ours or of GARM's is in what the runner and its job get.
fn assert_environment_is_clean(start: &RunnerStart) {
    const NAMES: [&str; 7] = [
        "METADATA_URL",
        "CALLBACK_URL",
        "BEARER_TOKEN",
        "RUNNER_TOKEN",
        "JIT_CONFIG_ENABLED",
        "CREDENTIALS_DIRECTORY",
        "NOTIFY_SOCKET",
    ];
    for (name, _) in start.env.iter().chain(&start.job_env) {
        let name = name.to_string_lossy();
        let input = name.starts_with("ACTIONS_RUNNER_INPUT_") && start.subcommand == "run";
        let ours = name.starts_with("GARM_") || NAMES.contains(&&*name);
        assert!(!ours && !input, "{name} is in the environment of {}", start.subcommand);
    }
}

/// A job that looks at all that it can of the two processes above its Listener.
const PEEK: &str = r#"
    read -r _ _ _ agent _ < /proc/$PPID/stat
    read -r _ _ _ above _ < /proc/$agent/stat
    for pid in $agent $above; do
        for file in environ mem maps auxv; do head -c 300000 /proc/$pid/$file; done
        ls -l /proc/$pid/fd/ /proc/$pid/cwd/. ; cat /proc/$pid/fd/* /proc/$pid/task/*/environ
        echo "cmdline:"; tr '\0' ' ' < /proc/$pid/cmdline; echo
    done > peek 2>&1
"#;

#[test]
fn a_job_cannot_look_into_the_agent() {
    for (who, init) in [(Who::Plain, false), (Who::Plain, true), (Who::Root, true)] {
        let sim = Sim::start(SimOptions {
            archive: ArchiveSpec::scripted(one_job().job_command(PEEK)),
            ..SimOptions::default()
        });
        let instance = sim.create(InstanceSpec::default());
        let boot = Boot::of(&instance).who(who);
        let ended = if init { boot.arg("--init") } else { boot }.run();
        assert_eq!(ended.code, 0, "{who:?} {init}{}", Scene(&sim, &ended));
        let peek = fs::read(ended.home().join("peek")).unwrap();
        let text = String::from_utf8_lossy(&peek);
        assert!(!Secrets::of(&instance).is_in(&peek), "{who:?} {init}: the job saw a secret");
        // environ, mem, maps, fd: of the agent, and of the init above it.
        let denied = text.matches("ermission denied").count();
        let processes = if init { 2 } else { 1 };
        assert!(denied >= 4 * processes, "{who:?} {init}: denied {denied} times:\n{text}");
        assert!(text.contains("cmdline:\n"), "{text}");
        assert!(text.contains(if init { "(agent) run" } else { "garm-bootstrap run" }), "{text}");
    }
}

/// A runner in its home already, with a script that knows the instance's secrets.
fn boot_that_tells(
    spec: InstanceSpec,
    script: impl FnOnce(&Instance) -> RunnerScript,
) -> (Sim, Instance, Boot) {
    let sim = Sim::start(SimOptions::default());
    let instance = sim.create(spec);
    let boot = Boot::of(&instance);
    let home = boot.home();
    let boot = boot.unpack(&sim, &home);
    sim.write_script(&home, &script(&instance)).unwrap();
    own_all(&home);
    (sim, instance, boot)
}

/// Every secret, plain and in the middle of colours.
fn all_secrets(instance: &Instance) -> String {
    let secrets = Secrets::of(instance).whole;
    secrets.iter().map(|s| format!("it is {s}\nor \x1b[31m{s}\x1b[0m, \"{s}\"\n")).collect()
}

fn assert_masked(sim: &Sim, instance: &Instance, ended: &Ended) {
    let secrets = Secrets::of(instance);
    let told = statuses(sim).into_iter().map(|(_, call)| ("a status", call.body.into_bytes()));
    secrets.assert_absent(told);
    let (out, err) = (ended.stdout.clone().into_bytes(), ended.stderr.clone().into_bytes());
    secrets.assert_absent([("stdout", out), ("stderr", err)]);
    secrets.assert_absent(files(&ended.state()));
}

#[test]
fn what_a_runner_prints_is_masked_in_our_output_and_for_garm() {
    let (sim, instance, boot) = boot_that_tells(InstanceSpec::default(), |instance| {
        let text = all_secrets(instance);
        RunnerScript::new().exit_before_listening().exit_code(1).stdout(&text).stderr(&text)
    });
    let ended = boot.run();
    assert_masked(&sim, &instance, &ended);
    let message = failures(&sim).concat();
    assert_eq!(ended.code, 23);
    assert!(message.contains("or ***, \"***\""), "{message}");
    assert!(ended.stdout.contains("it is ***\n"), "{}", ended.stdout);
}

#[test]
fn what_a_job_prints_is_masked_in_our_output() {
    let (sim, instance, boot) = boot_that_tells(InstanceSpec::default(), |instance| {
        one_job().job_output(all_secrets(instance)).job_name(instance.token())
    });
    let ended = boot.arg("--log-level").arg("trace").run();
    assert_masked(&sim, &instance, &ended);
    assert_eq!(ended.code, 0);
    assert!(ended.stdout.contains("it is ***\n"), "{}", ended.stdout);
}

#[test]
fn what_config_sh_prints_is_masked_in_our_log_and_for_garm() {
    let (sim, instance, boot) = boot_that_tells(InstanceSpec::with_token(), |instance| {
        let text = all_secrets(instance);
        RunnerScript::new().config_exit(1).config_stdout(&text).config_stderr(&text)
    });
    let ended = boot.arg("--deadline").arg("2s").arg("--log-level").arg("trace").run();
    assert_masked(&sim, &instance, &ended);
    assert_eq!(ended.code, 22);
    let message = failures(&sim).concat();
    assert!(message.contains("***"), "{message}");
}

#[test]
fn a_text_that_is_cut_does_not_show_half_a_secret() {
    // Of a program's output the first 512 and the last 4096 bytes are kept, and 64 kB of a line.
    let padded = |before: usize, secret: &str, after: usize| {
        format!("{}{secret}{}\n", "x".repeat(before), "y".repeat(after))
    };
    let config = |instance: &Instance| {
        let token = instance.token();
        let tail = 4096 - token.len() / 2;
        let text = padded(512 - token.len() / 2, &token, 9000) + &padded(9000, &token, tail);
        RunnerScript::new().config_exit(1).config_stderr(text)
    };
    let runner = |instance: &Instance| {
        let token = instance.token();
        let text = padded(512 - token.len() / 2, &token, 9000)
            + &padded(64 * 1024 - token.len() / 2, &token, 9000)
            + &padded(9000, &token, 4096 - token.len() / 2);
        RunnerScript::new().exit_before_listening().exit_code(1).stdout(text)
    };
    let (sim, instance, boot) = boot_that_tells(InstanceSpec::with_token(), config);
    let ended = boot.arg("--deadline").arg("2s").run();
    assert_eq!(ended.code, 22);
    assert_masked(&sim, &instance, &ended);
    let (sim, instance, boot) = boot_that_tells(InstanceSpec::default(), runner);
    let ended = boot.run();
    assert_eq!(ended.code, 23);
    assert_masked(&sim, &instance, &ended);
}

#[test]
fn the_jit_files_are_the_runners_alone() {
    let whos = if is_root() { vec![Who::Plain, Who::Root] } else { vec![Who::Plain] };
    for who in whos {
        let sim = Sim::start(SimOptions::default());
        let instance = sim.create(InstanceSpec::default());
        let running = Boot::of(&instance).who(who).spawn();
        wait_for_status(&running, &sim, "idle");
        let owner = if is_root() { runner().uid } else { nix::unistd::geteuid() };
        for name in [".runner", ".credentials", ".credentials_rsaparams"] {
            let path = running.home().join(name);
            let meta = fs::metadata(&path).unwrap();
            assert_eq!((meta.mode() & 0o7777, meta.uid()), (0o600, owner.as_raw()), "{name}");
            assert_eq!(Some(read(&path)), instance.jit_file(name), "{name}");
        }
        running.signal(nix::sys::signal::Signal::SIGTERM);
        assert_eq!(running.wait(LONG).code, 0);
    }
}

#[test]
fn a_token_file_stays_the_only_place_of_the_token() {
    let sim = Sim::start(SimOptions {
        archive: ArchiveSpec::scripted(one_job()),
        ..SimOptions::default()
    });
    let instance = sim.create(InstanceSpec::default());
    let boot = Boot::of(&instance).without("BEARER_TOKEN");
    let file: PathBuf = boot.path("token");
    fs::write(&file, instance.token()).unwrap();
    own_all(&file);
    let boot = boot.arg("--token-file").arg(&file).arg("--log-level").arg("trace");
    let secrets = Secrets::of(&instance);
    let ended = run_watched(boot, &secrets);
    assert_eq!(ended.code, 0, "{}", Scene(&sim, &ended));
    assert_masked(&sim, &instance, &ended);
    secrets.assert_absent(files(&ended.dir.path().join("work/run")));
}

#[test]
fn an_idle_agent_leaves_no_token_on_the_disk() {
    for (who, spec) in
        [(Who::Plain, InstanceSpec::with_token()), (Who::Root, InstanceSpec::default())]
    {
        let sim = Sim::start(SimOptions {
            archive: ArchiveSpec::scripted(RunnerScript::new()),
            ..SimOptions::default()
        });
        let instance = sim.create(spec);
        let running = Boot::of(&instance).who(who).spawn();
        let work = running.home().with_file_name("");
        crate::support::after::wait_for_status(&running, &sim, "idle");
        let tokens = [instance.token(), instance.registration_token()];
        let holds = || {
            let kept = ["state", "run"].map(|name| files(&work.join(name))).concat();
            let is_token = |bytes: &[u8]| {
                let text = String::from_utf8_lossy(bytes);
                tokens.iter().any(|token| !token.is_empty() && text.contains(token.as_str()))
            };
            kept.iter().any(|(_, bytes)| is_token(bytes))
        };
        crate::support::wait_until("no file of ours holds a token", || !holds());
        running.signal(nix::sys::signal::Signal::SIGTERM);
        assert_eq!(running.wait(crate::support::LONG).code, 0);
    }
}

#[test]
fn the_runner_gets_no_descriptor_but_the_three_of_every_program() {
    let sim = crate::support::scripted(RunnerScript::new());
    let instance = sim.create(InstanceSpec::default());
    let secret: std::os::fd::OwnedFd = tempfile::tempfile().unwrap().into();
    // Whoever started us has left a file open.
    let boot = Boot::of(&instance).arg("--command").arg("/bin/ls /proc/self/fd");
    let ended = boot.spawn_with_fds(&[&secret]).wait(LONG);
    // 3 is the folder that ls reads.
    assert!(ended.stdout.ends_with("0\n1\n2\n3\n"), "{}", Scene(&sim, &ended));
}

#[test]
fn a_link_in_the_home_does_not_show_a_job_what_only_root_may_read() {
    let sim = crate::support::good();
    let instance = sim.create(InstanceSpec::default());
    let boot = Boot::of(&instance).as_root();
    let (home, private) = (boot.home(), boot.path("only-root"));
    let boot = boot.unpack(&sim, &home);
    fs::write(&private, "/only/root/knows\n").unwrap();
    fs::set_permissions(&private, fs::Permissions::from_mode(0o600)).unwrap();
    // As an earlier job may have left it.
    std::os::unix::fs::symlink(&private, home.join(".path")).unwrap();
    let ended = boot.run().expect_job(&sim);
    let run = garm_sim::archive::runner_runs(&ended.home()).remove(0);
    let path = run.var("PATH").unwrap();
    assert!(!path.contains("only/root"), "{path}");
}

#[test]
fn a_pipe_in_the_home_does_not_hold_a_boot_up() {
    let sim = crate::support::good();
    let instance = sim.create(InstanceSpec::default());
    let boot = Boot::of(&instance);
    let home = boot.home();
    let boot = boot.unpack(&sim, &home);
    nix::unistd::mkfifo(&home.join(".path"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    crate::support::own_all(&home);
    boot.run().expect_job(&sim);
}
