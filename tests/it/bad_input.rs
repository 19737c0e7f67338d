//! What people get wrong: one clear sentence, the exit code of the table, `failed` where GARM can be
//! told, and nothing half-written.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use garm_sim::{ArchiveSpec, InstanceSpec, Sim, SimOptions};
use serde_json::json;

use crate::support::{Boot, Mounted, failures, garm_calls, good, is_root, one_job, own_all, tree};

struct Row {
    what: &'static str,
    prepare: fn(Boot) -> Boot,
    /// What the sentence must name.
    words: &'static [&'static str],
    /// Whether GARM's address and the token are at hand all the same.
    told: bool,
}

const ROWS: &[Row] = &[
    Row {
        what: "an unknown flag",
        prepare: |boot| boot.flag("metadat-url", "http://x"),
        words: &["'--metadat-url'", "'--metadata-url'"],
        told: true,
    },
    Row {
        what: "a flag for the token",
        prepare: |boot| boot.flag("token", "x"),
        words: &["'--token'"],
        told: true,
    },
    Row {
        what: "an unknown key",
        prepare: |boot| {
            let file = boot.file("c.toml", "user = \"runner\"\nhomme = \"/x\"\n");
            boot.flag("config", file)
        },
        words: &["c.toml", "\"homme\"", "\"home\""],
        told: true,
    },
    Row {
        what: "a secret in the config file",
        prepare: |boot| {
            let file = boot.file("c.toml", "token = \"x\"\n");
            boot.flag("config", file)
        },
        words: &["c.toml", "\"token\"", "\"token-file\""],
        told: true,
    },
    Row {
        what: "a list where one value belongs",
        prepare: |boot| {
            let file = boot.file("c.toml", "user = [\"runner\", \"root\"]\n");
            boot.flag("config", file)
        },
        words: &["c.toml", "\"user\" must be a text"],
        told: true,
    },
    Row {
        what: "a config file that is not TOML",
        prepare: |boot| {
            let file = boot.file("c.toml", "user: runner\n");
            boot.flag("config", file)
        },
        words: &["c.toml", "line 1"],
        told: true,
    },
    Row {
        what: "a config file that is not there",
        prepare: |boot| boot.flag("config", "/nowhere/c.toml"),
        words: &["/nowhere/c.toml", "No such file"],
        told: true,
    },
    Row {
        what: "no metadata URL",
        prepare: |boot| boot.without("METADATA_URL"),
        words: &["metadata-url", "--metadata-url", "METADATA_URL"],
        told: true,
    },
    Row {
        what: "no callback URL",
        prepare: |boot| boot.env("CALLBACK_URL", ""),
        words: &["callback-url", "--callback-url", "CALLBACK_URL"],
        told: false,
    },
    Row {
        what: "no token",
        prepare: |boot| boot.without("BEARER_TOKEN"),
        words: &["token", "--token-file", "BEARER_TOKEN"],
        told: false,
    },
    Row {
        what: "an unreadable token file",
        prepare: |boot| {
            let file = boot.file("secret-token", "x");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o0)).unwrap();
            boot.without("BEARER_TOKEN").flag("token-file", file)
        },
        words: &["/secret-token", "Permission denied"],
        told: false,
    },
    Row {
        what: "an empty token file",
        prepare: |boot| {
            let file = boot.file("secret-token", "\n");
            boot.without("BEARER_TOKEN").flag("token-file", file)
        },
        words: &["/secret-token", "it is empty"],
        told: false,
    },
    Row {
        what: "a token file that is a pipe without a writer",
        prepare: |boot| {
            let pipe = boot.path("pipe");
            nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
            own_all(&pipe);
            boot.without("BEARER_TOKEN").flag("token-file", pipe.to_str().unwrap())
        },
        words: &["/pipe", "did not come to an end within 10 s"],
        told: false,
    },
    Row {
        what: "a token in two lines",
        prepare: |boot| boot.env("BEARER_TOKEN", "first-line\nsecond-line"),
        words: &["$BEARER_TOKEN", "more than one word"],
        told: false,
    },
    Row {
        what: "a token with an invisible character",
        prepare: |boot| boot.env("BEARER_TOKEN", "\u{200b}some-token"),
        words: &["$BEARER_TOKEN", "U+200B", "not a token"],
        told: false,
    },
    Row {
        what: "a bad metadata URL",
        prepare: |boot| boot.env("METADATA_URL", "ftp://garm.example/metadata"),
        words: &["$METADATA_URL", "ftp://garm.example/metadata", "http://"],
        told: true,
    },
    Row {
        what: "a bad callback URL",
        prepare: |boot| boot.flag("callback-url", "garm.example/callbacks"),
        words: &["--callback-url", "garm.example/callbacks", "http://"],
        told: false,
    },
    Row {
        what: "a host that is not written as DNS has it",
        prepare: |boot| boot.env("METADATA_URL", "https://gärm.example/metadata"),
        words: &["$METADATA_URL", "https://gärm.example/metadata", "ASCII", "xn--"],
        told: true,
    },
    Row {
        what: "a bad duration",
        prepare: |boot| boot.flag("deadline", "soon"),
        words: &["--deadline", "\"soon\"", "90s"],
        told: true,
    },
    Row {
        what: "a bad switch",
        prepare: |boot| boot.env("RUNNER_EPHEMERAL", "perhaps"),
        words: &["$RUNNER_EPHEMERAL", "\"perhaps\"", "true or false"],
        told: true,
    },
    Row {
        what: "a bad log level",
        prepare: |boot| boot.flag("log-level", "loud"),
        words: &["--log-level", "\"loud\"", "debug"],
        told: true,
    },
    Row {
        what: "a bad checksum",
        prepare: |boot| boot.flag("runner-sha256", "abc"),
        words: &["--runner-sha256", "\"abc\"", "64 hexadecimal digits"],
        told: true,
    },
    Row {
        what: "a bad proxy",
        prepare: |boot| boot.env("HTTP_PROXY", "http://us er:pw@[bad"),
        words: &["proxy", "not a URL"],
        told: true,
    },
    Row {
        what: "an unknown user",
        prepare: |boot| boot.flag("user", "nobody-of-this-name"),
        words: &["\"nobody-of-this-name\"", "--user"],
        told: true,
    },
    Row {
        what: "another user without being root",
        prepare: |boot| boot.flag("user", "daemon"),
        words: &["\"daemon\"", "only root can change users"],
        told: true,
    },
    Row {
        what: "a bootstrap file that is not there",
        prepare: |boot| boot.flag("bootstrap-file", "/nowhere/bootstrap.json"),
        words: &["/nowhere/bootstrap.json", "No such file"],
        told: true,
    },
    Row {
        what: "a bootstrap file that is not JSON",
        prepare: |boot| {
            let file = boot.file("bootstrap.json", "{\"name\": ");
            boot.flag("bootstrap-file", file)
        },
        words: &["/bootstrap.json", "not GARM's JSON", "line 1"],
        told: true,
    },
    Row {
        what: "a CA file without a certificate",
        prepare: |boot| {
            let file = boot.file("ca.pem", "no certificate\n");
            boot.flag("ca-file", file)
        },
        words: &["/ca.pem", "PEM"],
        told: true,
    },
    Row {
        what: "a state folder that cannot be made",
        prepare: |boot| {
            let file = boot.file("state-file", "");
            boot.flag("state-dir", file.join("state"))
        },
        words: &["/state-file/state", "--state-dir"],
        told: true,
    },
];

