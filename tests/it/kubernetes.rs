//! The manifests of packaging/kubernetes: read by kubectl, and booted as podman containers.

use std::fs;
use std::time::Duration;

use garm_sim::archive::runner_runs;
use garm_sim::{Endpoint, Instance, InstanceSpec, RunnerScript, Sim};
use serde_json::Value;

use crate::support::after::posted;
use crate::support::image::Image;
use crate::support::pod::{Pod, documents, kubectl, manifest};
use crate::support::podman::Output;
use crate::support::{LONG, both_kinds, calls_to, good, scripted, wait_until};

/// The pod of garm-provider-k8s, for an instance of a GARM that is simulated.
fn provider_pod(pod: Pod, sim: &Sim, instance: &Instance, jit: bool) -> Pod {
    let pod = instance.env().iter().fold(pod, |pod, (name, value)| pod.with_env(name, value));
    pod.with_env("RUNNER_NAME", instance.name())
        .with_env("GITHUB_URL", &sim.forge_url())
        .with_env("JIT_CONFIG_ENABLED", &jit.to_string())
}

#[track_caller]
fn assert_job(sim: &Sim, instance: &Instance, ended: &Output) {
    let story = format!("{ended}\n{}", sim.calls_table());
    assert_eq!(ended.code, 0, "{story}");
    assert_eq!(posted(sim, "idle"), 1, "{story}");
    assert_eq!(instance.runner_status(), "terminated", "{story}");
}

/// Every field of `written` that the API's own types do not have is gone from `typed`.
fn unknown_fields(path: &str, written: &Value, typed: &Value, unknown: &mut Vec<String>) {
    match (written, typed) {
        (Value::Object(written), Value::Object(typed)) => {
            for (key, value) in written {
                let path = format!("{path}.{key}");
                match typed.get(key) {
                    Some(typed) => unknown_fields(&path, value, typed, unknown),
                    None => unknown.push(path),
                }
            }
        }
        (Value::Array(written), Value::Array(typed)) => {
            for (n, (written, typed)) in written.iter().zip(typed).enumerate() {
                unknown_fields(&format!("{path}[{n}]"), written, typed, unknown);
            }
        }
        // An empty text is what the type has anyway.
        _ => {}
    }
}

/// What kubectl's own types make of a pod.
fn typed(pod: &Value) -> Value {
    let args = ["set", "env", "--local", "-f", "-", "-o", "json", "CHECKED=yes"];
    serde_json::from_str(&kubectl(&args, &pod.to_string())).unwrap()
}

#[track_caller]
fn assert_valid(pod: &Value) {
    let mut unknown = Vec::new();
    unknown_fields("pod", pod, &typed(pod), &mut unknown);
    // A variable that is empty has no value.
    unknown.retain(|path| !path.ends_with("].value"));
    assert!(unknown.is_empty(), "kubectl knows no {unknown:?}");
}

#[test]
fn kubectl_knows_every_field_of_the_manifests() {
    for file in ["pod.yaml", "pod-token-file.yaml", "pod-init.yaml", "pod-bootstrap.yaml"] {
        let documents = documents(&fs::read_to_string(manifest(file)).unwrap());
        let pod = documents.iter().find(|document| document["kind"] == "Pod").unwrap();
        assert_valid(pod);
    }
}

#[test]
fn the_drain_ends_before_the_grace_of_the_manifests() {
    for file in ["pod.yaml", "pod-token-file.yaml", "pod-init.yaml", "pod-bootstrap.yaml"] {
        let pod = Pod::read(file);
        let env = pod.spec["containers"][0]["env"].as_array().unwrap();
        let drain = env.iter().find(|one| one["name"] == "GARM_DRAIN_TIMEOUT").unwrap();
        let drain = humantime::parse_duration(drain["value"].as_str().unwrap()).unwrap();
        // Time for the runner to cancel its job, and for us to say so.
        assert!(drain + Duration::from_secs(120) <= pod.grace(), "{file}: {drain:?}");
    }
}

#[test]
fn a_misspelt_field_of_a_manifest_is_found() {
    let pod = fs::read_to_string(manifest("pod.yaml")).unwrap();
    let wrong = documents(&pod.replace("volumeMounts:", "volumeMount:")).remove(0);
    let mut unknown = Vec::new();
    unknown_fields("pod", &wrong, &typed(&wrong), &mut unknown);
    assert!(unknown.contains(&"pod.spec.containers[0].volumeMount".to_owned()), "{unknown:?}");
}

#[test]
fn the_pod_of_garm_provider_k8s_boots() {
    let image = Image::without_runner();
    for (kind, spec) in both_kinds() {
        let sim = good();
        let jit = spec.jit;
        let instance = sim.create(spec);
        let pod = provider_pod(Pod::read("pod.yaml"), &sim, &instance, jit);
        let ended = pod.start(image.name()).wait(LONG);
        assert_job(&sim, &instance, &ended);
        let run = runner_runs(&pod.volume("runner")).remove(0);
        assert_eq!(run.cwd, "/runner", "{kind}: {run:?}");
    }
}

