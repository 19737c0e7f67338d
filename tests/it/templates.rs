//! GARM's runner install templates: rendered by Go, linted by shellcheck, and run as GARM runs them.

mod page;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use garm_sim::{Instance, InstanceSpec, RunnerScript, Sim, SimOptions};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::support::after::posted;
use crate::support::garm_template::{Garm, context, render, template};
use crate::support::page::Page;
use crate::support::podman::{Container, Output, Prepared, SYSTEMD, finish};
use crate::support::web::{nobody, serve};
use crate::support::{
    LONG, archive_of, failures, good, one_job, scripted, static_binary, wait_until,
};

const GITHUB: &str = "github-linux.sh.tmpl";
const GITEA: &str = "gitea-linux.sh.tmpl";
/// Where cloud-init puts what a provider makes of the template, and how it starts it.
const SCRIPT: &str = "/install_runner.sh";
const AS_CLOUD_INIT: [&str; 5] = ["su", "-l", "-c", SCRIPT, "runner"];

/// Texts that would be more than text in a careless template.
const ODD: [&str; 6] = [
    "two words",
    "it's \"quoted\"",
    "$(touch /tmp/pwn) `touch /tmp/pwn` ${HOME}",
    "100%s %n %%",
    "back\\slash \\n \\\"",
    "lines\nEND\ntouch /tmp/pwn\n",
];

/// A machine of the cloud: GARM's user with sudo, and nothing of ours.
fn machine(prepared: Prepared) -> Container {
    let machine = prepared.start();
    prepare(&machine);
    machine
}

fn prepare(machine: &Container) {
    machine.sh("useradd -m -s /bin/bash runner
         printf 'runner ALL=(ALL) NOPASSWD:ALL\\n' > /etc/sudoers.d/90-cloud-init-users");
}

/// One without systemd, where nothing may be executed from /tmp.
fn plain_machine() -> Container {
    let hardened = Prepared::of(SYSTEMD).flag("--tmpfs=/tmp:rw,noexec,mode=1777");
    machine(hardened.flag("--init").command(["sleep", "160"]))
}

fn put(machine: &Container, text: &str, inside: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    machine.copy_in(file.path(), inside);
    machine.sh(&format!("chown root:root {inside}; chmod 755 {inside}"));
}

/// The values of an instance, whose binary is at `address` and has this checksum.
fn values(sim: &Sim, instance: &Instance, address: SocketAddr, sha256: &str) -> Value {
    let mut values = context(sim, instance);
    values["ExtraContext"] = json!({
        "garm_bootstrap_url": format!("http://{address}/garm-bootstrap"),
        "garm_bootstrap_sha256": sha256,
    });
    values
}

fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

fn binary() -> Vec<u8> {
    fs::read(static_binary()).unwrap()
}

#[track_caller]
fn assert_clean(script: &str, what: &str) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("script.sh");
    fs::write(&path, script).unwrap();
    for mut lint in [Command::new("shellcheck"), Command::new("dash")] {
        let dash = lint.get_program() == "dash";
        lint.args(if dash { ["-n", "-e"] } else { ["-s", "sh"] }).arg(&path);
        finish(&mut lint, LONG).expect_ok(what);
    }
}

#[test]
fn what_is_rendered_is_clean_sh() {
    let sim = good();
    let instance = sim.create(InstanceSpec::with_token());
    for name in [GITHUB, GITEA] {
        for garm in [Garm::V01, Garm::V02] {
            let mut values = context(&sim, &instance);
            assert_clean(&render(garm, &template(name), &values), name);
            for field in ["RunnerName", "RepoURL", "GitHubRunnerGroup", "RunnerLabels"] {
                values[field] = ODD.concat().into();
            }
            values["EnableBootDebug"] = true.into();
            values["TempDownloadToken"] = "temporary".into();
            assert_clean(&render(garm, &template(name), &values), name);
        }
    }
}

