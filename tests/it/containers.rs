//! The binary as the entrypoint of real containers, as people run it: podman stands for every engine.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use garm_sim::archive::{RunnerStart, runner_runs};
use garm_sim::{ArchiveSpec, Endpoint, Instance, InstanceSpec, RunnerScript, Sim, SimOptions};
use tempfile::TempDir;

use crate::support::after::posted;
use crate::support::image::Image;
use crate::support::podman::{Container, DEBIAN, Output, Prepared};
use crate::support::{LONG, both_kinds, calls_to, good, one_job, read, scripted, wait_until};

/// A volume as an emptyDir is: everybody may write to it.
fn volume() -> TempDir {
    let dir = tempfile::Builder::new().prefix("garm-it-").tempdir_in("/tmp").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    dir
}

/// The image as the entrypoint for `instance`, its home on a volume.
fn entrypoint(image: &Image, instance: &Instance, volume: &TempDir) -> Prepared {
    Prepared::of(image.name()).env_of(instance).volume(volume.path(), "/runner")
}

/// Asserts that the runner was announced, had its job, and that the container ended well.
#[track_caller]
fn assert_job(sim: &Sim, instance: &Instance, ended: &Output) {
    let story = format!("{ended}\n{}", sim.calls_table());
    assert_eq!(ended.code, 0, "{story}");
    assert_eq!(posted(sim, "idle"), 1, "{story}");
    assert_eq!(instance.runner_status(), "terminated", "{story}");
}

/// The one start of the Listener.
#[track_caller]
fn the_run(home: &Path) -> RunnerStart {
    let mut runs = runner_runs(home);
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs.remove(0)
}

fn wait_for_job(volume: &TempDir) {
    let started = |run: &RunnerStart| run.notes.iter().any(|note| note.starts_with("job started"));
    wait_until("the job has started", || runner_runs(volume.path()).iter().any(started));
}

#[track_caller]
fn assert_tells_no_secret(instance: &Instance, container: &Container) {
    // What a person has put into its environment is all that podman may know.
    let mut known = container.inspect();
    known["Config"]["Env"].take();
    known["Config"]["CreateCommand"].take();
    for (what, text) in [("logs", container.logs()), ("inspect", known.to_string())] {
        for secret in instance.secrets() {
            assert!(!text.contains(&secret), "podman {what} tells a secret:\n{text}");
        }
    }
}

#[test]
fn the_runner_image_boots_and_tells_no_secret() {
    let image = Image::without_runner();
    for (kind, spec) in both_kinds() {
        let sim = scripted(one_job().job_command("id -u > _sim/who; id -G >> _sim/who"));
        let instance = sim.create(spec);
        let volume = volume();
        let container = entrypoint(&image, &instance, &volume).start();
        let ended = container.wait(LONG);
        assert_job(&sim, &instance, &ended);
        assert_eq!(read(&volume.path().join("_sim/who")), "1001\n0\n", "{kind}");
        assert_tells_no_secret(&instance, &container);
    }
}

#[test]
fn podman_sees_the_exit_code() {
    let image = Image::without_runner();
    let script = RunnerScript::new;
    let table = [
        (script().exit_after(Duration::ZERO), 30),
        (script().exit_before_listening().exit_code(7), 32),
        (script().exit_before_listening().kill_self(9), 34),
    ];
    for (script, code) in table {
        let sim = scripted(script);
        let instance = sim.create(InstanceSpec::default());
        let volume = volume();
        let container = entrypoint(&image, &instance, &volume).start();
        let ended = container.wait(LONG);
        assert_eq!(ended.code, code, "{ended}");
        assert_eq!(container.exit_code(), i64::from(code));
        assert_eq!(posted(&sim, "failed") + posted(&sim, "idle"), 1, "{}", sim.calls_table());
    }
    let ended = Prepared::of(image.name()).run();
    assert_eq!(ended.code, 2, "without a word about GARM: {ended}");
}

