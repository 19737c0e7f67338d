//! A runner unpacked into a home, and its Listener started there.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use garm_sim::{ArchiveSpec, Instance, InstanceSpec, RunnerScript, Sim, SimOptions};

pub(crate) const LIMIT: Duration = Duration::from_secs(10);

pub(crate) struct Scene {
    pub(crate) sim: Sim,
    pub(crate) one: Instance,
    pub(crate) home: tempfile::TempDir,
}

pub(crate) fn scene(spec: InstanceSpec, script: RunnerScript) -> Scene {
    scene_with(spec, SimOptions { archive: ArchiveSpec::scripted(script), ..SimOptions::default() })
}

pub(crate) fn scene_with(spec: InstanceSpec, options: SimOptions) -> Scene {
    let sim = Sim::start(options);
    let one = sim.create(spec);
    let home = tempfile::tempdir().unwrap();
    sim.unpack_runner(home.path()).unwrap();
    Scene { sim, one, home }
}

/// A started Listener whose lines can be waited for.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) lines: Receiver<String>,
}

impl Running {
    pub(crate) fn line(&self, wanted: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("no {wanted}"));
            if line.contains(wanted) {
                return line;
            }
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// The exit status and the lines that were not read yet.
    pub(crate) fn end(mut self) -> (ExitStatus, Vec<String>) {
        let rest = self.lines.iter().collect();
        (self.child.wait().unwrap(), rest)
    }
}

impl Scene {
    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    pub(crate) fn put_jit_files(&self) {
        for name in [".runner", ".credentials", ".credentials_rsaparams"] {
            std::fs::write(self.home().join(name), self.one.jit_file(name).unwrap()).unwrap();
        }
    }

    pub(crate) fn run(&self) -> Running {
        let mut command = Command::new(self.home().join("bin/Runner.Listener"));
        start(command.arg("run").current_dir(self.home()))
    }

    pub(crate) fn configure(&self, arguments: &[&str]) -> std::process::Output {
        Command::new(self.home().join("config.sh"))
            .args(["--unattended", "--url", &format!("{}/acme/widgets", self.sim.forge_url())])
            .args(["--name", self.one.name(), "--ephemeral"])
            .args(arguments)
            .env("ACTIONS_RUNNER_INPUT_TOKEN", self.one.registration_token())
            .env("RUNNER_ALLOW_RUNASROOT", "1")
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }
}

pub(crate) fn start(command: &mut Command) -> Running {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let stdout = child.stdout.take().unwrap();
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    Running { child, lines }
}

pub(crate) fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}
