//! The commands of the documentation, run as they stand in it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use garm_sim::{Endpoint, Instance, InstanceSpec, RunnerScript, Sim};
use serde_json::Value;

use crate::support::image::Image;
use crate::support::page::{Desk, Page, replaced};
use crate::support::pod::Pod;
use crate::support::podman::Container;
use crate::support::{
    LONG, calls_to, garm_sim_binary, good, own_all, read, scripted, statuses, wait_until,
};

#[test]
fn every_command_of_the_pages_is_run_by_a_test() {
    let sources: String = rust_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it"))
        .iter()
        .map(|file| read(file))
        .collect();
    let mut names = BTreeSet::new();
    for page in Page::all() {
        for block in page.blocks() {
            let shell = ["sh", "bash", "shell", "console"].contains(&block.language.as_str());
            // What runs the tests has run these.
            let ours = block.text.lines().all(|line| line.starts_with("cargo xtask "));
            assert!(
                !shell || ours || block.name.is_some(),
                "{}: no test runs\n{}",
                page.path(),
                block.text
            );
            let Some(name) = block.name else { continue };
            let taken = format!("block(\"{name}\")");
            assert!(sources.contains(&taken), "{}: no test takes {taken}", page.path());
            assert!(names.insert(name.clone()), "{name} is there twice");
        }
    }
    assert!(names.len() >= 24, "only {names:?}");
}

fn rust_files(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { rust_files(&path) } else { vec![path] }).collect()
}

/// The variables of an instance, at the desk.
fn desk_of(desk: Desk, instance: &Instance) -> Desk {
    instance.env().iter().fold(desk, |desk, (name, value)| desk.with_env(name, value))
}

#[test]
fn the_page_on_containers() {
    let page = Page::read("docs/containers.md");
    let sim = good();
    let desk = Desk::new().with_podman().with_program("garm-sim", &garm_sim_binary());
    desk.run(&page.block("containers-binary")).expect_ok("the binary's image");
    desk.run("podman tag debian:bookworm-slim my-runner:old").expect_ok("an image");
    desk.run(&page.block("containers-existing")).expect_ok("the binary in an image");

    let tried = desk.run(&page.block("containers-try")).expect_ok("a try");
    let said = ["installing", "runner-metadata", "system-info", "idle", "terminated"];
    assert!(said.iter().all(|word| tried.contains(word)), "{tried}");

    let build = page.block("containers-runner");
    let url = build.split_once("RUNNER_URL=").unwrap().1.split_whitespace().next().unwrap();
    let build = replaced(&build, url, &sim.download_url());
    let build = replaced(&build, "the-64-digits-of-the-release-page", &sim.archive_sha256());
    desk.run(&build).expect_ok("an image with a runner");
    let downloads = calls_to(&sim, Endpoint::Download).len();

    let instance = sim.create(InstanceSpec::default());
    let desk = desk_of(desk, &instance);
    desk.run(&page.block("containers-places")).expect_ok("a random uid and a read-only root");
    assert_eq!(instance.runner_status(), "terminated");

    let instance = sim.create(InstanceSpec::with_token());
    let desk = desk_of(desk, &instance);
    fs::write(desk.path("token"), instance.token()).unwrap();
    desk.run(&page.block("containers-token")).expect_ok("a token in a file");
    assert_eq!(instance.runner_status(), "terminated");
    assert_eq!(calls_to(&sim, Endpoint::Download).len(), downloads, "{}", sim.calls_table());

    let sim = scripted(RunnerScript::one_job(Duration::ZERO, Duration::from_secs(2)));
    let instance = sim.create(InstanceSpec::default());
    let desk = desk_of(desk, &instance);
    let start = "podman run -d --name runner-1 -e METADATA_URL -e CALLBACK_URL -e BEARER_TOKEN my-runner:new";
    desk.run(start).expect_ok("a container");
    wait_until("the job runs", || instance.runner_status() == "active");
    let stopped = desk.run(&page.block("containers-stop")).expect_ok("a stop during the job");
    assert!(stopped.lines().any(|line| line == "0"), "{stopped}");
    assert_eq!(instance.runner_status(), "terminated", "{stopped}");
}

/// A cluster of one pod at a time: what is applied is read by the real kubectl and kept, for the test to start; logs, exit
/// code and deletion are those of its container.
const KUBECTL: &str = r#"#!/bin/sh
set -eu
container=$(cat container 2>/dev/null || true)
case "$1 $2" in
"apply -f") /usr/bin/kubectl label --local -f "$3" -o json applied=yes >> applied.json ;;
"create secret") /usr/bin/kubectl "$@" --dry-run=client -o json >> applied.json ;;
"logs -f") podman logs -f "$container" 2>&1 ;;
"get pod") podman inspect --format '{{.State.ExitCode}}' "$container" ;;
"delete pod") podman stop --time 60 "$container" ;;
"delete secret") ;;
*) echo "kubectl $*: not at this desk" >&2; exit 1 ;;
esac
"#;