#[test]
fn no_script_traces_itself_or_gives_the_token_to_a_program() {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let script = render(Garm::V02, &template(GITHUB), &context(&sim, &instance));
    assert_eq!(script.matches(&instance.token()).count(), 1, "{script}");
    let traced = script.lines().find(|line| line.contains("set -x") || line.contains("-ex"));
    assert_eq!(traced, None);
}

#[test]
fn odd_values_arrive_as_they_are_and_nothing_of_them_is_run() {
    let machine = plain_machine();
    // In the place of the binary: what it would have been given.
    let shows = "#!/bin/sh\n[ \"$1\" = --version ] || cat \"$3\"\n";
    put(&machine, shows, "/usr/local/bin/garm-bootstrap");
    let sim = good();
    let instance = sim.create(InstanceSpec::with_token());
    for odd in ODD {
        let mut values = context(&sim, &instance);
        for field in ["RunnerName", "RepoURL", "GitHubRunnerGroup", "RunnerLabels", "DownloadURL"] {
            values[field] = odd.into();
        }
        values["TempDownloadToken"] = odd.into();
        put(&machine, &render(Garm::V01, &template(GITHUB), &values), SCRIPT);
        let proxy = "http://us\"er:p\\a%20ss@proxy:3128";
        let given = machine.exec(["env", &format!("http_proxy={proxy}"), SCRIPT]).expect_ok(odd);
        let given: Value = serde_json::from_str(&given).unwrap();
        let seen = [
            &given["name"],
            &given["repo_url"],
            &given["github-runner-group"],
            &given["labels"][0],
        ];
        assert_eq!(seen, [odd; 4], "{given}");
        assert_eq!(given["tools"][0]["download_url"], odd);
        assert_eq!(given["tools"][0]["temp_download_token"], odd);
        assert_eq!(given["proxy_config"]["http_proxy"], proxy);
    }
    assert_eq!(machine.sh("ls /tmp"), "", "nothing was run");
    let mut values = context(&sim, &instance);
    values["RunnerLabels"] = "a,b c,runner-pool-id=1".into();
    put(&machine, &render(Garm::V01, &template(GITHUB), &values), SCRIPT);
    let given: Value = serde_json::from_str(&machine.sh(SCRIPT)).unwrap();
    assert_eq!(given["labels"], json!(["a", "b c", "runner-pool-id=1"]));
}

/// Runs the template for `instance` to its end on a machine without systemd.
fn run(machine: &Container, sim: &Sim, instance: &Instance, values: &Value) -> Output {
    let script = render(Garm::V01, &template(GITHUB), values);
    put(machine, &script, SCRIPT);
    let ended = machine.exec(AS_CLOUD_INIT);
    let story = format!("{ended}\n{}", sim.calls_table());
    for secret in instance.secrets() {
        assert!(!story.contains(&secret), "{story}");
    }
    ended
}

#[test]
fn a_runner_of_garm_0_1_boots_without_systemd_and_without_the_binary_in_the_image() {
    let options = SimOptions { no_runner_metadata: true, ..archive_of(one_job()) };
    let binary = binary();
    let sum = sha256(&binary).to_uppercase();
    let address = serve(binary);
    let sim = Sim::start(options);
    for spec in [InstanceSpec::default(), InstanceSpec::with_token()] {
        let instance = sim.create(spec);
        let machine = plain_machine();
        let ended = run(&machine, &sim, &instance, &values(&sim, &instance, address, &sum));
        assert_eq!(ended.code, 0, "{ended}\n{}", sim.calls_table());
        assert_eq!(instance.runner_status(), "terminated", "{ended}");
        assert_eq!(machine.sh("stat -c %a%U /usr/local/bin/garm-bootstrap"), "755root\n");
        assert_eq!(machine.sh("stat -c %a%U /run/garm-bootstrap/bootstrap.json"), "600root\n");
        assert_eq!(machine.sh("ls -A /usr/local/bin"), "garm-bootstrap\n");
    }
    assert_eq!(posted(&sim, "idle"), 2, "{}", sim.calls_table());
}