#[test]
fn podman_stop_sends_an_idle_runner_home() {
    let sim = scripted(RunnerScript::new());
    let instance = sim.create(InstanceSpec::default());
    let volume = volume();
    let image = Image::without_runner();
    let container = entrypoint(&image, &instance, &volume).start();
    assert!(instance.wait_for_runner_status("idle", LONG), "{}", container.logs());
    let asked = Instant::now();
    container.stop(Duration::from_secs(30));
    assert!(asked.elapsed() < Duration::from_secs(15), "{}", container.logs());
    assert_eq!(container.exit_code(), 0, "{}", container.logs());
    assert_eq!(the_run(volume.path()).signals, [2], "{}", container.logs());
}

#[test]
fn podman_stop_waits_for_the_job() {
    let sim = scripted(RunnerScript::one_job(Duration::ZERO, Duration::from_secs(3)));
    let instance = sim.create(InstanceSpec::default());
    let volume = volume();
    let image = Image::without_runner();
    let container = entrypoint(&image, &instance, &volume).start();
    wait_for_job(&volume);
    container.stop(Duration::from_secs(60));
    let run = the_run(volume.path());
    assert!(run.signals.is_empty(), "{run:?}");
    assert!(run.notes.contains(&"job ended Succeeded".to_owned()), "{run:?}");
    assert_eq!(container.exit_code(), 0, "{}", container.logs());
}

#[test]
fn a_job_that_outlives_the_drain_timeout_is_cancelled_before_the_engine_kills() {
    let sim = scripted(RunnerScript::one_job(Duration::ZERO, Duration::from_secs(3600)));
    let instance = sim.create(InstanceSpec::default());
    let volume = volume();
    let image = Image::without_runner();
    let prepared = entrypoint(&image, &instance, &volume).env("GARM_DRAIN_TIMEOUT", "1s");
    let container = prepared.start();
    wait_for_job(&volume);
    container.stop(Duration::from_secs(60));
    let run = the_run(volume.path());
    assert_eq!(run.signals, [2], "the runner is asked to cancel: {run:?}");
    assert_eq!(container.exit_code(), 34, "{}", container.logs());
}

#[test]
fn a_container_that_was_killed_in_its_job_starts_no_second_runner() {
    let sim = scripted(RunnerScript::one_job(Duration::ZERO, Duration::from_secs(3600)));
    let instance = sim.create(InstanceSpec::default());
    let volume = volume();
    let image = Image::without_runner();
    let container = entrypoint(&image, &instance, &volume).start();
    wait_for_job(&volume);
    wait_until("GARM knows", || instance.runner_status() == "active");
    let calls = sim.calls().len();
    container.kill("KILL");
    assert_eq!(container.wait(LONG).code, 137);
    let again = container.start_again().wait(LONG);
    assert_eq!(again.code, 41, "{again}");
    assert_eq!(sim.calls().len(), calls, "not a word is said to GARM\n{}", sim.calls_table());
    the_run(volume.path());
}

#[test]
fn the_scratch_image_boots_a_runner_that_needs_nothing_else() {
    let image = Image::build("Containerfile.scratch", &[]);
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let volume = volume();
    // Nothing else is there, and the state has to be somewhere.
    let place = entrypoint(&image, &instance, &volume).flag("--tmpfs=/tmp:mode=1777,notmpcopyup");
    let ended = place.env("RUNNER_HOME", "/runner").user("1001").run();
    assert_job(&sim, &instance, &ended);
}

#[test]
fn a_runner_that_is_baked_into_the_image_is_not_fetched_again() {
    let sim = good();
    let (url, sha256) = (sim.download_url(), sim.archive_sha256());
    let runner = [("RUNNER_URL", url.as_str()), ("RUNNER_SHA256", sha256.as_str())];
    let image = Image::build(
        "Containerfile.runner",
        &[&[("BASE", DEBIAN), ("PACKAGES", "")], &runner[..]].concat(),
    );
    let downloads = calls_to(&sim, Endpoint::Download).len();
    for user in ["1001", "1000680000:0"] {
        let instance = sim.create(InstanceSpec::default());
        let volume = volume();
        let ended = entrypoint(&image, &instance, &volume).user(user).run();
        assert_eq!(ended.code, 0, "{ended}\n{}", sim.calls_table());
        assert_eq!(instance.runner_status(), "terminated", "{ended}");
        assert_eq!(calls_to(&sim, Endpoint::Download).len(), downloads, "{}", sim.calls_table());
    }
    // Without a volume the runner lives in the container's own layer.
    let instance = sim.create(InstanceSpec::with_token());
    let ended = Prepared::of(image.name()).env_of(&instance).run();
    assert_eq!((ended.code, instance.runner_status().as_str()), (0, "terminated"), "{ended}");
}