/// The pod that was applied at the desk, and what else was.
fn applied(desk: &Desk) -> Pod {
    let json = read(&desk.path("applied.json"));
    fs::remove_file(desk.path("applied.json")).unwrap();
    let documents = serde_json::Deserializer::from_str(&json).into_iter::<Value>();
    Pod::of(documents.map(Result::unwrap).collect())
}

fn started(desk: &Desk, pod: &Pod, image: &Image) -> Container {
    let container = pod.start(image.name());
    fs::write(desk.path("container"), container.name()).unwrap();
    container
}

#[test]
fn the_page_on_kubernetes() {
    let page = Page::read("docs/kubernetes.md");
    let desk = Desk::new().with_script("kubectl", KUBECTL);
    let image = Image::without_runner();
    let sim = scripted(RunnerScript::one_job(Duration::ZERO, Duration::from_secs(1)));

    let instance = sim.create(InstanceSpec::default());
    desk.run(&page.block("kubernetes-apply")).expect_ok("kubectl apply");
    let pod = applied(&desk);
    let pod = instance.env().iter().fold(pod, |pod, (name, value)| pod.with_env(name, value));
    let container = started(&desk, &pod, &image);
    let looked = desk.run(&page.block("kubernetes-look")).expect_ok("logs and exit code");
    assert!(looked.ends_with("\n0\n"), "{looked}");
    drop(container);

    let instance = sim.create(InstanceSpec::default());
    desk.run(&page.block("kubernetes-init")).expect_ok("kubectl apply");
    let pod = applied(&desk).with_secret("bootstrap.json", &instance.bootstrap_json());
    assert!(pod.run_init(image.name()).iter().all(|one| one.code == 0));
    let container = started(&desk, &pod, &image);
    wait_until("the job runs", || instance.runner_status() == "active");
    desk.run(&page.block("kubernetes-delete")).expect_ok("kubectl delete");
    assert_eq!((container.exit_code(), instance.runner_status().as_str()), (0, "terminated"));
}

#[test]
fn what_the_page_on_kubernetes_shows_of_the_podtemplate_stands_in_the_file() {
    let page = Page::read("docs/kubernetes.md");
    let shown = page.blocks().into_iter().find(|block| block.language == "yaml").unwrap().text;
    let file = read(Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/packaging/kubernetes/provider-config.yaml"
    )));
    for line in shown.lines() {
        assert!(file.lines().any(|there| there == line), "{line:?}");
    }
}

#[test]
fn the_page_for_a_providers_author() {
    let page = Page::read("docs/provider.md");
    let desk = Desk::new()
        .with_script("kubectl", KUBECTL)
        .with_garm_bootstrap()
        .with_program("garm-sim", &garm_sim_binary());
    fs::write(desk.path("provider"), page.block("provider-create")).unwrap();
    desk.run("chmod +x provider").expect_ok("chmod");
    let answer = desk.run(&page.block("provider-try")).expect_ok("the provider");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let given: Value =
        serde_json::from_str(read(&desk.path("seen.txt")).lines().next().unwrap()).unwrap();
    assert_eq!(answer["name"], given["name"]);
    assert_eq!((&answer["status"], &answer["os_type"]), (&"running".into(), &"linux".into()));
    assert_eq!(answer["os_arch"], given["arch"]);
    let id = answer["provider_id"].as_str().unwrap();

    let image = Image::without_runner();
    let pod = applied(&desk);
    let container = started(&desk, &pod, &image);
    let ended = container.wait(LONG);
    assert_eq!(ended.code, 0, "{ended}");
    wait_until("garm-sim has seen the job's end", || {
        let seen = read(&desk.path("seen.txt"));
        seen.contains("terminated") && seen.contains("idle")
    });
    desk.run(&format!("GARM_COMMAND=DeleteInstance GARM_INSTANCE_ID={id} ./provider"))
        .expect_ok("the deletion");
}

