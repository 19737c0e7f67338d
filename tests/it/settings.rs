//! Every way to tell the program what it needs to know.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use garm_sim::{Endpoint, Instance, InstanceSpec, Sim};

use crate::support::{Boot, both_kinds, calls_to, good, need_root, read};

/// What [`Boot::bare`] says beside the runner's home, for tests of what is the case without it.
fn bare_but_for_the_home() -> Boot {
    Boot::bare()
        .without("PATH")
        .without("GARM_STATE_DIR")
        .without("GARM_RUNTIME_DIR")
        .without("GARM_STOP_GRACE")
}

fn with_env(mut boot: Boot, instance: &Instance) -> Boot {
    for (name, value) in instance.env() {
        boot = boot.env(&name, &value);
    }
    boot
}

/// A uid that has no account and that no other test has.
fn nobodys_uid() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    1_000_000 + std::process::id() * 100 + NEXT.fetch_add(1, Ordering::Relaxed)
}

#[test]
fn four_variables_are_enough_even_for_a_uid_without_an_account() {
    let sim = good();
    for (kind, spec) in both_kinds() {
        let instance = sim.create(spec);
        let uid = nobodys_uid();
        let ended = with_env(bare_but_for_the_home(), &instance).run_as_uid(uid).expect(&sim, 0);
        let state = format!("/tmp/garm-bootstrap-{uid}");
        let kept = fs::metadata(format!("{state}/timeline.json")).is_ok();
        let _ = fs::remove_dir_all(&state);
        assert!(kept, "{kind}: the state is in {state}\n{}", ended.story(&sim));
        assert!(ended.starts().iter().all(|start| start.uid == uid), "{}", ended.story(&sim));
    }
}

#[test]
fn the_state_is_where_the_xdg_variables_say() {
    for (name, value, state) in [
        ("HOME", "work", "work/.local/state/garm-bootstrap"),
        ("XDG_STATE_HOME", "work/xdg", "work/xdg/garm-bootstrap"),
    ] {
        let sim = good();
        let instance = sim.create(InstanceSpec::default());
        let boot = with_env(bare_but_for_the_home(), &instance);
        let value = boot.path(value);
        let boot = boot.env(name, value.to_str().unwrap());
        let ended = boot.run().expect_job(&sim);
        let timeline = read(&ended.dir.path().join(state).join("timeline.json"));
        assert!(timeline.contains("\"supervise\""), "{name}\n{}", ended.story(&sim));
    }
}

#[test]
fn roots_own_folders_are_used_where_nobody_names_others() {
    need_root();
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    // In a mount namespace of its own: these folders are the machine's.
    let script = "mount -t tmpfs tmpfs /var/lib && mount -t tmpfs tmpfs /run || exit 99
        \"$@\"; code=$?
        ls /var/lib/garm-bootstrap; stat -c '%a %n' /var/lib/garm-bootstrap
        exit $code";
    let boot = with_env(bare_but_for_the_home(), &instance).as_root();
    let ended =
        boot.run_through(&["unshare", "--mount", "sh", "-c", script, "sh"]).expect_job(&sim);
    for word in ["timeline.json", "used.json", "700 /var/lib/garm-bootstrap"] {
        assert!(ended.stdout.contains(word), "{word}\n{}", ended.story(&sim));
    }
}

type Say = fn(Boot, &Sim, &Instance) -> Boot;