#[test]
fn a_pod_that_is_deleted_waits_for_its_job() {
    let sim = scripted(RunnerScript::one_job(Duration::ZERO, Duration::from_secs(2)));
    let instance = sim.create(InstanceSpec::default());
    let image = Image::without_runner();
    let pod = provider_pod(Pod::read("pod.yaml"), &sim, &instance, true);
    let container = pod.start(image.name());
    wait_until("the job runs", || instance.runner_status() == "active");
    container.stop(pod.grace());
    assert_eq!(container.exit_code(), 0, "{}", container.logs());
    assert_eq!(instance.runner_status(), "terminated", "{}", container.logs());
}

#[test]
fn what_the_provider_is_configured_to_add_fits_its_pod() {
    let text = fs::read_to_string(manifest("provider-config.yaml")).unwrap();
    let config =
        documents(&format!("apiVersion: v1\nkind: ProviderConfig\nmetadata: {{name: x}}\n{text}"));
    // The provider's own part of the pod, and the merge that it does.
    let mut pod = documents(&fs::read_to_string(manifest("pod.yaml")).unwrap()).remove(0);
    let complete = pod["spec"].clone();
    for added in
        ["terminationGracePeriodSeconds", "automountServiceAccountToken", "securityContext"]
    {
        pod["spec"].as_object_mut().unwrap().remove(added);
    }
    let runner = &mut pod["spec"]["containers"][0];
    runner.as_object_mut().unwrap().remove("command");
    runner["env"].as_array_mut().unwrap().retain(|one| one["name"] != "GARM_DRAIN_TIMEOUT");
    let patch = config[0]["podTemplate"].to_string();
    let args = ["patch", "--local", "-f", "-", "--type=strategic", "-o", "json", "-p", &patch];
    let mut merged: Value = serde_json::from_str(&kubectl(&args, &pod.to_string())).unwrap();
    assert_valid(&merged);
    let by_name = |spec: &mut Value| {
        let env = spec["containers"][0]["env"].as_array_mut().unwrap();
        env.sort_by_key(|one| one["name"].as_str().unwrap().to_owned());
        spec.clone()
    };
    assert_eq!(by_name(&mut merged["spec"]), by_name(&mut complete.clone()));
}

#[test]
fn a_token_in_a_file_boots_a_pod_that_shows_it_nowhere() {
    let image = Image::without_runner();
    let sim = good();
    let instance = sim.create(InstanceSpec::with_token());
    let pod = Pod::read("pod-token-file.yaml")
        .with_env("GARM_METADATA_URL", &sim.metadata_url())
        .with_env("GARM_CALLBACK_URL", &sim.callback_url())
        .with_secret("token", &instance.token());
    let container = pod.start(image.name());
    assert_job(&sim, &instance, &container.wait(LONG));
    let shown = container.inspect().to_string() + &container.logs();
    for secret in instance.secrets() {
        assert!(!shown.contains(&secret), "{shown}");
    }
}

#[test]
fn an_init_container_installs_and_the_main_container_runs() {
    let image = Image::without_runner();
    for (kind, spec) in both_kinds() {
        let sim = good();
        let instance = sim.create(spec);
        let pod =
            Pod::read("pod-init.yaml").with_secret("bootstrap.json", &instance.bootstrap_json());
        let installed = pod.run_init(image.name());
        assert_eq!(installed.iter().map(|one| one.code).collect::<Vec<_>>(), [0], "{installed:?}");
        assert_eq!(instance.runner_status(), "installing", "{kind}");
        let before = calls_to(&sim, Endpoint::Download).len();
        assert_job(&sim, &instance, &pod.start(image.name()).wait(LONG));
        assert_eq!((before, calls_to(&sim, Endpoint::Download).len()), (1, 1), "{kind}");
        assert_eq!(runner_runs(&pod.volume("runner")).len(), 1, "{kind}");
    }
}

#[test]
fn an_init_container_without_a_token_prepares_the_runner_for_the_providers_pod() {
    let image = Image::without_runner();
    let sim = good();
    let instance = sim.create(InstanceSpec::with_token());
    let mut pod = provider_pod(Pod::read("pod.yaml"), &sim, &instance, false);
    let url = sim.download_url();
    let mut words =
        "/usr/local/bin/garm-bootstrap install --prepare-only --home /runner --runner-url"
            .split(' ')
            .collect::<Vec<_>>();
    words.push(&url);
    pod.spec["initContainers"] = serde_json::json!([{
        "name": "prepare",
        "command": words,
        "env": [],
        "volumeMounts": [{"name": "runner", "mountPath": "/runner"}],
    }]);
    let prepared = pod.run_init(image.name());
    assert_eq!(prepared.iter().map(|one| one.code).collect::<Vec<_>>(), [0], "{prepared:?}");
    assert_eq!(instance.runner_status(), "pending", "GARM has heard nothing");
    assert_job(&sim, &instance, &pod.start(image.name()).wait(LONG));
    assert_eq!(calls_to(&sim, Endpoint::Download).len(), 1, "{}", sim.calls_table());
}
