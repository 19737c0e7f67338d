//! The archive and its download.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

use flate2::read::GzDecoder;
use garm_sim::archive::{ArchiveSize, EntryKind, ExtraEntry, ListenerFile, build};
use garm_sim::{ArchiveSpec, Checksum, InstanceSpec, Sim, SimOptions};

use crate::client::get;

/// Path to (mode, link target).
fn entries(packed: &[u8]) -> BTreeMap<String, (u32, Option<String>)> {
    let mut archive = tar::Archive::new(GzDecoder::new(packed));
    archive
        .entries()
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            let link = entry.link_name_bytes();
            let link = link.map(|link| String::from_utf8_lossy(&link).into_owned());
            (path, (entry.header().mode().unwrap(), link))
        })
        .collect()
}

#[test]
fn the_layout_is_the_real_ones() {
    let built = build(&ArchiveSpec::default()).unwrap();
    assert!(built.bytes.len() < 3 << 20, "{}", built.bytes.len());
    let entries = entries(&built.bytes);
    for (path, mode) in [
        ("config.sh", 0o755),
        ("env.sh", 0o755),
        ("run.sh", 0o755),
        ("run-helper.sh.template", 0o755),
        ("safe_sleep.sh", 0o755),
        ("bin/Runner.Listener", 0o755),
        ("bin/installdependencies.sh", 0o755),
        ("bin/libcoreclr.so", 0o644),
        ("externals/node20/bin/node", 0o755),
    ] {
        assert_eq!(entries.get(path).map(|entry| entry.0), Some(mode), "{path}");
    }
    let npm = entries["externals/node20/bin/npm"].1.as_deref();
    assert_eq!(npm, Some("../lib/node_modules/npm/bin/npm-cli.js"));
    assert!(entries.len() > 40);
}

#[test]
fn the_same_spec_gives_the_same_bytes() {
    let (one, two) = (build(&ArchiveSpec::default()), build(&ArchiveSpec::default()));
    assert_eq!(one.unwrap().sha256, two.unwrap().sha256);
}

#[test]
fn unpacked_links_work_and_modes_hold() {
    let home = tempfile::tempdir().unwrap();
    garm_sim::archive::write_tree(&ArchiveSpec::default(), home.path()).unwrap();
    let npm = std::fs::read_to_string(home.path().join("externals/node20/bin/npm")).unwrap();
    assert!(npm.contains("npm-cli.js"));
    let mode = home.path().join("config.sh").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
}

#[test]
fn entries_that_must_be_refused_go_in_as_asked() {
    let spec = ArchiveSpec {
        top_folder: Some("actions-runner".into()),
        without: vec!["safe_sleep.sh".into()],
        extra_entries: vec![
            ExtraEntry::file("../../etc/x", b"evil"),
            ExtraEntry::symlink("a", "/etc"),
            ExtraEntry::new("h", 0o644, EntryKind::Hardlink("/etc/shadow".into())),
            ExtraEntry::new("dev", 0o666, EntryKind::CharDevice(1, 3)),
            ExtraEntry::new("suid", 0o4755, EntryKind::File(b"x".to_vec())),
        ],
        ..ArchiveSpec::default()
    };
    let entries = entries(&build(&spec).unwrap().bytes);
    assert_eq!(entries["../../etc/x"], (0o644, None));
    assert_eq!(entries["a"].1.as_deref(), Some("/etc"));
    assert_eq!(entries["h"].1.as_deref(), Some("/etc/shadow"));
    assert_eq!(entries["suid"].0, 0o4755);
    assert!(entries.contains_key("actions-runner/config.sh"));
    assert!(!entries.contains_key("actions-runner/safe_sleep.sh"));
}

#[test]
fn the_listener_can_be_unfit_to_run() {
    let home = tempfile::tempdir().unwrap();
    for (n, listener) in
        [ListenerFile::ForeignArch, ListenerFile::MissingLoader, ListenerFile::Empty]
            .into_iter()
            .enumerate()
    {
        let spec = ArchiveSpec { listener, ..ArchiveSpec::default() };
        let folder = home.path().join(n.to_string());
        garm_sim::archive::write_tree(&spec, &folder).unwrap();
        let error = std::process::Command::new(folder.join("bin/Runner.Listener"))
            .arg("--version")
            .output();
        assert!(error.is_err(), "{spec:?}: {error:?}");
    }
}

#[test]
fn downloads_resume_under_an_etag() {
    let sim = Sim::start(SimOptions::default());
    let whole = get(&sim.download_url()).send().unwrap();
    assert_eq!(whole.body, sim.archive_bytes());
    assert_eq!(whole.header("accept-ranges"), Some("bytes"));
    let etag = whole.header("etag").unwrap().to_owned();
    let from = get(&sim.download_url()).header("Range", "bytes=1000-");
    let part = from.clone().header("If-Range", &etag).send().unwrap();
    let size = whole.body.len();
    assert_eq!(part.status, 206);
    let range = format!("bytes 1000-{}/{size}", size - 1);
    assert_eq!(part.header("content-range"), Some(range.as_str()));
    assert_eq!(part.body, whole.body[1000..]);
    let changed = from.clone().header("If-Range", "\"other\"").send().unwrap();
    assert_eq!((changed.status, changed.body.len()), (200, size));
    let beyond = get(&sim.download_url()).header("Range", &format!("bytes={size}-"));
    assert_eq!(beyond.status(), 416);

    let plain = Sim::start(SimOptions { ranges: false, ..SimOptions::default() });
    let answer = get(&plain.download_url()).header("Range", "bytes=1-").send().unwrap();
    assert_eq!((answer.status, answer.header("accept-ranges")), (200, None));
}

#[test]
fn a_private_download_asks_for_its_token() {
    let sim = Sim::start(SimOptions::default());
    let one = sim.create(InstanceSpec {
        temp_download_token: Some("SIMDOWNLOADTOKEN".into()),
        sha256: Checksum::Missing,
        ..InstanceSpec::default()
    });
    let url = format!("{}/runner-metadata", sim.metadata_url());
    let tools = get(&url).bearer(&one.token()).send().unwrap().json()["runner_tools"].clone();
    assert_eq!(tools["temp_download_token"], "SIMDOWNLOADTOKEN");
    assert_eq!(tools.get("sha256_checksum"), None);
    let url = tools["download_url"].as_str().unwrap();
    assert_eq!(get(url).status(), 401);
    assert_eq!(get(url).bearer(&one.token()).status(), 401);
    assert_eq!(get(url).bearer("SIMDOWNLOADTOKEN").status(), 200);
}

#[test]
fn the_large_archive_has_the_weight_of_a_real_one() {
    let cache = tempfile::tempdir().unwrap();
    let spec = ArchiveSpec {
        size: ArchiveSize::Large,
        cache: Some(cache.path().to_owned()),
        ..ArchiveSpec::default()
    };
    let built = build(&spec).unwrap();
    let again = build(&spec).unwrap();
    assert_eq!(built.sha256, again.sha256);
    let mut archive = tar::Archive::new(GzDecoder::new(built.bytes.as_ref()));
    let (mut files, mut bytes) = (0u64, 0u64);
    for entry in archive.entries().unwrap() {
        files += 1;
        bytes += entry.unwrap().size();
    }
    let packed = built.bytes.len() >> 20;
    let unpacked = bytes >> 20;
    assert!((7_500..9_000).contains(&files), "{files} files");
    assert!((430..520).contains(&unpacked), "{unpacked} MB unpacked");
    assert!((140..200).contains(&packed), "{packed} MB packed");
}