#[test]
fn garm_is_found_however_it_is_written() {
    let rows: &[(&str, Say)] = &[
        ("today's names, odd URLs", |boot, sim, instance| {
            boot.env("METADATA_URL", &format!("{}/", sim.metadata_url()))
                .env("CALLBACK_URL", &format!("{}/status/", sim.callback_url()))
                .env("BEARER_TOKEN", &instance.token())
        }),
        ("a callback URL with /status", |boot, sim, instance| {
            boot.env("METADATA_URL", &format!("{}//", sim.metadata_url()))
                .env("CALLBACK_URL", &format!("{}/status", sim.callback_url()))
                .env("BEARER_TOKEN", &instance.token())
        }),
        ("our own names", |boot, sim, instance| {
            boot.env("GARM_METADATA_URL", &sim.metadata_url())
                .env("GARM_CALLBACK_URL", &format!("{}/", sim.callback_url()))
                .env("GARM_TOKEN", &instance.token())
                // Weaker, and wrong.
                .env("METADATA_URL", "http://127.0.0.1:1/nobody")
                .env("BEARER_TOKEN", "somebody-elses")
        }),
        ("flags and a token file", |boot, sim, instance| {
            let token = boot.file("token", format!("{}\n", instance.token()));
            boot.flag("metadata-url", sim.metadata_url())
                .flag("callback-url", sim.callback_url())
                .flag("token-file", token)
        }),
        ("a token file in the environment", |boot, sim, instance| {
            let token = boot.file("token", instance.token());
            boot.flag("metadata-url", sim.metadata_url())
                .flag("callback-url", sim.callback_url())
                .env("GARM_TOKEN_FILE", token.to_str().unwrap())
        }),
        ("a systemd credential", |boot, sim, instance| {
            boot.file("garm-token", instance.token());
            let folder = boot.dir.path().to_owned();
            boot.env("METADATA_URL", &sim.metadata_url())
                .env("CALLBACK_URL", &sim.callback_url())
                .env("CREDENTIALS_DIRECTORY", folder.to_str().unwrap())
        }),
        ("a config file", |boot, sim, instance| {
            let token = boot.file("token", instance.token());
            let config = boot.file(
                "config.toml",
                format!(
                    "# What the image knows.\nmetadata-url = \"{}\"\ncallback-url = \"{}\"\n\
                     token-file = \"{}\"\nephemeral = true\nready-timeout = \"30s\"\n",
                    sim.metadata_url(),
                    sim.callback_url(),
                    token.display()
                ),
            );
            boot.flag("config", config)
        }),
        ("the bootstrap file alone", |boot, _, instance| {
            let file = boot.file("bootstrap.json", instance.bootstrap_json());
            boot.flag("bootstrap-file", file)
        }),
        ("the bootstrap file in the environment", |boot, _, instance| {
            let file = boot.file("bootstrap.json", instance.bootstrap_json());
            boot.env("GARM_BOOTSTRAP_FILE", file.to_str().unwrap())
        }),
    ];
    let boots = rows.iter().flat_map(|row| both_kinds().map(|kind| (row, kind)));
    for ((what, say), (kind, spec)) in boots {
        let sim = good();
        let instance = sim.create(spec);
        let ended = say(Boot::bare(), &sim, &instance).run();
        println!("{what}, {kind}");
        ended.expect_job(&sim);
        assert_eq!(instance.runner_status(), "terminated", "{what}, {kind}");
    }
}

#[test]
fn the_bootstrap_file_can_come_on_stdin() {
    for (_, spec) in both_kinds() {
        let sim = good();
        let instance = sim.create(spec);
        let boot = Boot::bare().flag("bootstrap-file", "-");
        boot.run_with_stdin(instance.bootstrap_json()).expect_job(&sim);
    }
}

/// The environment of a pod as garm-provider-k8s makes it, with folders of the test's.
fn pod(sim: &Sim, instance: &Instance, jit: bool) -> Boot {
    let mut boot = Boot::of(instance);
    let (assets, work) = (boot.path("assets"), boot.path("work/jobs/"));
    for (name, value) in [
        ("RUNNER_ORG", "acme"),
        ("RUNNER_REPO", "widgets"),
        ("RUNNER_ENTERPRISE", ""),
        ("RUNNER_GROUP", "default"),
        ("RUNNER_NAME", instance.name()),
        ("RUNNER_LABELS", "k8s,large pod"),
        ("RUNNER_NO_DEFAULT_LABELS", "true"),
        ("DISABLE_RUNNER_UPDATE", "true"),
        ("RUNNER_WORKDIR", work.to_str().unwrap()),
        ("GITHUB_URL", &sim.forge_url()),
        ("RUNNER_EPHEMERAL", "true"),
        ("RUNNER_TOKEN", "dummy"),
        ("JIT_CONFIG_ENABLED", if jit { "true" } else { "false" }),
        ("RUNNER_ASSETS_DIR", assets.to_str().unwrap()),
    ] {
        boot = boot.env(name, value);
    }
    boot.unpack(sim, &assets)
}

