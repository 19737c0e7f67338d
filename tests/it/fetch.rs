//! How the runner comes to its home, and what must never come with it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use garm_sim::archive::{EntryKind, ExtraEntry, ListenerFile, build, write_tree};
use garm_sim::{
    ArchiveSpec, Authorization, Call, Checksum, Endpoint, Fault, FaultKind, InstanceSpec, Sim,
    SimOptions,
};

use crate::support::{
    Boot, Ended, LONG, Mounted, Who, assert_owned, calls_to, good, mode, one_job, own_all, read,
    tree,
};
fn sim_of(archive: ArchiveSpec) -> Sim {
    Sim::start(SimOptions { archive, ..SimOptions::default() })
}

fn archive() -> ArchiveSpec {
    ArchiveSpec::scripted(one_job())
}

fn spec() -> InstanceSpec {
    InstanceSpec::default()
}

fn downloads(sim: &Sim) -> Vec<Call> {
    calls_to(sim, Endpoint::Download)
}

/// Asserts that the home is not there, and nothing beside it.
#[track_caller]
fn assert_nothing_left(ended: &Ended, sim: &Sim) {
    assert_eq!(ended.beside_home(), [""; 0], "{}", ended.story(sim));
}

#[test]
fn a_checksum_is_held_to_whatever_its_letters() {
    for sha256 in [Checksum::Good, Checksum::UpperCase] {
        let sim = good();
        let instance = sim.create(InstanceSpec { sha256, ..spec() });
        let ended = Boot::of(&instance).run().expect_job(&sim);
        assert!(!ended.stderr.contains("cannot be verified"), "{}", ended.story(&sim));
    }
}

#[test]
fn a_wrong_checksum_is_fatal_wherever_it_was_given() {
    let wrong = "0123456789abcdef".repeat(4);
    for by_flag in [false, true] {
        let sim = good();
        let sha256 = if by_flag { Checksum::Good } else { Checksum::Wrong };
        let instance = sim.create(InstanceSpec { sha256, ..spec() });
        let mut boot = Boot::of(&instance);
        if by_flag {
            boot = boot.flag("runner-sha256", &wrong);
        }
        let words = ["sha256", &sim.archive_sha256(), &wrong];
        let ended = boot.run().expect_failed(&sim, 20, &words).expect_no_runner(&sim);
        assert_eq!(downloads(&sim).len(), 1, "{}", ended.story(&sim));
        assert_nothing_left(&ended, &sim);
    }
}

#[test]
fn a_missing_checksum_is_said() {
    let sim = good();
    let instance = sim.create(InstanceSpec { sha256: Checksum::Missing, ..spec() });
    let ended = Boot::of(&instance).run().expect_job(&sim);
    ended.expect_said(&sim, "nobody gave a checksum for the runner");
}

#[test]
fn the_download_token_goes_to_the_download_host_alone_and_garms_token_never() {
    for redirected in [false, true] {
        let sim = good();
        let token = "DOWNLOADTOKEN0123456789".to_owned();
        let instance = sim.create(InstanceSpec { temp_download_token: Some(token), ..spec() });
        if redirected {
            let to = FaultKind::RedirectTo(sim.mirror_url());
            sim.fault(Fault::new(Endpoint::Download).once().kind(to));
        }
        let ended = Boot::of(&instance).run().expect_job(&sim);
        let seen: Vec<Authorization> =
            downloads(&sim).into_iter().map(|call| call.authorization).collect();
        let mut right = vec![Authorization::DownloadToken];
        if redirected {
            right.push(Authorization::None);
        }
        assert_eq!(seen, right, "{}", ended.story(&sim));
        for call in sim.calls() {
            let download = call.endpoint == Endpoint::Download;
            assert!(
                download || call.authorization != Authorization::DownloadToken,
                "{}",
                call.row()
            );
        }
    }
}

