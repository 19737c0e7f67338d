//! `install`: a runner that one container makes ready and another one runs, and a runner in an image.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use garm_sim::archive::runner_runs;
use garm_sim::{
    ArchiveSpec, Endpoint, Fault, FaultKind, Instance, InstanceSpec, RunnerScript, Sim, SimOptions,
};
use nix::sys::signal::Signal;

use crate::support::{
    Boot, Ended, Who, account, assert_owned, both_kinds, calls_to, good, is_root, mode, need_root,
    one_job, own_all, read, scripted, statuses, tree, wait_until,
};

const NOTE: &str = ".garm-bootstrap.registration-";
const MARKER: &str = ".garm-bootstrap.json";

fn everyone() -> impl Iterator<Item = Who> {
    [Who::Plain, Who::Root].into_iter().filter(|who| *who == Who::Plain || is_root())
}

/// Gives a boot state and runtime folders that no earlier one had, as a container of its own has them.
fn in_a_container_of_its_own(boot: Boot, name: &str) -> Boot {
    let folder = boot.path(name);
    fs::create_dir(&folder).unwrap();
    own_all(&folder);
    let (state, run) = (folder.join("state"), folder.join("run"));
    boot.env("GARM_STATE_DIR", state.to_str().unwrap())
        .env("GARM_RUNTIME_DIR", run.to_str().unwrap())
}

fn install(instance: &Instance, who: Who) -> Boot {
    let boot = Boot::of(instance).doing(&["install"]).who(who);
    in_a_container_of_its_own(boot, "init")
}

/// The main container after the init container, with the same volume.
fn main_container(installed: Ended, instance: &Instance, who: Who) -> Boot {
    in_a_container_of_its_own(installed.again(instance).who(who), "main")
}

fn notes(home: &Path) -> Vec<String> {
    let names = tree(home).into_iter().map(|path| path.to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(NOTE)).collect()
}

/// One download, one registration, one life.
fn assert_done_once(sim: &Sim, ended: &Ended, spec: &InstanceSpec) {
    let story = ended.story(sim);
    assert_eq!(calls_to(sim, Endpoint::Download).len(), 1, "{story}");
    let tokens = usize::from(!spec.jit);
    assert_eq!(calls_to(sim, Endpoint::RegistrationToken).len(), tokens, "{story}");
    assert_eq!(ended.configures().len(), tokens, "{story}");
    assert_eq!(runner_runs(&ended.home()).len(), 1, "{story}");
    assert!(notes(&ended.home()).is_empty(), "{story}");
}

#[test]
fn what_an_init_container_has_installed_is_run_by_the_main_one() {
    for (who, (kind, spec)) in everyone().flat_map(|who| both_kinds().map(|kind| (who, kind))) {
        println!("{who:?}, {kind}");
        let sim = good();
        let instance = sim.create(spec.clone());
        let installed = install(&instance, who).run().expect(&sim, 0).expect_no_runner(&sim);
        assert_eq!(instance.runner_status(), "installing");
        assert!(statuses(&sim).iter().all(|status| status == "installing"));
        assert_owned(&installed.home());
        assert!(!installed.dir.path().join("init/state/used.json").exists());
        let ended = main_container(installed, &instance, who).run().expect_job(&sim);
        assert_eq!(instance.runner_status(), "terminated");
        assert_done_once(&sim, &ended, &spec);
    }
}

#[test]
fn between_the_two_nothing_on_the_volume_could_register_a_runner() {
    let sim = good();
    let instance = sim.create(InstanceSpec::with_token());
    let installed = install(&instance, Who::Plain).run().expect(&sim, 0);
    let home = installed.home();
    let notes = notes(&home);
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert_eq!(mode(&home.join(&notes[0])), 0o600);
    let secrets = [instance.token(), instance.registration_token()];
    for path in tree(&home).into_iter().filter(|path| !path.starts_with("_sim")) {
        let text = read(&home.join(&path));
        assert!(secrets.iter().all(|secret| !text.contains(secret)), "{}", path.display());
    }
}

