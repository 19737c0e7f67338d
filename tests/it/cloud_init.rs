//! The user data of packaging/cloud-init, in a real boot: systemd, cloud-init with its NoCloud source, and our binary.

mod page;

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use garm_sim::{Instance, InstanceSpec, Sim, SimOptions};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::support::after::posted;
use crate::support::page::Page;
use crate::support::podman::{Container, Prepared, SYSTEMD};
use crate::support::web::serve;
use crate::support::{LONG, both_kinds, good, static_binary, wait_until};

const YAML: &str = "user-data.yaml";
const SCRIPT: &str = "user-data.sh";
/// What EC2 takes as user data.
const EC2_LIMIT: usize = 16 * 1024;
/// The file that the user data leaves on the machine.
const BOOTSTRAP: &str = "/run/garm-bootstrap.json";

fn packaged(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/cloud-init").join(file)
}

/// The file of the packaging with `bootstrap` in the place of the JSON that stands in it.
fn user_data(file: &str, bootstrap: &Value) -> String {
    let text = fs::read_to_string(packaged(file)).unwrap();
    let indent = if file == YAML { "      " } else { "" };
    let (before, rest) = text.split_once(&format!("\n{indent}{{\n")).unwrap();
    let (_, after) = rest.split_once(&format!("\n{indent}}}\n")).unwrap();
    format!("{before}\n{indent}{bootstrap}\n{after}")
}

/// What GARM gives the provider; the pool says where the binary is.
fn bootstrap(instance: &Instance) -> Value {
    let binary = fs::read(static_binary()).unwrap();
    let sum = format!("{:x}", Sha256::digest(&binary));
    let mut bootstrap: Value = serde_json::from_str(&instance.bootstrap_json()).unwrap();
    bootstrap["extra_specs"]["extra_context"] = json!({
        "garm_bootstrap_url": format!("http://{}/garm-bootstrap?a=1&b=2", serve(binary)),
        "garm_bootstrap_sha256": sum,
    });
    bootstrap
}

/// A machine that has booted with this user data, and the folder with it.
fn booted(user_data: &[u8], prepare: impl FnOnce(Prepared) -> Prepared) -> (Container, TempDir) {
    let seed = TempDir::new().unwrap();
    fs::write(seed.path().join("user-data"), user_data).unwrap();
    fs::write(seed.path().join("meta-data"), "instance-id: i-1\nlocal-hostname: runner-1\n")
        .unwrap();
    let source = seed.path().join("99-nocloud.cfg");
    // The smallest Debian has no locales, which cloud-init would count as an error.
    fs::write(&source, "datasource_list: [ NoCloud, None ]\nlocale: false\n").unwrap();
    let machine = Container::systemd(|prepared| {
        prepare(prepared)
            .volume(seed.path(), "/var/lib/cloud/seed/nocloud")
            .file(source, "/etc/cloud/cloud.cfg.d/99-nocloud.cfg")
    });
    machine.exec(["cloud-init", "status", "--wait", "--long"]).expect_ok("cloud-init");
    (machine, seed)
}

fn story(sim: &Sim, machine: &Container) -> String {
    let log = "tail -n 60 /var/log/cloud-init-output.log; journalctl -u garm-runner --no-pager";
    format!("{}\n{}", machine.exec(["sh", "-c", log]), sim.calls_table())
}

#[track_caller]
fn assert_had_its_job(sim: &Sim, instance: &Instance, machine: &Container) {
    let ended = instance.wait_for_runner_status("terminated", LONG);
    assert!(ended, "{}", story(sim, machine));
    assert_eq!(posted(sim, "idle"), 1, "{}", story(sim, machine));
    wait_until("the unit has ended", || {
        machine.exec(["systemctl", "is-active", "garm-runner"]).stdout.trim() == "inactive"
    });
}

