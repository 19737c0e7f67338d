use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::*;

/// A 64-bit ELF file of this machine, with a loader if it is a program, that needs `needed`.
fn elf_file(loader: Option<&str>, needed: &[&str]) -> Vec<u8> {
    let machine: u16 = if elf::machine_of_host() == elf::Machine::Arm64 { 183 } else { 62 };
    let mut strings = vec![0];
    let mut dynamic = Vec::new();
    for name in needed {
        dynamic.extend([1, strings.len() as u64]);
        strings.extend(name.bytes().chain([0]));
    }
    let loader_at = strings.len() as u64;
    strings.extend(loader.unwrap_or_default().bytes().chain([0]));
    let tables = 64 + 3 * 56;
    let strings_at = tables + 8 * (dynamic.len() as u64 + 4);
    dynamic.extend([5, strings_at, 0, 0]);
    let dynamic: Vec<u8> = dynamic.iter().flat_map(|word| word.to_le_bytes()).collect();
    let end = strings_at + strings.len() as u64;
    let mut file = vec![0; 64];
    file[..6].copy_from_slice(b"\x7fELF\x02\x01");
    file[18..20].copy_from_slice(&machine.to_le_bytes());
    (file[32], file[54], file[56]) = (64, 56, 3);
    let interp = if loader.is_some() { 3 } else { 0 };
    for (kind, offset, size) in [
        (1u32, 0, end),
        (2, tables, dynamic.len() as u64),
        (interp, strings_at + loader_at, loader.map_or(0, |l| l.len() as u64 + 1)),
    ] {
        let mut header = kind.to_le_bytes().to_vec();
        header.resize(8, 0);
        for word in [offset, offset, offset, size, size, 8] {
            header.extend(word.to_le_bytes());
        }
        file.extend(header);
    }
    file.extend(dynamic);
    file.extend(strings);
    file
}

/// A runner's home and the root of a system, both made of nothing.
struct World {
    dir: TempDir,
    search: Search,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let search = Search { root: dir.path().join("root"), ..Search::default() };
        fs::create_dir_all(dir.path().join("home/bin")).unwrap();
        Self { dir, search }
    }

    fn home(&self) -> std::path::PathBuf {
        self.dir.path().join("home")
    }

    fn put(&self, path: &str, contents: &[u8]) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, contents).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn dotnet(self) -> Self {
        self.put("home/bin/Runner.Listener", &elf_file(Some("/ld.so"), &["libdl.so.2"]));
        self.put("home/bin/libcoreclr.so", &elf_file(None, &["libstdc++.so.6", "libown.so"]));
        self.put("home/bin/libown.so", &elf_file(None, &[]));
        self
    }

    fn missing(&self) -> Vec<String> {
        let missing = missing_libraries(&self.home(), &self.search);
        missing.into_iter().map(|library| library.name).collect()
    }

    fn installer<'a>(&self, home: &'a Path, work: &'a Path) -> Installer<'a> {
        Installer {
            home,
            work,
            env: vec![("PATH".into(), "/usr/bin:/bin".into())],
            search: self.search.clone(),
            pause: Duration::from_millis(1),
            deadline: Instant::now() + Duration::from_secs(20),
        }
    }

    /// Runs the installer with `script` as the runner's script; none if empty.
    async fn install(&self, script: &str) -> Result<Installed, DependenciesError> {
        if !script.is_empty() {
            self.put("home/bin/installdependencies.sh", format!("#!/bin/sh\n{script}").as_bytes());
        }
        self.installer(&self.home(), self.dir.path()).install(&CancellationToken::new()).await
    }
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

#[test]
fn a_static_listener_and_a_script_need_nothing() {
    let world = World::new();
    world.put("home/bin/Runner.Listener", b"#!/bin/sh\n");
    assert!(world.missing().is_empty());
    world.put("home/bin/Runner.Listener", &elf_file(None, &[]));
    assert!(world.missing().is_empty());
    world.put("home/bin/libcoreclr.so", &elf_file(None, &["libz.so.1"]));
    assert_eq!(world.missing(), ["libz.so.1"]);
}

#[test]
fn a_dotnet_listener_needs_what_it_links_and_what_it_opens() {
    let mut world = World::new().dotnet();
    let all = ["libstdc++.so.6", "libdl.so.2", "libicu", "libssl", "libgssapi_krb5"];
    assert_eq!(world.missing(), all);
    world.search.globalization_invariant = true;
    assert!(!world.missing().contains(&"libicu".to_owned()));
}

#[test]
fn libraries_are_found_wherever_a_loader_finds_them() {
    let mut world = World::new().dotnet();
    let library = elf_file(None, &[]);
    let cache = [("libstdc++.so.6", "/odd/libstdc++.so.6"), ("libdl.so.2", "/gone/libdl.so.2")];
    world.put("root/etc/ld.so.cache", &linker_cache::tests::cache(&cache));
    world.put("root/odd/libstdc++.so.6", &library);
    world.put("root/usr/lib/x86_64-linux-gnu/libicuuc.so.74", &library);
    world.put("root/etc/ld.so.conf", b"# c\ninclude ld.so.conf.d/*.conf\n");
    world.put("root/etc/ld.so.conf.d/a.conf", b"/listed # c\n");
    world.put("root/listed/libssl.so.1.1", &library);
    world.put("root/etc/ld-musl-x86_64.path", b"/musl:/other\n");
    world.put("root/musl/libgssapi_krb5.so.2", &library);
    assert_eq!(world.missing(), ["libdl.so.2"], "what the cache names must be there, too");
    world.put("root/given/libdl.so.2", &library);
    world.search.library_path = Some("/nowhere:/given".into());
    assert!(world.missing().is_empty());
}