#[test]
fn root_installs_for_a_main_container_that_is_a_plain_user_and_the_reverse() {
    need_root();
    for ((first, second), (_, spec)) in [(Who::Root, Who::Plain), (Who::Plain, Who::Root)]
        .into_iter()
        .flat_map(|pair| both_kinds().map(|kind| (pair, kind)))
    {
        let sim = good();
        let instance = sim.create(spec.clone());
        let installed = install(&instance, first).run().expect(&sim, 0);
        let ended = main_container(installed, &instance, second).run().expect_job(&sim);
        assert_done_once(&sim, &ended, &spec);
        let owner = fs::metadata(ended.home().join("bin")).unwrap().uid();
        assert_eq!(owner, account().uid.as_raw());
    }
}

#[test]
fn a_main_container_that_may_not_read_the_registration_says_so() {
    need_root();
    let sim = good();
    let instance = sim.create(InstanceSpec::with_token());
    let boot = install(&instance, Who::Plain);
    let stranger = 2_000_000 + std::process::id();
    std::os::unix::fs::chown(boot.path("init"), Some(stranger), Some(stranger)).unwrap();
    let installed = boot.run_as_uid(stranger).expect(&sim, 0);
    let ended = main_container(installed, &instance, Who::Plain).run();
    let ended = ended.expect_failed(&sim, 12, &["registration token"]);
    ended.expect_said(&sim, "let both run as the same user").expect_no_runner(&sim);
}

/// A slow download and a first config.sh that is slow, so that a kill can meet either.
fn slow(spec: InstanceSpec) -> (Sim, Instance) {
    let slow_config = RunnerScript::new().config(Duration::from_millis(1500));
    let sim = scripted(one_job().keep_files().on_start(1, &slow_config));
    let instance = sim.create(spec);
    (sim, instance)
}

/// Kills an installation when `there` holds, and lets a new init container go on and a main one follow.
fn killed_and_gone_on_with(sim: &Sim, instance: &Instance, there: impl Fn(&Path) -> bool) -> Ended {
    let running = install(instance, Who::Plain).spawn();
    let home = running.home();
    wait_until("the point of the kill", || there(&home));
    running.signal(Signal::SIGKILL);
    let killed = running.wait(Duration::from_secs(60)).expect(sim, 137);
    let again = in_a_container_of_its_own(killed.again(instance).doing(&["install"]), "init-2");
    let installed = again.run().expect(sim, 0);
    main_container(installed, instance, Who::Plain).run().expect_job(sim)
}

#[test]
fn an_init_container_that_is_killed_in_its_download_is_made_good_by_the_next_one() {
    for (_, spec) in both_kinds() {
        let (sim, instance) = slow(spec.clone());
        let bytes_per_sec = sim.archive_bytes().len() as u64 / 2;
        let slow = FaultKind::SlowBody { bytes_per_sec };
        sim.fault(Fault::new(Endpoint::Download).once().kind(slow));
        let started = |_: &Path| !calls_to(&sim, Endpoint::Download).is_empty();
        let ended = killed_and_gone_on_with(&sim, &instance, started);
        assert_eq!(calls_to(&sim, Endpoint::Download).len(), 2, "{}", ended.story(&sim));
        assert_eq!(runner_runs(&ended.home()).len(), 1);
    }
}

#[test]
fn an_init_container_that_is_killed_in_config_sh_does_not_lose_the_one_shot_token() {
    let (sim, instance) = slow(InstanceSpec::with_token());
    let ended = killed_and_gone_on_with(&sim, &instance, |home| {
        let notes = notes(home);
        notes.len() == 1 && read(&home.join(&notes[0])).contains("\"token\"")
    });
    assert_eq!(calls_to(&sim, Endpoint::RegistrationToken).len(), 1, "{}", ended.story(&sim));
    assert_eq!(calls_to(&sim, Endpoint::Download).len(), 1, "{}", ended.story(&sim));
    assert_eq!(runner_runs(&ended.home()).len(), 1);
    assert!(notes(&ended.home()).is_empty());
}