#[test]
fn a_cloud_config_boots_a_runner_which_has_its_job_and_no_second_one_after_a_reboot() {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let data = user_data(YAML, &bootstrap(&instance));
    // As the page has it for EC2.
    let (machine, _seed) = booted(&packed(&data), |prepared| prepared);
    assert_had_its_job(&sim, &instance, &machine);
    assert_eq!(machine.sh("stat -c %a%U /usr/local/bin/garm-bootstrap"), "755root\n");
    assert_eq!(machine.sh(&format!("stat -c %a%U {BOOTSTRAP}")), "600root\n");
    assert_tells_no_secret(&instance, &machine);
    let looked = machine.sh(&Page::read("docs/cloud-init.md").block("cloud-init-look"));
    assert!(looked.contains("status: done") && looked.contains("\"ended\""), "{looked}");

    let calls = sim.calls().len();
    machine.stop(Duration::from_secs(20));
    machine.start_again().wait_for_systemd();
    machine.exec(["cloud-init", "status", "--wait"]).expect_ok("cloud-init");
    assert_eq!(
        machine.sh("uptime -s >/dev/null; ls /run/cloud-init/status.json"),
        "/run/cloud-init/status.json\n"
    );
    assert_eq!(sim.calls().len(), calls, "{}", story(&sim, &machine));
    // Even if somebody starts it by hand, with what GARM gave.
    let by_hand = format!(
        "umask 077; printf '%s' \"$1\" > {BOOTSTRAP}; garm-bootstrap run --bootstrap-file {BOOTSTRAP}"
    );
    let again = machine.exec(["sh", "-c", &by_hand, "sh", &instance.bootstrap_json()]);
    assert_eq!(again.code, 41, "{again}");
    assert_eq!(sim.calls().len(), calls, "{}", story(&sim, &machine));
}

/// Nothing secret in what cloud-init prints and logs, nor anywhere where a job could read it.
#[track_caller]
fn assert_tells_no_secret(instance: &Instance, machine: &Container) {
    let logs = machine.sh("cat /var/log/cloud-init*.log; journalctl --no-pager");
    for secret in instance.secrets() {
        assert!(!logs.contains(&secret), "{logs}");
    }
    let token = instance.token();
    let search =
        "grep -rlsF -e \"$1\" /etc /home /opt /root /run /tmp /usr/local /var 2>/dev/null; true";
    let words = ["sh", "-c", search, "sh", token.as_str()];
    // That it would be found: root sees what cloud-init keeps.
    let by_root = machine.exec(words).stdout;
    assert!(by_root.contains("/var/lib/cloud/instances/"), "{by_root}");
    let mut readable = machine.exec_as("runner", words).stdout;
    // The seed is the test's own, in the place of a metadata service.
    readable = readable.lines().filter(|line| !line.contains("/seed/nocloud/")).collect();
    assert_eq!(readable, "");
}

#[test]
fn a_script_as_user_data_boots_a_runner_with_the_binary_of_the_image() {
    for (_, spec) in both_kinds() {
        let sim = good();
        let instance = sim.create(spec);
        let given = serde_json::from_str(&instance.bootstrap_json()).unwrap();
        let (machine, _seed) = booted(user_data(SCRIPT, &given).as_bytes(), |prepared| {
            // The image has the account that the script expects.
            let image = TempDir::new().unwrap();
            fs::write(image.path().join("runner.conf"), "u runner - - /home/runner /bin/bash\n")
                .unwrap();
            prepared
                .with_binary()
                .file(image.keep().join("runner.conf"), "/usr/lib/sysusers.d/runner.conf")
        });
        assert_had_its_job(&sim, &instance, &machine);
        assert_tells_no_secret(&instance, &machine);
    }
}