#[test]
fn what_is_no_archive_is_told_apart() {
    let rows: [(FaultKind, &[&str]); 4] = [
        (FaultKind::answer(404, "Not Found"), &["404 Not Found", "/downloads/"]),
        (FaultKind::CaptivePortal, &["not a gzip archive", "HTML"]),
        (FaultKind::Body(b"Not Found".to_vec()), &["not a gzip archive", "Not Found"]),
        (FaultKind::FlipByte(100_000), &["archive"]),
    ];
    for (kind, words) in rows {
        let sim = good();
        let instance = sim.create(InstanceSpec { sha256: Checksum::Missing, ..spec() });
        println!("{kind:?}");
        sim.fault(Fault::new(Endpoint::Download).always().kind(kind));
        let ended = Boot::of(&instance).run().expect_failed(&sim, 20, words);
        let ended = ended.expect_no_runner(&sim);
        assert_eq!(downloads(&sim).len(), 1, "{}", ended.story(&sim));
        assert_nothing_left(&ended, &sim);
    }
}

/// The rest of the same archive is asked for, and the unpacker does not even notice.
#[test]
fn a_cut_in_the_middle_is_mended_with_a_range() {
    for kind in [FaultKind::CloseAfter(300_000), FaultKind::ResetAfter(300_000)] {
        let sim = good();
        let instance = sim.create(spec());
        sim.fault(Fault::new(Endpoint::Download).once().kind(kind));
        let ended = Boot::of(&instance).run().expect_job(&sim);
        let calls = downloads(&sim);
        let answers: Vec<_> = calls.iter().map(|call| call.status).collect();
        assert_eq!(answers, [Some(200), Some(206)], "{}", ended.story(&sim));
        let range = calls[1].header("range").unwrap();
        assert!(range.starts_with("bytes=") && range.ends_with('-'), "{range}");
        assert!(calls[1].header("if-range").is_some());
    }
}

#[test]
fn a_cut_in_the_middle_without_ranges_starts_again() {
    let options = SimOptions { archive: archive(), ranges: false, ..SimOptions::default() };
    let sim = Sim::start(options);
    let instance = sim.create(spec());
    sim.fault(Fault::new(Endpoint::Download).once().kind(FaultKind::CloseAfter(300_000)));
    let ended = Boot::of(&instance).run().expect_job(&sim);
    let calls = downloads(&sim);
    assert!(calls.iter().all(|call| call.status == Some(200)), "{}", ended.story(&sim));
    assert!(calls.last().unwrap().header("range").is_none(), "{}", ended.story(&sim));
    assert_eq!(ended.beside_home(), ["home"], "{}", ended.story(&sim));
}

#[test]
fn a_short_body_and_then_a_good_one_is_an_archive() {
    let sim = good();
    let instance = sim.create(spec());
    // Declares more than it has.
    let short = FaultKind::WrongLength(50_000_000);
    sim.fault(Fault::new(Endpoint::Download).once().kind(short));
    let ended = Boot::of(&instance).run().expect_job(&sim);
    assert!(downloads(&sim).len() >= 2, "{}", ended.story(&sim));
}

/// Nothing of a hostile archive comes to lie outside of the home, nor in it.
#[test]
fn a_hostile_archive_is_refused_whole() {
    let victim = tempfile::tempdir_in("/tmp").unwrap();
    fs::write(victim.path().join("shadow"), "untouched").unwrap();
    own_all(victim.path());
    let out = victim.path().display().to_string();
    let link_out = || ExtraEntry::symlink("escape", &out);
    let file = |path: &str| ExtraEntry::file(path, b"pwned");
    let rows: Vec<(&str, Vec<ExtraEntry>, &str)> = vec![
        ("an absolute path", vec![file(&format!("{out}/absolute"))], "its path is absolute"),
        ("a climbing path", vec![file("../climbed")], "climbs out"),
        ("a path that climbs later", vec![file("bin/../../climbed")], "climbs out"),
        ("a link to elsewhere", vec![link_out()], "link to an absolute path"),
        (
            "a file through a link",
            vec![link_out(), file("escape/through")],
            "link to an absolute path",
        ),
        ("a link that climbs", vec![ExtraEntry::symlink("up", "../../x")], "leads out"),
        (
            "a file through a link inside",
            vec![ExtraEntry::symlink("inside", "bin"), file("inside/x")],
            "through a symbolic link",
        ),
        (
            "a hard link",
            vec![ExtraEntry::new("hard", 0o644, EntryKind::Hardlink(format!("{out}/shadow")))],
            "hard link",
        ),
        ("a device", vec![ExtraEntry::new("dev", 0o666, EntryKind::CharDevice(1, 3))], "device"),
        ("a pipe", vec![ExtraEntry::new("pipe", 0o666, EntryKind::Fifo)], "named pipe"),
        (
            "a setuid program",
            vec![ExtraEntry::new("su", 0o4755, EntryKind::File(b"#!/bin/sh\n".to_vec()))],
            "setuid",
        ),
    ];
    for (what, extra_entries, words) in rows {
        let sim = sim_of(ArchiveSpec { extra_entries, ..archive() });
        let instance = sim.create(InstanceSpec { sha256: Checksum::Missing, ..spec() });
        println!("{what}");
        let ended = Boot::of(&instance).as_root().run();
        let ended = ended.expect_failed(&sim, 20, &[words]).expect_no_runner(&sim);
        assert_nothing_left(&ended, &sim);
        assert_eq!(tree(victim.path()), [Path::new("shadow")], "{what}");
        assert_eq!(read(&victim.path().join("shadow")), "untouched", "{what}");
        assert!(!ended.dir.path().join("climbed").exists(), "{what}");
    }
}