#[test]
fn an_image_that_holds_a_runner_takes_the_binary_of_the_scratch_image() {
    let scratch = Image::build("Containerfile.scratch", &[]);
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let assets = tempfile::tempdir().unwrap();
    sim.unpack_runner(assets.path()).unwrap();
    fs::set_permissions(assets.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let args = [("IMAGE", DEBIAN), ("BINARY", scratch.name())];
    let image = Image::build("Containerfile.existing", &args);
    let volume = volume();
    let ended = entrypoint(&image, &instance, &volume)
        .env("RUNNER_HOME", "/runner")
        // As the official image has it.
        .volume(assets.path(), "/home/runner:ro")
        .user("1001")
        .run();
    assert_job(&sim, &instance, &ended);
    assert_eq!(calls_to(&sim, Endpoint::Download).len(), 0, "{}", sim.calls_table());
}

/// Boots both ways in a container that `put` has changed.
fn assert_boots(what: &str, put: impl Fn(Prepared) -> Prepared) {
    let image = Image::without_runner();
    for (kind, spec) in both_kinds() {
        println!("{what}, {kind}");
        let sim = good();
        let instance = sim.create(spec);
        let volume = volume();
        let ended = put(entrypoint(&image, &instance, &volume)).run();
        assert_job(&sim, &instance, &ended);
    }
}

/// As OpenShift chooses one.
fn random_uid(place: Prepared) -> Prepared {
    place.user("1000680000:0")
}

/// podman makes an account for a uid that has none, unless it is given the file.
fn no_account(place: Prepared) -> Prepared {
    place.volume("/dev/null", "/etc/passwd:ro")
}

#[test]
fn it_boots_with_a_read_only_root() {
    assert_boots("with a /tmp", |place| place.flag("--read-only"));
    assert_boots("with nothing but the volume", |place| {
        let place = place.flag("--read-only").flag("--read-only-tmpfs=false");
        place.env("GARM_STATE_DIR", "/runner/.state").env("GARM_RUNTIME_DIR", "/runner/.run")
    });
    assert_boots("without an account", |place| no_account(random_uid(place)).flag("--read-only"));
}

#[test]
fn it_boots_as_whatever_uid_and_without_privileges() {
    assert_boots("a random uid of group 0", random_uid);
    assert_boots("uid 1001 without an account", |place| no_account(place.user("1001")));
    assert_boots("no capability, no new privileges", |place| {
        place.flag("--cap-drop=all").flag("--security-opt=no-new-privileges")
    });
}

#[test]
fn without_ca_certificates_garm_is_believed_by_the_bootstrap_file() {
    let archive = ArchiveSpec::scripted(one_job());
    let sim = Sim::start(SimOptions { archive, tls: true, ..SimOptions::default() });
    let instance = sim.create(InstanceSpec::default());
    let (volume, papers) = (volume(), volume());
    let file = papers.path().join("bootstrap.json");
    fs::write(&file, instance.bootstrap_json()).unwrap();
    let image = Image::without_runner();
    let ended = Prepared::of(image.name())
        .flag("--tmpfs=/etc/ssl")
        .volume(volume.path(), "/runner")
        .volume(&file, "/etc/garm/bootstrap.json:ro")
        .env("GARM_BOOTSTRAP_FILE", "/etc/garm/bootstrap.json")
        .run();
    assert_job(&sim, &instance, &ended);
}