#[test]
fn a_bad_setting_is_named_in_one_sentence_and_told_to_garm_where_it_can_be() {
    for row in ROWS {
        let sim = good();
        let instance = sim.create(InstanceSpec::default());
        let ended = (row.prepare)(Boot::of(&instance)).run();
        let story = format!("{}: {}", row.what, ended.story(&sim));
        assert_eq!(ended.code, 2, "{story}");
        for word in row.words {
            assert!(ended.stderr.contains(word), "{word:?} on stderr, {story}");
        }
        let errors = ended.stderr.lines().filter(|line| line.contains("ERROR")).count();
        assert_eq!(errors, 1, "one sentence, {story}");
        let failures = failures(&sim);
        assert_eq!(failures.len(), usize::from(row.told), "failed, {story}");
        assert_eq!(garm_calls(&sim).len(), failures.len(), "and nothing else, {story}");
        for failure in &failures {
            assert!(failure.starts_with("[bad_settings] preflight: failed to "), "{story}");
            for word in row.words {
                assert!(failure.contains(word), "{word:?} in {failure:?}, {story}");
            }
            assert_eq!(instance.runner_status(), "failed", "{story}");
        }
        assert_eq!(ended.beside_home(), [""; 0], "nothing half-written, {story}");
    }
}

#[test]
fn a_bad_setting_beside_a_bootstrap_file_on_stdin_is_told_to_garm() {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let boot = Boot::bare().flag("bootstrap-file", "-").flag("deadline", "soon");
    let ended = boot.run_with_stdin(instance.bootstrap_json());
    ended.expect_failed(&sim, 2, &["--deadline", "\"soon\""]);
}

