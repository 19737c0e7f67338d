//! Images that are built from the project's own Containerfiles, and are gone after the test; but for the one that most
//! tests want, which is kept under the digest of what it was made of, for a day (`cargo xtask roots` removes it then).

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use super::podman::{DEBIAN, finish, fresh_name, need_image, podman};

const LIMIT: Duration = Duration::from_secs(90);

/// By this label `cargo xtask roots` knows what is kept.
const KEPT: &str = "garm-bootstrap.kept-for-tests";

/// An image that is removed when this is dropped, or is kept for other tests.
#[derive(Debug)]
pub struct Image {
    name: String,
    kept: bool,
}

impl Drop for Image {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let mut rmi = Command::new("podman");
        let _ = rmi.args(["rmi", "--force", &self.name]).output();
    }
}

impl Image {
    /// Builds `packaging/container/<containerfile>` with the static binary alone as the context.
    pub fn build(containerfile: &str, args: &[(&str, &str)]) -> Self {
        need_image(DEBIAN);
        let image = Self { name: format!("localhost/{}", fresh_name()), kept: false };
        image.make(containerfile, args);
        image
    }

    /// The runner image without a runner in it.
    pub fn without_runner() -> Self {
        need_image(DEBIAN);
        let containerfile = "Containerfile.runner";
        let mut made_of = Sha256::new();
        made_of.update(DEBIAN);
        made_of.update(fs::read(packaging(containerfile)).unwrap());
        made_of.update(fs::read(super::static_binary()).unwrap());
        let digest: String = made_of.finalize()[..6].iter().map(|b| format!("{b:02x}")).collect();
        let image = Self { name: format!("localhost/gb-runner:{digest}"), kept: true };
        // One test makes it, and those that came at the same time wait.
        let lock = File::create(std::env::temp_dir().join("garm-it-image.lock")).unwrap();
        lock.lock().unwrap();
        if podman(["image", "exists", &image.name]).code != 0 {
            image.make(containerfile, &[("BASE", DEBIAN), ("PACKAGES", "")]);
        }
        image
    }

    fn make(&self, containerfile: &str, args: &[(&str, &str)]) {
        let context = context();
        let mut build = Command::new("podman");
        build.args(["--runtime", "runc", "build", "--quiet", "--network=host", "--layers=false"]);
        build.args(["--ulimit=nofile=1024:2048", "--ulimit=nproc=4096:8192"]);
        build.args(["--tag", &self.name]).arg("--file").arg(packaging(containerfile));
        if self.kept {
            build.args(["--label", KEPT]);
        }
        for (name, value) in args {
            build.arg("--build-arg").arg(OsString::from(format!("{name}={value}")));
        }
        finish(build.arg(context.path()), LIMIT).expect_ok(containerfile);
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
    // A copy with a time of its own: two images shall not share a layer, for each test removes its own.
    fs::copy(super::static_binary(), dir.path().join("garm-bootstrap")).unwrap();
    dir
}