#[test]
fn an_archive_without_a_listener_or_for_another_machine_is_refused() {
    let foreign = if cfg!(target_arch = "x86_64") { "arm64" } else { "x64" };
    let host = if cfg!(target_arch = "x86_64") { "x64" } else { "arm64" };
    let loader = garm_sim::archive::elf::executable_with_loader("/no/such/loader.so");
    let rows: [(&str, ArchiveSpec, Vec<&str>); 5] = [
        (
            "another machine",
            ArchiveSpec { listener: ListenerFile::ForeignArch, ..archive() },
            vec![foreign, host],
        ),
        (
            "no loader",
            ArchiveSpec { listener: ListenerFile::Bytes(loader), ..archive() },
            vec!["/no/such/loader.so"],
        ),
        (
            "an empty Listener",
            ArchiveSpec { listener: ListenerFile::Empty, ..archive() },
            vec!["empty bin/Runner.Listener"],
        ),
        (
            "one that cannot be executed",
            ArchiveSpec { listener: ListenerFile::NotExecutable, ..archive() },
            vec!["not executable"],
        ),
        (
            "a folder around all",
            ArchiveSpec { top_folder: Some("actions-runner".into()), ..archive() },
            vec!["has no bin/Runner.Listener"],
        ),
    ];
    for (what, archive, words) in rows {
        let sim = sim_of(archive);
        let instance = sim.create(spec());
        println!("{what}");
        let ended = Boot::of(&instance).run().expect_failed(&sim, 20, &words);
        assert_nothing_left(&ended.expect_no_runner(&sim), &sim);
    }
}

#[test]
fn a_runner_in_the_home_is_used_as_it_is() {
    for who in [Who::Root, Who::Plain] {
        let sim = good();
        let instance = sim.create(InstanceSpec::with_token());
        let boot = Boot::of(&instance).who(who);
        let home = boot.home();
        let ended = boot.unpack(&sim, &home).run().expect_job(&sim);
        assert!(downloads(&sim).is_empty(), "{}", ended.story(&sim));
    }
}

#[test]
fn a_runner_in_the_assets_is_copied_and_they_are_left_alone() {
    for who in [Who::Root, Who::Plain] {
        let sim = good();
        let instance = sim.create(spec());
        let boot = Boot::of(&instance).who(who);
        let assets = boot.path("assets");
        let boot = boot.unpack(&sim, &assets).env("RUNNER_ASSETS_DIR", assets.to_str().unwrap());
        // An image that was made from a runner that ran.
        fs::write(assets.join(".runner"), "{\"agentId\": 1}").unwrap();
        let before = tree(&assets);
        let ended = boot.run().expect_job(&sim);
        assert!(downloads(&sim).is_empty(), "{}", ended.story(&sim));
        assert_eq!(tree(&assets), before, "{}", ended.story(&sim));
        assert_owned(&ended.home());
        assert_eq!(mode(&ended.home().join("bin/Runner.Listener")), 0o755);
    }
}