#[test]
fn without_sudo_the_runner_is_started_as_its_user() {
    let binary = binary();
    let sum = sha256(&binary);
    let address = serve(binary);
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let machine = plain_machine();
    machine.sh("rm /etc/sudoers.d/90-cloud-init-users");
    let ended = run(&machine, &sim, &instance, &values(&sim, &instance, address, &sum));
    assert_eq!(ended.code, 0, "{ended}\n{}", sim.calls_table());
    assert_eq!(instance.runner_status(), "terminated", "{ended}");
    let home =
        "cd /home/runner; stat -c %a%U .local/bin/garm-bootstrap .garm-bootstrap/bootstrap.json";
    assert_eq!(machine.sh(home), "755runner\n600runner\n");
}

#[test]
fn a_runner_boots_as_a_unit_where_there_is_systemd() {
    let sim = scripted(RunnerScript::one_job(Duration::ZERO, Duration::from_secs(3)));
    let machine = Container::systemd(Prepared::with_binary);
    prepare(&machine);
    let instance = sim.create(InstanceSpec::default());
    let script = render(Garm::V02, &template(GITHUB), &context(&sim, &instance));
    put(&machine, &script, SCRIPT);
    let said = machine.exec(AS_CLOUD_INIT);
    assert_eq!(said.code, 0, "{said}");
    // What cloud-init does next.
    machine.sh(&format!("rm -f {SCRIPT}"));
    assert!(instance.wait_for_runner_status("active", LONG), "{}", sim.calls_table());
    let unit = "systemctl show garm-runner; cat /run/systemd/transient/garm-runner.service";
    let unit = machine.sh(unit);
    assert!(unit.contains("KillMode=mixed\n"), "{unit}");
    assert!(instance.wait_for_runner_status("terminated", LONG), "{}", sim.calls_table());
    assert_eq!(posted(&sim, "idle"), 1, "{}", sim.calls_table());
    wait_until("the unit has ended", || {
        machine.exec(["systemctl", "is-active", "garm-runner"]).stdout.trim() == "inactive"
    });
    let look = Page::read("docs/garm-template.md").block("template-look-inside");
    let looked = machine.sh(&look);
    assert!(looked.contains("garm-bootstrap") && looked.contains("\"ended\""), "{looked}");
    for secret in instance.secrets() {
        assert!(!unit.contains(&secret) && !looked.contains(&secret), "{unit}{looked}");
    }
}

/// The one `failed` that GARM heard, from a machine that was changed by `change`.
fn failure(values: impl FnOnce(&Sim, &Instance) -> Value, change: &str) -> String {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let machine = plain_machine();
    machine.sh(change);
    let ended = run(&machine, &sim, &instance, &values(&sim, &instance));
    assert_eq!(ended.code, 1, "{ended}");
    assert_eq!(instance.runner_status(), "failed", "{ended}\n{}", sim.calls_table());
    assert_eq!(machine.sh("ls -A /usr/local/bin"), "", "nothing is left behind");
    let told = failures(&sim);
    assert_eq!(told.len(), 1, "{told:?}");
    told.concat()
}

#[test]
fn a_download_that_is_not_to_be_had_is_told_to_garm() {
    let address = nobody();
    let patient = "ln -s /bin/true /usr/local/sbin/sleep";
    let told = failure(|sim, one| values(sim, one, address, "ab"), patient);
    let wanted = format!("garm-bootstrap could not be downloaded from http://{address}/");
    assert!(told.starts_with(&wanted) && told.contains("Failed to connect"), "{told}");
}

