//! The packages, installed where people install them.
//!
//! `cargo xtask packages` makes them, and `cargo xtask test` before the tests.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use garm_sim::InstanceSpec;

use crate::support::podman::{Container, finish};
use crate::support::{good, static_binary, wait_until};

const UNIT: &str = "/usr/lib/systemd/system/garm-bootstrap.service";
const CONFIG: &str = "/etc/garm-bootstrap/config.toml";
/// What both bring, beside the program, its unit and its settings.
const BROUGHT: [&str; 11] = [
    "/usr/bin/garm-bootstrap",
    UNIT,
    CONFIG,
    "/usr/share/bash-completion/completions/garm-bootstrap",
    "/usr/share/doc/garm-bootstrap/changelog.gz",
    "/usr/share/doc/garm-bootstrap/copyright",
    "/usr/share/fish/vendor_completions.d/garm-bootstrap.fish",
    "/usr/share/man/man1/garm-bootstrap-report.1.gz",
    "/usr/share/man/man1/garm-bootstrap-run.1.gz",
    "/usr/share/man/man1/garm-bootstrap.1.gz",
    "/usr/share/zsh/vendor-completions/_garm-bootstrap",
];

fn package(extension: &str) -> PathBuf {
    let dist = static_binary().parent().unwrap().to_owned();
    let start = format!("garm-bootstrap{}{}", if extension == "deb" { "_" } else { "-" }, VERSION);
    let named = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with(&start) && path.extension().is_some_and(|ext| ext == extension)
    };
    let mut found = fs::read_dir(&dist).unwrap().map(|entry| entry.unwrap().path());
    found.find(named).unwrap_or_else(|| {
        panic!("no .{extension} in {}: run `cargo xtask packages` first", dist.display())
    })
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn read(program: &str, args: &[&str], file: &PathBuf) -> String {
    let output = finish(Command::new(program).args(args).arg(file), Duration::from_secs(30));
    output.expect_ok(program)
}

/// A machine with the package at hand, and nothing of it installed.
fn machine() -> Container {
    Container::systemd(|prepared| prepared.file(package("deb"), "/garm-bootstrap.deb"))
}

fn apt(machine: &Container, what: &str) -> String {
    machine.sh(&format!("DEBIAN_FRONTEND=noninteractive apt-get -y {what} 2>&1"))
}

/// Whether the unit is enabled, and whether it runs.
fn unit(machine: &Container) -> (String, String) {
    let ask = |what| machine.sh(&format!("systemctl {what} garm-bootstrap || :")).trim().to_owned();
    (ask("is-enabled"), ask("is-active"))
}

#[test]
fn the_deb_says_what_it_is_and_brings_what_it_must() {
    let deb = package("deb");
    for (field, expected) in
        [("Package", "garm-bootstrap"), ("Version", VERSION), ("Recommends", "ca-certificates")]
    {
        let said = finish(
            Command::new("dpkg-deb").arg("-f").arg(&deb).arg(field),
            Duration::from_secs(30),
        );
        assert_eq!(said.expect_ok("dpkg-deb").trim(), expected, "{field}");
    }
    let listed = read("dpkg-deb", &["-c"], &deb);
    for path in BROUGHT {
        assert!(listed.contains(&format!(" .{path}\n")), "{path}\n{listed}");
    }
    assert!(listed.lines().all(|line| line.contains(" root/root ")), "{listed}");
    let executable: Vec<&str> = listed.lines().filter(|l| l.starts_with("-rwxr-xr-x")).collect();
    assert_eq!(executable.len(), 1, "{executable:?}");
    let info = read("dpkg-deb", &["-I"], &deb);
    for member in ["conffiles", "md5sums", "postinst", "postrm", "prerm"] {
        assert!(info.contains(member), "{member}\n{info}");
    }
}

