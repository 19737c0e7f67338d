//! A pod of a Kubernetes manifest, run by podman as the file has it.
//!
//! kubectl reads the YAML (it needs no cluster for that), and what stands in the pod becomes podman's flags: command,
//! environment, user, volumes, grace. A field that this does not know fails the test, so that nothing stands in a manifest
//! that was not tried.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;
use tempfile::TempDir;

use super::LONG;
use super::podman::{Container, Output, Prepared, finish};

const OF_A_POD: [&str; 7] = [
    "restartPolicy",
    "terminationGracePeriodSeconds",
    "automountServiceAccountToken",
    "securityContext",
    "initContainers",
    "containers",
    "volumes",
];
const OF_A_CONTAINER: [&str; 5] = ["name", "image", "command", "env", "volumeMounts"];
const OF_A_SECURITY_CONTEXT: [&str; 3] = ["runAsUser", "runAsNonRoot", "fsGroup"];

/// A pod, with the secrets that stand beside it.
pub struct Pod {
    pub spec: Value,
    secrets: BTreeMap<String, BTreeMap<String, String>>,
    /// Its volumes, by name.
    dir: TempDir,
}

/// A file of the project's packaging for Kubernetes.
pub fn manifest(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/kubernetes").join(file)
}

/// The documents of a YAML text, as kubectl reads them without a cluster.
pub fn documents(yaml: &str) -> Vec<Value> {
    let json = kubectl(&["label", "--local", "-f", "-", "-o", "json", "read=here"], yaml);
    let documents = serde_json::Deserializer::from_str(&json).into_iter();
    documents.map(|document| document.unwrap()).collect()
}

/// What `kubectl` says with `input` on its stdin.
pub fn kubectl(args: &[&str], input: &str) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), input).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "input=$1; shift; exec kubectl \"$@\" < \"$input\"", "sh"]);
    command.arg(file.path()).args(args).stdin(Stdio::null());
    finish(&mut command, LONG).expect_ok("kubectl (of the package kubernetes-client)")
}

impl Pod {
    pub fn read(file: &str) -> Self {
        Self::of(documents(&fs::read_to_string(manifest(file)).unwrap()))
    }

    pub fn of(documents: Vec<Value>) -> Self {
        let (mut spec, mut secrets) = (Value::Null, BTreeMap::new());
        for mut document in documents {
            match document["kind"].as_str().unwrap() {
                "Pod" => spec = document["spec"].take(),
                "Secret" => {
                    let name = document["metadata"]["name"].as_str().unwrap().to_owned();
                    secrets.insert(name, data_of(&document));
                }
                other => panic!("a {other} is not known here"),
            }
        }
        assert_known(&spec, &OF_A_POD);
        assert_known(&spec["securityContext"], &OF_A_SECURITY_CONTEXT);
        let dir = tempfile::Builder::new().prefix("garm-it-").tempdir_in("/tmp").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self { spec, secrets, dir }
    }

    /// Puts another value where the manifest has one, in each container that has it.
    pub fn with_env(mut self, name: &str, value: &str) -> Self {
        let mut found = false;
        for container in ["initContainers", "containers"] {
            let containers = self.spec[container].as_array_mut().into_iter().flatten();
            let env = containers.flat_map(|one| one["env"].as_array_mut().into_iter().flatten());
            for variable in env.filter(|variable| variable["name"] == name) {
                variable["value"] = value.into();
                found = true;
            }
        }
        assert!(found, "the manifest does not set {name}");
        self
    }

    /// Puts another value into the secret that has `key`.
    pub fn with_secret(mut self, key: &str, value: &str) -> Self {
        let place = self.secrets.values_mut().find_map(|secret| secret.get_mut(key));
        value.clone_into(place.expect("a secret of the manifest has this key"));
        self
    }

    pub fn grace(&self) -> Duration {
        Duration::from_secs(self.spec["terminationGracePeriodSeconds"].as_u64().unwrap())
    }

    /// Where a volume is on this machine.
    pub fn volume(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs the init containers one after the other, as the kubelet does.
    pub fn run_init(&self, image: &str) -> Vec<Output> {
        self.make_volumes();
        let init = self.spec["initContainers"].as_array();
        init.into_iter()
            .flatten()
            .map(|one| self.container(one, image).start().wait(LONG))
            .collect()
    }

    /// Starts the one container.
    pub fn start(&self, image: &str) -> Container {
        self.make_volumes();
        let containers = self.spec["containers"].as_array().unwrap();
        assert_eq!(containers.len(), 1);
        self.container(&containers[0], image).start()
    }

    fn container(&self, container: &Value, image: &str) -> Prepared {
        assert_known(container, &OF_A_CONTAINER);
        let command = strings(&container["command"]);
        let security = &self.spec["securityContext"];
        let mut prepared = Prepared::of(image)
            .entrypoint(&command[0])
            .command(command[1..].to_vec())
            .user(&security["runAsUser"].to_string())
            .flag(format!("--group-add={}", security["fsGroup"]));
        for variable in container["env"].as_array().unwrap() {
            let (name, value) = (variable["name"].as_str(), variable["value"].as_str());
            prepared = prepared.env(name.unwrap(), value.unwrap());
        }
        for mount in container["volumeMounts"].as_array().unwrap() {
            let (name, path) =
                (mount["name"].as_str().unwrap(), mount["mountPath"].as_str().unwrap());
            let mode = if mount["readOnly"] == true { ":ro" } else { "" };
            prepared = prepared.volume(self.volume(name), &format!("{path}{mode}"));
        }
        prepared
    }

    /// As the kubelet makes them: an emptyDir is everybody's, a secret is the group's.
    fn make_volumes(&self) {
        let group = self.spec["securityContext"]["fsGroup"].as_u64().unwrap().try_into().unwrap();
        for volume in self.spec["volumes"].as_array().unwrap() {
            let dir = self.volume(volume["name"].as_str().unwrap());
            if dir.exists() {
                continue;
            }
            fs::create_dir(&dir).unwrap();
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o2777)).unwrap();
            if let Some(name) = volume["secret"]["secretName"].as_str() {
                let mode =
                    u32::try_from(volume["secret"]["defaultMode"].as_u64().unwrap()).unwrap();
                for (key, value) in &self.secrets[name] {
                    let file = dir.join(key);
                    fs::write(&file, value).unwrap();
                    chown(&file, Some(0), Some(group)).unwrap();
                    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
                }
            } else {
                assert!(volume["emptyDir"].is_object(), "{volume}");
            }
            chown(&dir, Some(0), Some(group)).unwrap();
        }
    }
}

/// What stands in a secret, as text or as base64.
fn data_of(secret: &Value) -> BTreeMap<String, String> {
    let entries = |key: &str| secret[key].as_object().cloned().unwrap_or_default();
    let decoded = |value: &Value| {
        let bytes = BASE64.decode(value.as_str().unwrap()).unwrap();
        String::from_utf8(bytes).unwrap()
    };
    let plain = entries("stringData");
    let plain = plain.iter().map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned()));
    plain.chain(entries("data").iter().map(|(key, value)| (key.clone(), decoded(value)))).collect()
}

fn strings(list: &Value) -> Vec<String> {
    serde_json::from_value(list.clone()).unwrap()
}

#[track_caller]
fn assert_known(object: &Value, names: &[&str]) {
    for name in object.as_object().unwrap().keys() {
        assert!(names.contains(&name.as_str()), "\"{name}\" is not tried here");
    }
}
