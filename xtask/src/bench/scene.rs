//! The folders of a measurement, on tmpfs: homes that are fresh for each boot, and an image's runner.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use garm_sim::RunnerScript;
use serde_json::json;

use super::Tools;
use super::sim::Sim;
use crate::shell;

/// The account that runners have.
const USER: &str = "runner";

/// Where the runner is before a boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Runner {
    /// To be downloaded.
    Nowhere,
    /// In its home already.
    InHome,
    /// In another folder of the image, which belongs to root or to the runner's user.
    InAssets(Whose),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    Root,
    User,
}

/// Removed with everything in it when dropped.
pub(super) struct Scene {
    root: tempfile::TempDir,
    user: String,
}

impl Scene {
    pub(super) fn new(elsewhere: &Path) -> Result<Self> {
        let tmpfs = Path::new("/dev/shm");
        let place = if tmpfs.is_dir() { tmpfs } else { elsewhere };
        let root = tempfile::Builder::new().prefix("garm-bench-").tempdir_in(place)?;
        let user = if nix::unistd::geteuid().is_root() {
            shell::read(Command::new("id").args(["-u", USER]))
                .with_context(|| format!("as root this needs the account \"{USER}\""))?;
            USER.to_owned()
        } else {
            shell::read(Command::new("id").arg("-un"))?.trim().to_owned()
        };
        // The account has to come to its home.
        shell::read(Command::new("chmod").arg("755").arg(root.path()))?;
        Ok(Self { root, user })
    }

    /// Unpacks the archive as an image would have it, and keeps the packed one at [`Self::archive`].
    pub(super) fn lay_image(&mut self, tools: &Tools, sim: &Sim) -> Result<()> {
        sim.ask(&json!({ "ask": "archive", "file": self.archive() }))?;
        let image = self.path("image");
        fs::create_dir(&image)?;
        let mut tar = Command::new("tar");
        shell::read(tar.arg("xf").arg(self.archive()).arg("-C").arg(&image))?;
        ensure!(image.join("bin/Runner.Listener").is_file(), "the archive holds no runner");
        fs::copy(&tools.agent, self.agent()).context("copy the binary")?;
        Ok(())
    }

    /// What a boot starts from: nothing of an earlier one is left.
    pub(super) fn prepare(&self, runner: Runner) -> Result<()> {
        // Each boot of an image's own home leaves its traces there, as in a container.
        if runner == Runner::InHome {
            let home = self.home();
            if !home.join("bin/Runner.Listener").exists() {
                let _ = fs::remove_dir_all(&home);
                shell::read(Command::new("cp").arg("-a").arg(self.path("image")).arg(&home))?;
                Self::give(&home, &self.user)?;
            }
            for trace in ["_sim", "_diag", "_work"] {
                let _ = fs::remove_dir_all(home.join(trace));
            }
            for trace in [".runner", ".credentials", ".credentials_rsaparams"] {
                let _ = fs::remove_file(home.join(trace));
            }
        } else {
            let _ = fs::remove_dir_all(self.home());
        }
        match runner {
            Runner::InAssets(Whose::Root) => Self::give(&self.path("image"), "root")?,
            Runner::InAssets(Whose::User) => Self::give(&self.path("image"), &self.user)?,
            Runner::Nowhere | Runner::InHome => {}
        }
        for folder in ["state", "run"] {
            let _ = fs::remove_dir_all(self.path(folder));
        }
        let _ = fs::remove_file(self.path("runner.tar.gz"));
        Ok(())
    }

    /// Replaces what the fake Listener in the image's home does.
    pub(super) fn write_script(&self, script: &RunnerScript) -> Result<()> {
        Ok(script.write(&self.home())?)
    }

    fn give(folder: &Path, user: &str) -> Result<()> {
        if nix::unistd::geteuid().is_root() {
            shell::read(Command::new("chown").args(["-R", &format!("{user}:")]).arg(folder))?;
        }
        Ok(())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(super) fn user(&self) -> &str {
        &self.user
    }

    pub(super) fn home(&self) -> PathBuf {
        self.path("home")
    }

    pub(super) fn archive(&self) -> PathBuf {
        self.path("archive.tar.gz")
    }

    pub(super) fn agent(&self) -> PathBuf {
        self.path("garm-bootstrap")
    }
}