#[test]
fn the_rpm_says_what_it_is_and_brings_what_it_must() {
    let rpm = package("rpm");
    let query = |args: &[&str]| read("rpm", args, &rpm);
    assert_eq!(query(&["-qp", "--qf", "%{name} %{version} %{license}"]), {
        format!("garm-bootstrap {VERSION} Apache-2.0")
    });
    let listed = query(&["-qpl"]);
    for path in BROUGHT {
        assert!(listed.lines().any(|line| line == path), "{path}\n{listed}");
    }
    assert_eq!(query(&["-qpc"]).trim(), CONFIG, "the settings are kept at an update");
    let modes = query(&["-qp", "--qf", "[%{filemodes:perms} %{fileusername} %{filenames}\\n]"]);
    let program = "-rwxr-xr-x root /usr/bin/garm-bootstrap\n";
    assert!(modes.contains(program), "{modes}");
    assert_eq!(modes.matches("-rwxr-xr-x").count(), 1, "{modes}");
    let scripts = query(&["-qp", "--scripts"]);
    for words in ["postinstall", "preuninstall", "systemctl --no-reload disable"] {
        assert!(scripts.contains(words), "{words}\n{scripts}");
    }
    let checked = query(&["-K", "--nosignature"]);
    assert!(checked.contains("digests OK"), "{checked}");

    let dir = tempfile::tempdir().unwrap();
    let script = "rpm2cpio \"$1\" | cpio -idm --quiet && ./usr/bin/garm-bootstrap --version";
    let mut unpack = Command::new("sh");
    unpack.current_dir(dir.path()).args(["-ec", script, "sh"]).arg(&rpm);
    let said = finish(&mut unpack, Duration::from_secs(30)).expect_ok("rpm2cpio");
    assert_eq!(said.trim(), format!("garm-bootstrap {VERSION}"));
}

#[test]
fn apt_installs_it_and_starts_nothing_and_a_purge_leaves_nothing() {
    let machine = machine();
    apt(&machine, "install /garm-bootstrap.deb");
    let said = machine.sh("garm-bootstrap --version");
    assert_eq!(said.trim(), format!("garm-bootstrap {VERSION}"));
    assert_eq!(machine.sh("dpkg -V garm-bootstrap"), "", "every file is as it was packed");
    assert_eq!(unit(&machine), ("disabled".into(), "inactive".into()));
    machine.sh(&format!("systemd-analyze verify {UNIT} && bash -n {}", BROUGHT[3]));
    // The settings can be read by anybody, for anybody's boot reads them.
    let check = machine.exec_as("nobody", ["garm-bootstrap", "check"]);
    assert_eq!(check.code, 2, "{check}");
    assert!(check.stdout.contains("failed to find the setting metadata-url"), "{check}");

    machine.sh("systemctl enable garm-bootstrap 2>&1");
    machine.sh(&format!("echo 'name = \"mine\"' >> {CONFIG}; mkdir -p /var/lib/garm-bootstrap"));
    machine.sh("echo token > /etc/garm-bootstrap/token; touch /var/lib/garm-bootstrap/lock");
    apt(&machine, "install --reinstall /garm-bootstrap.deb");
    assert_eq!(machine.sh(&format!("tail -n 1 {CONFIG}")), "name = \"mine\"\n");
    assert_eq!(unit(&machine).0, "enabled", "an update leaves the unit as a person wants it");

    apt(&machine, "remove garm-bootstrap");
    let there = |path: &str| machine.exec(["test", "-e", path]).code == 0;
    assert!(!there("/usr/bin/garm-bootstrap") && !there(UNIT));
    assert!(there(CONFIG) && there("/etc/garm-bootstrap/token"), "a removal keeps the settings");
    let wanted = "/etc/systemd/system/multi-user.target.wants/garm-bootstrap.service";
    assert_eq!(machine.exec(["test", "-L", wanted]).code, 1, "no link leads nowhere");

    apt(&machine, "purge garm-bootstrap");
    for path in ["/etc/garm-bootstrap", "/var/lib/garm-bootstrap"] {
        assert!(!there(path), "{path}");
    }
}

#[test]
fn the_packaged_unit_boots_a_runner_from_the_packaged_settings() {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let machine = machine();
    apt(&machine, "install /garm-bootstrap.deb");
    let settings = format!(
        "metadata-url = \"{}\"\ncallback-url = \"{}\"\n",
        sim.metadata_url(),
        sim.callback_url()
    );
    machine.sh(&format!("cat >> {CONFIG} <<'END'\n{settings}END"));
    machine.sh(&format!(
        "(umask 077; echo '{}' > /etc/garm-bootstrap/token); useradd -m runner; \
         systemctl start --no-block garm-bootstrap",
        instance.token()
    ));
    wait_until("the runner has had its job", || instance.runner_status() == "terminated");
}