#[test]
fn a_bad_setting_is_told_to_a_garm_with_a_private_ca() {
    let sim = Sim::start(SimOptions { tls: true, ..SimOptions::default() });
    let instance = sim.create(InstanceSpec::default());
    let boot = Boot::of(&instance).flag("deadline", "soon");
    let ca = boot.file("ca.pem", sim.ca_pem().unwrap());
    let ended = boot.flag("ca-file", ca).run();
    ended.expect_failed(&sim, 2, &["--deadline", "\"soon\""]);
}

#[test]
fn an_unknown_user_is_named_to_root() {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let boot = Boot::of(&instance).as_root().flag("user", "nobody-of-this-name");
    boot.run().expect_failed(&sim, 2, &["\"nobody-of-this-name\"", "/etc/passwd", "--user"]);
}

/// Prepares a home that cannot be one, and says where it is.
type Spoil = fn(&mut Boot, &mut Vec<Mounted>) -> String;

/// Boots into a home that cannot be one.
#[track_caller]
fn spoiled(what: &str, spoil: Spoil, words: &[&str]) {
    let sim = good();
    let instance = sim.create(InstanceSpec::with_token());
    let mut boot = Boot::of(&instance);
    let mut mounted = Vec::new();
    let home = spoil(&mut boot, &mut mounted);
    let before = tree(&boot.path("work"));
    let ended = boot.env("RUNNER_HOME", &home).run();
    println!("{what}");
    let ended = ended.expect_failed(&sim, 20, words).expect_no_runner(&sim);
    assert!(failures(&sim)[0].starts_with("[runner_not_fetched] fetch: failed to "), "{what}");
    assert!(ended.stderr.contains(&home), "{what}: {}", ended.story(&sim));
    let mut after = tree(&ended.dir.path().join("work"));
    after.retain(|path| !path.starts_with("state") && !path.starts_with("run"));
    assert_eq!(after, before, "{what}: nothing half-written\n{}", ended.story(&sim));
}

#[test]
fn a_home_that_is_a_file_is_refused() {
    spoiled(
        "a file",
        |boot, _| {
            fs::write(boot.home(), "a file").unwrap();
            boot.home().display().to_string()
        },
        &["it is not a folder"],
    );
}

#[test]
fn a_home_in_somebody_elses_folder_is_refused() {
    assert!(is_root(), "this test needs root to make a folder of somebody else");
    spoiled(
        "in a folder of root's",
        |boot, _| {
            fs::create_dir(boot.path("work/roots")).unwrap();
            boot.path("work/roots/home").display().to_string()
        },
        &["permission denied", "give the folder to the user"],
    );
    spoiled(
        "a folder of root's in another one",
        |boot, _| {
            fs::create_dir_all(boot.path("work/roots/home")).unwrap();
            boot.path("work/roots/home").display().to_string()
        },
        &["permission denied", "give the folder to the user"],
    );
}