#[test]
fn a_wrong_checksum_is_told_to_garm_and_nothing_is_run() {
    let body = b"#!/bin/sh\ntouch /tmp/pwn\n".to_vec();
    let (sum, wrong) = (sha256(&body), "ab".repeat(32));
    let address = serve(body);
    let told = failure(|sim, one| values(sim, one, address, &wrong), "true");
    let wanted = format!(
        "garm-bootstrap from http://{address}/garm-bootstrap has the SHA-256 {sum}, not {wrong}"
    );
    assert_eq!(told, wanted);
}

#[test]
fn wget_is_enough_to_fetch_and_to_tell() {
    let address = serve(b"another file".to_vec());
    let told = failure(|sim, one| values(sim, one, address, "ab"), "rm /usr/bin/curl");
    assert!(told.ends_with("not ab"), "{told}");
}

#[test]
fn an_address_with_quotes_is_told_to_garm_as_it_is() {
    let odd = |sim: &Sim, one: &Instance| {
        let mut values = values(sim, one, nobody(), "ab");
        values["ExtraContext"]["garm_bootstrap_url"] = "htp:\"\\$(touch /tmp/pwn)' %s".into();
        values
    };
    let told = failure(odd, "ln -s /bin/true /usr/local/sbin/sleep");
    assert!(told.contains("from htp:\"\\$(touch /tmp/pwn)' %s: "), "{told}");
}

#[test]
fn a_binary_without_a_checksum_is_not_fetched() {
    let told = failure(|sim, one| values(sim, one, nobody(), ""), "true");
    assert_eq!(told, "the SHA-256 of garm-bootstrap is not given, so it is not downloaded");
}

#[test]
fn a_file_that_does_not_run_here_is_told_to_garm() {
    let body = b"\x7fELF and no more".to_vec();
    let (sum, address) = (sha256(&body), serve(body));
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let machine = plain_machine();
    run(&machine, &sim, &instance, &values(&sim, &instance, address, &sum));
    let told = failures(&sim).concat();
    assert!(told.contains("/usr/local/bin/garm-bootstrap does not run on this machine"), "{told}");
}

#[test]
fn a_gitea_pool_hears_that_its_runners_are_not_booted_yet() {
    let sim = good();
    let instance = sim.create(InstanceSpec::with_token());
    let machine = plain_machine();
    put(&machine, &render(Garm::V02, &template(GITEA), &context(&sim, &instance)), SCRIPT);
    let ended = machine.exec(AS_CLOUD_INIT);
    assert_eq!((ended.code, instance.runner_status().as_str()), (1, "failed"), "{ended}");
    let told = failures(&sim).concat();
    assert!(told.contains("boots no Gitea runners yet"), "{told}");
}

/// A part of a script, from the comment that begins with `mark` to the next such comment, or to the script's end.
fn part(file: &str, mark: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging").join(file);
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().skip_while(|line| !line.trim_start().starts_with(mark));
    let indent = if file.contains(".yaml") { 6 } else { 0 };
    let lines = lines.take_while(|line| {
        let other = line.trim_start().starts_with("# --- ") && !line.contains(mark);
        !other && *line != "runcmd:"
    });
    let text: String =
        lines.map(|line| format!("{}\n", line.get(indent..).unwrap_or(""))).collect();
    text.trim().to_owned()
}

#[test]
fn the_scripts_of_the_packaging_are_the_same_where_they_say_so() {
    let (words, start) = ("# --- The words to GARM", "# --- The binary and its start");
    let all = ["cloud-init/user-data.yaml", "cloud-init/user-data.sh"];
    let github = "garm-template/github-linux.sh.tmpl";
    for mark in [words, start] {
        let wanted = part(github, mark);
        assert!(wanted.lines().count() > 20, "{wanted}");
        for file in all {
            assert_eq!(part(file, mark), wanted, "{file}");
        }
    }
    let gitea = part("garm-template/gitea-linux.sh.tmpl", words);
    assert!(gitea.starts_with(&part(github, words)), "{gitea}");
}