#[test]
fn a_pod_of_garm_provider_k8s_boots_as_it_is() {
    for (kind, spec) in both_kinds() {
        let sim = good();
        let instance = sim.create(spec.clone());
        let ended = pod(&sim, &instance, spec.jit).run().expect_job(&sim);
        let story = ended.story(&sim);
        assert!(calls_to(&sim, Endpoint::Download).is_empty(), "{kind}\n{story}");
        if spec.jit {
            assert!(ended.configures().is_empty(), "{story}");
            continue;
        }
        let events = sim.runner_events();
        let registered = events.iter().find(|event| event.event == "registered").unwrap();
        let work = ended.dir.path().join("work/jobs/");
        for (field, value) in [
            ("url", format!("{}/acme/widgets", sim.forge_url())),
            ("labels", "k8s,large pod".into()),
            ("group", String::new()),
            ("work", work.to_str().unwrap().to_owned()),
            ("ephemeral", "true".into()),
            ("disableupdate", "true".into()),
            ("no_default_labels", "true".into()),
        ] {
            let said = registered.fields.get(field).cloned().unwrap_or_default();
            assert_eq!(said, value, "{field}\n{story}");
        }
        assert_eq!(registered.runner, instance.name());
    }
}

#[test]
fn what_garm_says_of_jit_beats_what_the_image_thinks() {
    for (_, spec) in both_kinds() {
        let sim = good();
        let instance = sim.create(spec.clone());
        let thinks = if spec.jit { "false" } else { "true" };
        let ended = Boot::of(&instance).env("JIT_CONFIG_ENABLED", thinks).run().expect_job(&sim);
        assert_eq!(ended.configures().is_empty(), spec.jit, "{}", ended.story(&sim));
    }
}

#[test]
fn what_a_person_says_of_jit_beats_what_garm_says() {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let ended = Boot::of(&instance).arg("--jit=false").run();
    let ended = ended.expect_failed(&sim, 12, &["registration token", "JIT"]);
    ended.expect_no_runner(&sim);
}

#[test]
fn a_flag_beats_the_environment_and_that_beats_the_file_and_that_beats_garm() {
    let sim = good();
    let instance = sim.create(InstanceSpec::with_token());
    let boot = Boot::of(&instance);
    let config = boot.file("c.toml", "labels = [\"file\"]\ngroup = \"file\"\nwork = \"file\"\n");
    let boot = boot
        .flag("config", config)
        .env("RUNNER_GROUP", "image")
        .env("GARM_RUNNER_GROUP", "environment")
        .env("RUNNER_WORKDIR", "environment")
        .flag("work", "flag");
    let ended = boot.run().expect_job(&sim);
    let events = sim.runner_events();
    let registered = events.iter().find(|event| event.event == "registered").unwrap();
    let said = |field: &str| registered.fields[field].clone();
    let all = (said("labels"), said("group"), said("work"));
    let expected = ("file".to_owned(), "environment".to_owned(), "flag".to_owned());
    assert_eq!(all, expected, "{}", ended.story(&sim));
}

/// The help is how people find out what there is; a change of it is to be seen in review.
#[test]
fn the_help_text() {
    let help = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_garm-bootstrap"));
        let output = command.arg0("garm-bootstrap").args(args).env_clear().output().unwrap();
        assert!(output.status.success());
        assert!(output.stderr.is_empty());
        String::from_utf8(output.stdout).unwrap()
    };
    insta::assert_snapshot!("help", help(&["--help"]));
    for command in ["run", "install", "report", "check", "timeline"] {
        insta::assert_snapshot!(format!("help_{command}"), help(&[command, "--help"]));
    }
}

#[test]
fn labels_may_stand_in_a_list_or_between_commas() {
    let rows = ["labels = [\"a\", \"b c\"]", "labels = \"a,b c\""];
    for row in rows {
        let sim = good();
        let instance = sim.create(InstanceSpec::with_token());
        let boot = Boot::of(&instance);
        let config = boot.file("c.toml", row);
        let ended = boot.flag("config", config).run().expect_job(&sim);
        let events = sim.runner_events();
        let registered = events.iter().find(|event| event.event == "registered").unwrap();
        assert_eq!(registered.fields["labels"], "a,b c", "{row}\n{}", ended.story(&sim));
    }
}