#[test]
fn a_home_without_a_usable_runner_gets_one() {
    let rows: [(&str, fn(&Path), &str); 8] = [
        ("an empty folder", |_| (), "is an empty folder"),
        (
            "half a runner",
            |home| fs::remove_file(home.join("config.sh")).unwrap(),
            "has no config.sh",
        ),
        (
            "an empty Listener",
            |home| fs::write(home.join("bin/Runner.Listener"), "").unwrap(),
            "an empty bin/Runner.Listener",
        ),
        (
            "a Listener that cannot be executed",
            |home| {
                let path = home.join("bin/Runner.Listener");
                fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
            },
            "not executable",
        ),
        (
            "an empty library",
            |home| fs::write(home.join("bin/libcoreclr.so"), "").unwrap(),
            "an empty bin/libcoreclr.so",
        ),
        (
            "a home that was left half done",
            |home| fs::create_dir(home.join(".garm-bootstrap.partial-1")).unwrap(),
            "half done",
        ),
        ("a damaged Listener", damage, "damaged"),
        ("one for another machine", |_| (), "runner on an"),
    ];
    for (what, spoil, words) in rows {
        let sim = good();
        let instance = sim.create(spec());
        let boot = Boot::of(&instance);
        let home = boot.home();
        fs::create_dir(&home).unwrap();
        if what == "one for another machine" {
            let foreign = ArchiveSpec { listener: ListenerFile::ForeignArch, ..archive() };
            write_tree(&foreign, &home).unwrap();
        } else if what != "an empty folder" {
            sim.unpack_runner(&home).unwrap();
        }
        if what != "an empty folder" {
            fs::write(home.join("of-the-user"), "stays").unwrap();
        }
        spoil(&home);
        own_all(&home);
        println!("{what}");
        let ended = boot.run().expect_job(&sim).expect_said(&sim, words);
        assert_eq!(downloads(&sim).len(), 1, "{}", ended.story(&sim));
        if what != "an empty folder" {
            assert_eq!(read(&ended.home().join("of-the-user")), "stays", "{what}");
        }
        assert_eq!(ended.beside_home(), ["home"], "{what}");
        let left = tree(&ended.home());
        assert!(
            left.iter().all(|path| !path.display().to_string().contains("partial")),
            "{left:?}"
        );
        assert_owned(&ended.home());
    }
}

/// Keeps the magic and half of the header.
fn damage(home: &Path) {
    let path = home.join("bin/Runner.Listener");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..30]).unwrap();
}

#[test]
fn a_home_that_is_a_volume_keeps_what_else_is_on_it() {
    for who in [Who::Root, Who::Plain] {
        let sim = good();
        let instance = sim.create(InstanceSpec::with_token());
        let boot = Boot::of(&instance).who(who);
        let mounted = Mounted::tmpfs(&boot.home(), "40m");
        fs::create_dir(boot.home().join("_work")).unwrap();
        fs::write(boot.home().join("_work/cache"), "stays").unwrap();
        fs::write(boot.home().join("lost+found"), "stays").unwrap();
        own_all(&boot.home());
        let ended = boot.run().expect_job(&sim);
        for path in ["_work/cache", "lost+found"] {
            assert_eq!(read(&ended.home().join(path)), "stays", "{}", ended.story(&sim));
        }
        assert_owned(&ended.home());
        let partial = |path: &PathBuf| path.display().to_string().contains("partial");
        assert!(!tree(&ended.home()).iter().any(partial), "{}", ended.story(&sim));
        drop(mounted);
    }
}

#[test]
fn what_a_dead_run_left_is_removed() {
    let sim = good();
    for has_runner in [false, true] {
        let instance = sim.create(spec());
        let mut boot = Boot::of(&instance);
        let stale = boot.path("work/.home.partial-4711");
        fs::create_dir_all(stale.join("bin")).unwrap();
        fs::write(stale.join("bin/half"), "half").unwrap();
        if has_runner {
            let home = boot.home();
            boot = boot.unpack(&sim, &home);
        }
        own_all(&stale);
        let ended = boot.run().expect(&sim, 0);
        assert_eq!(ended.beside_home(), ["home"], "{}", ended.story(&sim));
    }
}