#[test]
fn a_home_on_a_disk_that_is_too_small_is_refused() {
    spoiled(
        "a small volume",
        |boot, mounted| {
            mounted.push(Mounted::tmpfs(&boot.home(), "1m"));
            own_all(&boot.home());
            boot.home().display().to_string()
        },
        &["MB are free", "larger disk"],
    );
    spoiled(
        "on a small disk",
        |boot, mounted| {
            let disk = boot.path("work/disk");
            mounted.push(Mounted::tmpfs(&disk, "1m"));
            own_all(&disk);
            disk.join("home").display().to_string()
        },
        &["MB are free", "larger disk"],
    );
}

/// Where the size of the archive does not tell: it is full of zeros.
#[test]
fn a_disk_that_is_full_in_the_middle_is_said_and_left_as_it_was() {
    let zeros = garm_sim::archive::ExtraEntry::file("externals/zeros", &vec![0; 8 << 20]);
    let archive = ArchiveSpec { extra_entries: vec![zeros], ..ArchiveSpec::scripted(one_job()) };
    let sim = Sim::start(SimOptions { archive, ..SimOptions::default() });
    let instance = sim.create(InstanceSpec::default());
    let boot = Boot::of(&instance);
    let mounted = Mounted::tmpfs(&boot.home(), "6m");
    fs::write(boot.home().join("of-the-volume"), "stays").unwrap();
    own_all(&boot.home());
    let ended = boot.run().expect_failed(&sim, 20, &["the disk is full", "work/home"]);
    assert_eq!(tree(&ended.home()), [Path::new("of-the-volume")], "{}", ended.story(&sim));
    drop(mounted);
}

#[test]
fn a_home_on_a_read_only_disk_is_refused() {
    spoiled(
        "a read-only volume",
        |boot, mounted| {
            let volume = Mounted::tmpfs(&boot.home(), "20m");
            own_all(&boot.home());
            volume.make_read_only();
            mounted.push(volume);
            boot.home().display().to_string()
        },
        &["the file system is read-only", "choose another home"],
    );
    spoiled(
        "on a read-only disk",
        |boot, mounted| {
            let disk = boot.path("work/disk");
            let volume = Mounted::tmpfs(&disk, "20m");
            own_all(&disk);
            volume.make_read_only();
            mounted.push(volume);
            disk.join("home").display().to_string()
        },
        &["the file system is read-only", "choose another home"],
    );
}

#[test]
fn a_token_that_garm_does_not_take_ends_the_boot_within_seconds() {
    let sim = good();
    let expired = InstanceSpec { token_ttl: Duration::ZERO, ..InstanceSpec::default() };
    let fresh = sim.create(InstanceSpec::default());
    let claims = json!({"name": fresh.name(), "exp": 32_503_680_000_u64, "create_attempt": 7});
    let tokens = [
        ("garbage", "garbage".to_owned()),
        ("expired", sim.create(expired).token()),
        ("of another attempt", sim.sign(&claims)),
    ];
    std::thread::scope(|scope| {
        for (what, token) in &tokens {
            let boot = Boot::of(&fresh).env("BEARER_TOKEN", token);
            let sim = &sim;
            scope.spawn(move || {
                let began = Instant::now();
                let ended = boot.run().expect(sim, 11).expect_no_runner(sim);
                assert!(began.elapsed() < Duration::from_secs(15), "{what}");
                let ended = ended.expect_said(sim, "GARM does not know it");
                assert_eq!(ended.beside_home(), [""; 0], "{what}: {}", ended.story(sim));
            });
        }
    });
    assert_eq!(fresh.runner_status(), "pending");
}