#[test]
fn an_installation_that_fails_tells_garm_and_leaves_no_token() {
    let sim = scripted(RunnerScript::new().config_exit(1).keep_files());
    let instance = sim.create(InstanceSpec::with_token());
    let boot = install(&instance, Who::Plain).flag("deadline", "5s");
    let ended = boot.run().expect_failed(&sim, 22, &["config.sh"]).expect_no_runner(&sim);
    assert!(notes(&ended.home()).is_empty());
}

#[test]
fn an_instance_that_has_had_its_run_is_not_installed_again() {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let ended = Boot::of(&instance).run().expect_job(&sim);
    let calls = sim.calls().len();
    ended.again(&instance).doing(&["install"]).run().expect(&sim, 41);
    assert_eq!(sim.calls().len(), calls);
}

/// `install --prepare-only` of the runner of `sim`, with nothing of a GARM in sight.
fn prepare(sim: &Sim, who: Who) -> Boot {
    let url = sim.download_url();
    Boot::bare()
        .doing(&["install", "--prepare-only"])
        .who(who)
        .flag("runner-url", url)
        .flag("runner-sha256", sim.archive_sha256())
}

fn marker(home: &Path) -> serde_json::Value {
    serde_json::from_str(&read(&home.join(MARKER))).unwrap()
}

#[test]
fn a_prepared_image_holds_the_runner_and_its_marker_and_nothing_else() {
    for who in everyone() {
        let sim = good();
        let ended = prepare(&sim, who).run().expect(&sim, 0);
        let marker = marker(&ended.home());
        assert_eq!(marker["sha256"].as_str(), Some(&*sim.archive_sha256()));
        assert_eq!(marker["whole"].as_bool(), Some(true));
        assert_eq!(marker["architecture"], garm_bootstrap::host::os::forge_arch());
        assert!(marker["version"].is_string(), "{marker}");
        assert_eq!(ended.beside_home(), ["home"]);
        let left: Vec<_> = fs::read_dir(ended.dir.path().join("work")).unwrap().collect();
        assert_eq!(left.len(), 1, "no state and no runtime folder: {left:?}");
        for name in [".runner", ".credentials", ".credentials_rsaparams", "_diag", "_work"] {
            assert!(!ended.home().join(name).exists(), "{name}");
        }
        assert_owned(&ended.home());
        let asked: Vec<_> = sim.calls().iter().map(|call| call.endpoint).collect();
        assert_eq!(asked.len(), 1, "only the download\n{}", ended.story(&sim));
    }
}

#[test]
fn a_prepared_runner_is_used_in_place_and_as_assets() {
    for (who, (_, spec)) in everyone().flat_map(|who| both_kinds().map(|kind| (who, kind))) {
        let sim = good();
        let baked = prepare(&sim, who).run().expect(&sim, 0);
        let home = baked.home();
        let instance = sim.create(spec.clone());
        let boot = Boot::of(&instance).who(who).env("RUNNER_ASSETS_DIR", home.to_str().unwrap());
        let ended = boot.run().expect_job(&sim);
        assert_eq!(calls_to(&sim, Endpoint::Download).len(), 1, "{}", ended.story(&sim));
        assert_eq!(marker(&ended.home())["sha256"].as_str(), Some(&*sim.archive_sha256()));

        let instance = sim.create(spec);
        let ended = baked.again(&instance).who(who).run().expect(&sim, 0);
        assert_eq!(instance.runner_status(), "terminated", "{}", ended.story(&sim));
        assert_eq!(calls_to(&sim, Endpoint::Download).len(), 1, "{}", ended.story(&sim));
    }
}