#[test]
fn the_page_for_a_providers_author_without_a_cluster() {
    let page = Page::read("docs/provider.md");
    let desk = Desk::new().with_garm_bootstrap();
    let desk = desk.with_env("GARM_STATE_DIR", "state").with_env("GARM_RUNTIME_DIR", "run");
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    fs::write(desk.path("seen.txt"), instance.bootstrap_json() + "\ncalls\n").unwrap();
    own_all(&desk.path(""));
    desk.run(&page.block("provider-instance")).expect_ok("the instance's part");
    assert_eq!(instance.runner_status(), "terminated");
    assert_eq!(statuses(&sim).last().map(String::as_str), Some("idle"));
}

#[test]
fn the_readmes_commands() {
    let page = Page::read("README.md");
    let sim = good();
    let desk = Desk::new().with_garm_bootstrap().with_program("garm-sim", &garm_sim_binary());
    let desk = desk.with_env("GARM_SYSTEM_CA", "false");
    let desk = desk.with_env("GARM_STATE_DIR", "state").with_env("GARM_RUNTIME_DIR", "run");

    let instance = sim.create(InstanceSpec::default());
    fs::write(desk.path("garm-token"), instance.token()).unwrap();
    let run = replaced(&page.block("readme-run"), "/run/garm-token", "garm-token");
    let run = replaced(&run, "https://garm.example/api/v1/metadata", &sim.metadata_url());
    let run = replaced(&run, "https://garm.example/api/v1/callbacks", &sim.callback_url());
    desk.run(&format!("export GARM_RUNNER_HOME=$PWD/one\n{run}")).expect_ok("run");
    assert_eq!(instance.runner_status(), "terminated");

    let instance = sim.create(InstanceSpec::default());
    fs::write(desk.path("bootstrap.json"), instance.bootstrap_json()).unwrap();
    let file = "/run/garm-bootstrap.json";
    let run = replaced(&page.block("readme-bootstrap"), file, "bootstrap.json");
    desk.run(&format!("export GARM_RUNNER_HOME=$PWD/two\n{run}")).expect_ok("run");
    assert_eq!(instance.runner_status(), "terminated");

    let instance = sim.create(InstanceSpec::default());
    let desk = desk_of(desk, &instance);
    desk.run(&page.block("readme-report")).expect_ok("report");
    assert_eq!(instance.runner_status(), "failed");

    assert_prepares(&sim, desk, &page.block("readme-prepare"));
}

#[test]
fn the_page_on_installing() {
    let sim = good();
    let desk = Desk::new().with_garm_bootstrap().with_env("GARM_RUNTIME_DIR", "run");
    assert_prepares(&sim, desk, &Page::read("docs/install.md").block("install-prepare"));
}

/// Asserts that `block` puts a runner into an image.
fn assert_prepares(sim: &Sim, desk: Desk, block: &str) {
    let desk = desk.with_env("URL", &sim.download_url()).with_env("SHA256", &sim.archive_sha256());
    let home = desk.path("image");
    desk.run(&replaced(block, "/opt/actions-runner", &home.display().to_string()))
        .expect_ok("a runner in an image");
    assert!(home.join("bin/Runner.Listener").is_file() && !home.join(".runner").exists());
}

#[test]
fn the_page_on_reporting() {
    let page = Page::read("docs/report.md");
    let mut desk = Desk::new().with_garm_bootstrap();
    desk = desk.with_script("apt-get", "#!/bin/sh\necho \"Setting up docker.io\"\n");
    let expected = [
        "downloading the tools cache",
        "",
        "runner ready",
        "no space left on the cache volume",
        "Setting up docker.io",
    ];
    let block = page.block("report-statuses");
    assert_eq!(block.lines().count(), expected.len());
    for (line, message) in block.lines().zip(expected) {
        let sim = good();
        let instance = sim.create(InstanceSpec::with_token());
        instance.set_runner_status("installing");
        desk = desk_of(desk, &instance);
        desk.run(line).expect_ok(line);
        let heard = instance.messages().pop().map(|one| one.message).unwrap_or_default();
        assert_eq!(heard, message, "{line}");
    }
}

#[test]
fn the_page_on_garm_sim() {
    let desk = Desk::new().with_program("garm-sim", &garm_sim_binary());
    for block in [
        Page::read("docs/garm-sim.md").block("garm-sim-serve"),
        Page::read("README.md").block("readme-garm-sim"),
    ] {
        // Ctrl-C, which the page speaks of.
        let timeout = "timeout --preserve-status --signal INT 1 garm-sim";
        let said = desk.run(&replaced(&block, "cargo run -p garm-sim --", timeout));
        let said = said.expect_ok("garm-sim serve");
        for word in ["export METADATA_URL=", "export CALLBACK_URL=", "export BEARER_TOKEN="] {
            assert!(said.contains(word), "{said}");
        }
    }
}