/// What GARM hears of a cloud-config's script on a machine without the binary.
fn told_without_binary(options: SimOptions) -> String {
    let sim = Sim::start(options);
    let instance = sim.create(InstanceSpec::default());
    let given = serde_json::from_str(&instance.bootstrap_json()).unwrap();
    let script = inner_script(&user_data(YAML, &given));
    let machine = Prepared::of(SYSTEMD).command(["sleep", "60"]).start();
    let run = format!("printf '%s' \"$1\" > {BOOTSTRAP}; printf '%s' \"$2\" | sh");
    let ended = machine.exec(["sh", "-c", &run, "sh", &given.to_string(), &script]);
    let story = format!("{ended}\n{}", sim.calls_table());
    assert_eq!((ended.code, instance.runner_status().as_str()), (1, "failed"), "{story}");
    assert_eq!(machine.sh("ls /run | grep garm"), "garm-bootstrap.json\n");
    instance.messages().pop().unwrap().message
}

#[test]
fn a_cloud_config_without_the_binary_tells_garm_why_there_is_no_runner() {
    let told = told_without_binary(SimOptions::default());
    assert_eq!(told, "garm-bootstrap is not in the image, and no URL of it is given");
}

#[test]
fn a_garm_with_an_authority_that_only_its_json_tells_hears_of_a_failure_too() {
    let told = told_without_binary(SimOptions { tls: true, ..SimOptions::default() });
    assert_eq!(told, "garm-bootstrap is not in the image, and no URL of it is given");
}

/// The script that a cloud-config writes.
fn inner_script(data: &str) -> String {
    let lines = data.lines().skip_while(|line| line.trim() != "#!/bin/sh");
    let lines = lines.take_while(|line| *line != "runcmd:");
    lines.map(|line| format!("{}\n", line.get(6..).unwrap_or(""))).collect()
}

#[test]
fn cloud_init_knows_every_key_of_the_cloud_config() {
    let machine = Prepared::of(SYSTEMD)
        .file(packaged(YAML), "/user-data.yaml")
        .command(["sleep", "60"])
        .start();
    let said = machine.exec(["cloud-init", "schema", "--config-file", "/user-data.yaml"]);
    assert_eq!(said.code, 0, "{said}");
    assert!(said.stdout.contains("Valid"), "{said}");
    machine
        .sh("sed -i 's/^runcmd:/runcmds:/; s/lock_passwd: true/lock_passwd: [1]/' /user-data.yaml");
    let said = machine.exec(["cloud-init", "schema", "--config-file", "/user-data.yaml"]);
    assert_ne!(said.code, 0, "{said}");
}

#[test]
fn user_data_fits_into_what_ec2_takes_with_three_authorities_in_it() {
    let sim = good();
    let instance = sim.create(InstanceSpec::with_token());
    let mut all = bootstrap(&instance);
    // Three certificates of 4096 bits, which nothing makes smaller, as PEM and then in the base64 of GARM's JSON.
    let random = fs::File::open("/dev/urandom").unwrap();
    let mut key = Vec::new();
    random.take(3 * 1400).read_to_end(&mut key).unwrap();
    all["ca-cert-bundle"] = STANDARD.encode(STANDARD.encode(key)).into();
    // GARM 0.2 puts its wrapper in, and the addresses of eight downloads.
    all["extra_specs"]["runner_install_template"] = STANDARD.encode("x".repeat(2300)).into();
    let mut enough = all.clone();
    for not_needed in ["tools", "extra_specs", "user_data_options"] {
        enough.as_object_mut().unwrap().remove(not_needed);
    }
    for file in [YAML, SCRIPT] {
        let plain = user_data(file, &enough).len();
        let packed = packed(&user_data(file, &all)).len();
        println!("{file}: {plain} bytes of {EC2_LIMIT}, {packed} packed with all");
        assert!(plain < EC2_LIMIT && packed < EC2_LIMIT * 3 / 4, "{file}: {plain}, {packed}");
    }
}

/// As `gzip` makes it smaller.
fn packed(text: &str) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    let made = Command::new("gzip").arg("-9c").arg(file.path()).output().unwrap();
    assert!(made.status.success());
    made.stdout
}
