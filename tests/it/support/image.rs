//! Images that are built from the project's own Containerfiles, and are gone after the test.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use super::podman::{DEBIAN, finish, fresh_name, need_image};
use super::put_binary;

const LIMIT: Duration = Duration::from_secs(90);

/// An image that is removed when this is dropped.
#[derive(Debug)]
pub struct Image {
    name: String,
}

impl Drop for Image {
    fn drop(&mut self) {
        let mut rmi = Command::new("podman");
        let _ = rmi.args(["rmi", "--force", &self.name]).output();
    }
}

impl Image {
    /// Builds `packaging/container/<containerfile>` with the static binary alone as the context.
    pub fn build(containerfile: &str, args: &[(&str, &str)]) -> Self {
        need_image(DEBIAN);
        let context = context();
        let image = Self { name: format!("localhost/{}", fresh_name()) };
        let mut build = Command::new("podman");
        build.args(["--runtime", "runc", "build", "--quiet", "--network=host", "--layers=false"]);
        build.args(["--ulimit=nofile=1024:2048", "--ulimit=nproc=4096:8192"]);
        build.args(["--tag", &image.name]).arg("--file").arg(packaging(containerfile));
        for (name, value) in args {
            build.arg("--build-arg").arg(OsString::from(format!("{name}={value}")));
        }
        finish(build.arg(context.path()), LIMIT).expect_ok(containerfile);
        image
    }

    /// The runner image without a runner in it.
    pub fn without_runner() -> Self {
        Self::build("Containerfile.runner", &[("BASE", DEBIAN), ("PACKAGES", "")])
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A file of the project's packaging for containers.
pub fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/container").join(file)
}

fn context() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    put_binary(&super::static_binary(), &dir.path().join("garm-bootstrap"));
    dir
}