#[test]
fn a_runner_that_is_prepared_already_is_not_fetched_again_but_another_one_is() {
    let sim = good();
    let first = prepare(&sim, Who::Plain).run().expect(&sim, 0);
    let asked = |sim: &Sim| sim.calls().len();
    let same = prepare(&sim, Who::Plain);
    let same = same.env("RUNNER_HOME", first.home().to_str().unwrap()).run().expect(&sim, 0);
    assert_eq!(asked(&sim), 1, "{}", same.story(&sim));

    let spec = ArchiveSpec { version: "2.999.1".into(), ..ArchiveSpec::scripted(one_job()) };
    let newer = Sim::start(SimOptions { archive: spec, ..SimOptions::default() });
    let boot = prepare(&newer, Who::Plain).env("RUNNER_HOME", first.home().to_str().unwrap());
    let ended = boot.run().expect(&newer, 0);
    assert_eq!(asked(&newer), 1, "{}", ended.story(&newer));
    assert_eq!(marker(&first.home())["sha256"].as_str(), Some(&*newer.archive_sha256()));
}

#[test]
fn a_preparation_that_was_killed_is_made_good_by_the_next_one() {
    let sim = good();
    let bytes_per_sec = sim.archive_bytes().len() as u64 / 2;
    sim.fault(Fault::new(Endpoint::Download).once().kind(FaultKind::SlowBody { bytes_per_sec }));
    let running = prepare(&sim, Who::Plain).spawn();
    wait_until("the download has begun", || !sim.calls().is_empty());
    std::thread::sleep(Duration::from_millis(300));
    running.signal(Signal::SIGTERM);
    let killed = running.wait(Duration::from_secs(60)).expect(&sim, 143);
    let home = killed.home();
    let again = prepare(&sim, Who::Plain).env("RUNNER_HOME", home.to_str().unwrap());
    again.run().expect(&sim, 0);
    assert_eq!(marker(&home)["whole"].as_bool(), Some(true));
    assert_eq!(killed.beside_home(), ["home"]);
}

#[test]
fn a_marker_of_another_architecture_is_not_trusted() {
    let sim = good();
    let baked = prepare(&sim, Who::Plain).run().expect(&sim, 0);
    let path = baked.home().join(MARKER);
    let mut told = marker(&baked.home());
    told["architecture"] = "z80".into();
    fs::write(&path, told.to_string()).unwrap();
    let instance = sim.create(InstanceSpec::default());
    let ended = baked.again(&instance).run().expect_job(&sim);
    ended.expect_said(&sim, "was unpacked for z80 machines");
    assert_eq!(calls_to(&sim, Endpoint::Download).len(), 2);
}

#[test]
fn a_preparation_says_what_it_lacks() {
    let sim = good();
    let bare = || Boot::bare().doing(&["install", "--prepare-only"]);
    let ended = bare().run().expect(&sim, 2);
    ended.expect_said(&sim, "find the setting runner-url: give --runner-url");

    let wrong = bare().flag("runner-url", sim.download_url()).flag("runner-sha256", "0".repeat(64));
    let ended = wrong.run().expect(&sim, 20).expect_said(&sim, &"0".repeat(64));
    assert!(ended.beside_home().is_empty(), "{:?}", ended.beside_home());

    let boot = prepare(&sim, Who::Plain);
    fs::create_dir(boot.home()).unwrap();
    fs::write(boot.home().join(".runner"), "{}").unwrap();
    let calls = sim.calls().len();
    let ended = boot.run().expect(&sim, 2).expect_said(&sim, "a runner is registered there");
    assert_eq!(sim.calls().len(), calls);
    assert!(ended.home().join(".runner").exists());
}

#[test]
fn root_installs_the_libraries_of_a_prepared_runner_and_a_plain_user_is_told() {
    for who in everyone() {
        let archive = ArchiveSpec {
            needs: vec!["libgarm-it-missing.so.7".into()],
            ..ArchiveSpec::scripted(one_job())
        };
        let sim = Sim::start(SimOptions { archive, ..SimOptions::default() });
        let ended = prepare(&sim, who).run().expect(&sim, 0);
        let installs = ended.starts().iter().filter(|s| s.subcommand == "sim-deps").count();
        assert_eq!(installs, usize::from(who == Who::Root), "{}", ended.story(&sim));
        if who == Who::Plain {
            ended.expect_said(&sim, "the image lacks libraries that the runner needs");
        }
    }
}
