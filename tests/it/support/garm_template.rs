//! GARM's runner install templates, rendered as GARM does it: by Go's own text/template.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use garm_sim::{Instance, Sim};
use serde_json::{Value, json};

use super::podman::finish;

/// Which GARM renders: they differ in what a template may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Garm {
    V01,
    V02,
}

/// A template of the project's packaging.
pub fn template(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/garm-template").join(name)
}

/// What GARM knows of `instance` when it renders.
pub fn context(sim: &Sim, instance: &Instance) -> Value {
    let given: Value = serde_json::from_str(&instance.bootstrap_json()).unwrap();
    let tools = given["tools"].as_array().unwrap();
    let tools = tools.iter().find(|one| one["os"] == "linux" && one["architecture"] == "x64");
    let tools = tools.expect("the simulated forge has a runner for this machine");
    let labels = given["labels"].as_array().into_iter().flatten();
    let labels: Vec<&str> = labels.map(|label| label.as_str().unwrap()).collect();
    json!({
        "FileName": tools["filename"],
        "DownloadURL": sim.download_url(),
        "TempDownloadToken": tools["temp_download_token"],
        "RunnerUsername": "runner",
        "RunnerGroup": "runner",
        "RepoURL": given["repo_url"],
        "MetadataURL": sim.metadata_url(),
        "RunnerName": instance.name(),
        "RunnerLabels": labels.join(","),
        "CallbackURL": sim.callback_url(),
        "CallbackToken": instance.token(),
        "GitHubRunnerGroup": given["github-runner-group"],
        "UseJITConfig": given["jit_config_enabled"],
    })
}

/// Renders `template` onto `values`.
pub fn render(garm: Garm, template: &Path, values: &Value) -> String {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("values.json"), values.to_string()).unwrap();
    let version = if garm == Garm::V01 { "0.1" } else { "0.2" };
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/templates/render.go");
    let mut go = Command::new("sh");
    go.args(["-c", "exec go run \"$1\" \"$2\" \"$3\" < values.json", "sh"]);
    go.arg(program).arg(version).arg(template).current_dir(dir.path());
    // Nothing is fetched, and what is built is kept with what Rust has built.
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go");
    go.envs([("GO111MODULE", "off"), ("GOPROXY", "off"), ("GOTOOLCHAIN", "local")]);
    go.env("GOCACHE", cache).env_remove("GOFLAGS");
    finish(&mut go, Duration::from_secs(120)).expect_ok("go (of the package golang-go)")
}