#[test]
fn a_library_of_another_machine_does_not_count() {
    let world = World::new();
    world.put("home/bin/Runner.Listener", &elf_file(None, &[]));
    world.put("home/bin/libcoreclr.so", &elf_file(None, &["libz.so.1"]));
    let mut foreign = elf_file(None, &[]);
    foreign[18] = 3;
    world.put("root/usr/lib/libz.so.1", &foreign);
    assert_eq!(world.missing(), ["libz.so.1"]);
}

#[test]
fn this_very_program_misses_nothing_on_this_machine() {
    let world = World::new();
    fs::copy("/proc/self/exe", world.home().join("bin/libcoreclr.so")).unwrap();
    world.put("home/bin/Runner.Listener", &elf_file(None, &[]));
    let missing = missing_libraries(&world.home(), &Search::default());
    assert!(missing.is_empty(), "{}", names(&missing));
}

#[tokio::test]
async fn the_script_is_not_run_when_nothing_is_missing() {
    let world = World::new();
    world.put("home/bin/Runner.Listener", b"#!/bin/sh\n");
    assert_eq!(world.install("touch ran").await.unwrap(), Installed::NotNeeded);
    assert!(!world.home().join("ran").exists());
}

#[tokio::test]
async fn a_missing_library_runs_the_script_as_root_and_is_told_otherwise() {
    let world = World::new().dotnet();
    world.put("lib.so", &elf_file(None, &[]));
    // What the script installs is there afterwards, but for one.
    let script = "cat \"$APT_CONFIG\" > conf; echo \"$DEBIAN_FRONTEND\" >> conf\n\
         mkdir -p ../root/usr/lib; for l in libstdc++.so.6 libdl.so.2 libicuuc.so.74 libssl.so.3; \
         do cp ../lib.so ../root/usr/lib/$l; done";
    match world.install(script).await.unwrap() {
        Installed::StillMissing(missing) if is_root() => {
            assert_eq!(names(&missing), "libgssapi_krb5");
            let conf = fs::read_to_string(world.home().join("conf")).unwrap();
            assert!(conf.contains("DPkg::Lock::Timeout \"120\";") && conf.contains("noninter"));
        }
        Installed::NotRoot(missing) if !is_root() => assert_eq!(missing.len(), 5),
        other => panic!("{other:?}"),
    }
    if is_root() {
        world.put("root/usr/lib/libgssapi_krb5.so.2", &elf_file(None, &[]));
        fs::remove_file(world.dir.path().join("root/usr/lib/libssl.so.3")).unwrap();
        let again = world.install("cp ../lib.so ../root/usr/lib/libssl.so.3").await.unwrap();
        assert_eq!(again, Installed::Done { attempts: 1 });
    }
}

#[tokio::test]
async fn a_runner_without_a_script_is_told() {
    let outcome = World::new().dotnet().install("").await.unwrap();
    let told = match &outcome {
        Installed::NoScript(missing) => is_root() && missing.len() == 5,
        Installed::NotRoot(_) => !is_root(),
        _ => false,
    };
    assert!(told, "{outcome:?}");
}

/// A script that fails `times` times in the way of `words`, then succeeds.
fn failing(times: u32, words: &str) -> String {
    format!(
        "n=$(cat n 2>/dev/null || echo 0); n=$((n+1)); echo $n > n\n\
         if [ $n -le {times} ]; then echo '{words}' >&2; exit 100; fi"
    )
}

#[tokio::test]
async fn a_held_lock_and_a_syncing_mirror_pass() {
    for (times, words) in [(2, "E: Could not get lock /var/lib/dpkg/lock"), (3, "404 Not Found")] {
        let world = World::new().dotnet();
        let outcome = world.install(&failing(times, words)).await.unwrap();
        if is_root() {
            assert!(matches!(outcome, Installed::StillMissing(_)), "{outcome:?}");
            let runs = fs::read_to_string(world.home().join("n")).unwrap();
            assert_eq!(runs.trim(), (times + 1).to_string());
        } else {
            assert!(matches!(outcome, Installed::NotRoot(_)), "{outcome:?}");
        }
    }
}

#[tokio::test]
async fn a_script_that_always_fails_is_given_up_with_its_last_words() {
    let outcome = World::new().dotnet().install("echo Unknown distribution; exit 1").await;
    if is_root() {
        let error = outcome.unwrap_err().to_string();
        assert!(
            error.contains("5 attempt(s)") && error.contains("Unknown distribution"),
            "{error}"
        );
        assert!(error.contains("libstdc++.so.6"), "{error}");
    } else {
        assert!(matches!(outcome, Ok(Installed::NotRoot(_))));
    }
}

#[tokio::test]
async fn the_deadline_and_a_cancellation_stop_a_script_that_hangs() {
    let world = World::new().dotnet();
    let (home, work) = (world.home(), world.dir.path());
    world.put("home/bin/installdependencies.sh", b"#!/bin/sh\necho waiting; sleep 60\n");
    let cancel = CancellationToken::new();
    let mut installer = world.installer(&home, work);
    installer.deadline = Instant::now() + Duration::from_millis(200);
    let timed_out = installer.install(&cancel).await;
    installer.deadline = Instant::now() + Duration::from_secs(20);
    cancel.cancel();
    let cancelled = installer.install(&cancel).await;
    if is_root() {
        let text = timed_out.unwrap_err().to_string();
        assert!(text.contains("deadline") && text.contains("waiting"), "{text}");
        assert!(matches!(cancelled, Err(DependenciesError::Cancelled)));
    } else {
        assert!(matches!((timed_out, cancelled), (Ok(Installed::NotRoot(_)), Ok(_))));
    }
}