#[test]
fn the_archive_is_never_on_disk() {
    let sim = good();
    let instance = sim.create(spec());
    let slow = FaultKind::SlowBody { bytes_per_sec: 400_000 };
    sim.fault(Fault::new(Endpoint::Download).once().kind(slow));
    let boot = Boot::of(&instance);
    let work = boot.path("work");
    let running = boot.spawn();
    // Some of it is unpacked while the rest is on its way.
    crate::support::wait_until("a file is unpacked", || {
        tree(&work).iter().any(|path| path.ends_with("config.sh"))
    });
    let partial = tree(&work).into_iter().find(|path| path.ends_with("config.sh")).unwrap();
    assert!(partial.display().to_string().starts_with(".home.partial-"), "{}", partial.display());
    assert_eq!(mode(work.join(&partial).parent().unwrap()), 0o700);
    let names = tree(&work);
    let packed = |path: &&PathBuf| {
        let name = path.display().to_string();
        name.ends_with("gz") || name.ends_with("tar") || gzip(&work.join(path))
    };
    assert_eq!(names.iter().find(packed), None);
    let deleted = running.deleted_files();
    assert!(deleted.is_empty(), "{deleted:?}");
    running.wait(LONG).expect_job(&sim);
}

fn gzip(path: &Path) -> bool {
    path.is_file() && fs::read(path).is_ok_and(|bytes| bytes.starts_with(&[0x1f, 0x8b]))
}

#[test]
fn of_two_mirrors_the_second_is_used_when_the_first_is_broken() {
    let broken = [
        FaultKind::answer(404, "Not Found"),
        FaultKind::CaptivePortal,
        FaultKind::FlipByte(200_000),
    ];
    for kind in broken {
        let sim = good();
        let instance = sim.create(spec());
        sim.fault(Fault::new(Endpoint::Download).once().kind(kind));
        let ended = Boot::of(&instance)
            .flag("runner-url", sim.download_url())
            .flag("runner-url", sim.mirror_url())
            .run()
            .expect_job(&sim);
        let hosts: Vec<_> =
            downloads(&sim).iter().map(|call| call.header("host").unwrap().to_owned()).collect();
        assert!(hosts[0].starts_with("127.0.0.1"), "{hosts:?}");
        assert!(hosts[1].starts_with("localhost"), "{hosts:?}");
        // A mirror of the same file is held to GARM's checksum.
        assert!(!ended.stderr.contains("cannot be verified"), "{}", ended.story(&sim));
    }
}

#[test]
fn the_mirrors_may_stand_in_the_environment() {
    let sim = good();
    let instance = sim.create(spec());
    sim.fault(Fault::new(Endpoint::Download).once().kind(FaultKind::answer(404, "")));
    let both = format!("{},{}", sim.download_url(), sim.mirror_url());
    Boot::of(&instance).env("GARM_RUNNER_DOWNLOAD_URL", &both).run().expect_job(&sim);
    assert_eq!(downloads(&sim).len(), 2);
}

#[test]
fn modes_and_safe_links_of_the_archive_are_kept() {
    let sim = sim_of(ArchiveSpec { script: one_job().keep_files(), ..archive() });
    let instance = sim.create(spec());
    let ended = Boot::of(&instance).as_root().run().expect_job(&sim);
    let expected = tempfile::tempdir().unwrap();
    let built = build(&ArchiveSpec { script: one_job().keep_files(), ..archive() }).unwrap();
    garm_sim::archive::unpack(&built.bytes, expected.path()).unwrap();
    for path in tree(expected.path()) {
        let (ours, theirs) = (ended.home().join(&path), expected.path().join(&path));
        assert_eq!(mode(&ours), mode(&theirs), "{}", path.display());
        assert_eq!(fs::read_link(&ours).ok(), fs::read_link(&theirs).ok(), "{}", path.display());
        if theirs.is_file() {
            assert_eq!(fs::read(&ours).unwrap(), fs::read(&theirs).unwrap(), "{}", path.display());
        }
    }
}
