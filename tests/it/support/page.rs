//! The pages of the documentation: their commands, and a desk to run them at.
//!
//! A block of shell in a page is marked with a name, ```` ```sh test=NAME ````; a test takes it by that name and runs it as it
//! stands. [`Desk`] is where: an empty folder that looks like the project's root, programs of its own in front on the PATH,
//! and if need be a podman store of its own, so that a page's `podman build -t my-runner` is neither seen by others nor left.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::podman::{DEBIAN, Output, finish, need_image};

const LIMIT: Duration = Duration::from_secs(120);
/// The process groups that a desk has started, by which it ends what a page leaves in the background.
const GROUPS: &str = ".groups";

/// A fenced block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// `sh`, `text`, `yaml`, …
    pub language: String,
    /// What stands after `test=`.
    pub name: Option<String>,
    pub text: String,
}

/// A page, by its path from the project's root.
pub struct Page {
    path: String,
    text: String,
}

impl Page {
    pub fn read(path: &str) -> Self {
        let text = fs::read_to_string(root().join(path));
        let text = text.unwrap_or_else(|error| panic!("{path}: {error}"));
        Self { path: path.to_owned(), text }
    }

    /// README.md and everything in docs.
    pub fn all() -> Vec<Self> {
        let names = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
        let mut names: Vec<String> = names
            .filter(|path| path.extension().is_some_and(|end| end == "md"))
            .map(|path| format!("docs/{}", path.file_name().unwrap().to_string_lossy()))
            .collect();
        names.push("README.md".to_owned());
        names.iter().map(|name| Self::read(name)).collect()
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn blocks(&self) -> Vec<Block> {
        blocks(&self.text)
    }

    /// The block of that name.
    pub fn block(&self, name: &str) -> String {
        let found = self.blocks().into_iter().find(|block| block.name.as_deref() == Some(name));
        found.unwrap_or_else(|| panic!("{} has no block test={name}", self.path)).text
    }
}

/// The fenced blocks of a text, in order; one in a list is indented, and loses that.
pub fn blocks(text: &str) -> Vec<Block> {
    let (mut blocks, mut open) = (Vec::new(), None::<(usize, Block)>);
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        match (line.trim_start().strip_prefix("```"), open.as_mut()) {
            (Some(""), Some(_)) => blocks.extend(open.take().map(|(_, block)| block)),
            (Some(head), None) => {
                let (language, rest) = head.split_once(' ').unwrap_or((head, ""));
                let name = rest.split_whitespace().find_map(|word| word.strip_prefix("test="));
                let (language, name) = (language.to_owned(), name.map(str::to_owned));
                open = Some((indent, Block { language, name, text: String::new() }));
            }
            (_, Some((outer, block))) => {
                block.text.extend([&line[indent.min(*outer)..], "\n"]);
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a fence is not closed");
    blocks
}

/// Puts `new` in the place of `old`, which must be there: an address of the world, say.
pub fn replaced(text: &str, old: &str, new: &str) -> String {
    assert!(text.contains(old), "{old:?} is not in\n{text}");
    text.replace(old, new)
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Where the commands of a page are run.
pub struct Desk {
    dir: TempDir,
    env: BTreeMap<String, String>,
    has_podman: bool,
}

impl Desk {
    /// A folder with the project's packaging and its static binary where a clone has them.
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("garm-desk-").tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let desk = Self { dir, env: BTreeMap::new(), has_podman: false };
        let dist = desk.path("target/dist");
        fs::create_dir_all(&dist).unwrap();
        symlink(root().join("packaging"), desk.path("packaging")).unwrap();
        super::put_binary(&super::static_binary(), &dist.join("garm-bootstrap"));
        fs::create_dir(desk.path("bin")).unwrap();
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", desk.path("bin").display());
        desk.with_env("PATH", &path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn with_env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// A program that comes before all others of that name.
    pub fn with_script(self, name: &str, script: &str) -> Self {
        let path = self.path("bin").join(name);
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        self
    }

    /// The same, from a file.
    pub fn with_program(self, name: &str, program: &Path) -> Self {
        symlink(program, self.path("bin").join(name)).unwrap();
        self
    }

    /// The static binary as a command.
    pub fn with_garm_bootstrap(self) -> Self {
        let binary = self.path("target/dist/garm-bootstrap");
        self.with_program("garm-bootstrap", &binary)
    }

    /// A podman whose images and containers are this desk's, and which finds the Debian image where a page names the
    /// one of the world. Its limits are such that runc starts something, its network is the machine's.
    pub fn with_podman(mut self) -> Self {
        need_image(DEBIAN);
        let dir = self.dir.path().display();
        let storage = format!(
            "[storage]\ndriver = \"overlay\"\ngraphroot = \"{dir}/store\"\nrunroot = \"{dir}/run\"\n\
             [storage.options]\nadditionalimagestores = [\"/var/lib/containers/storage\"]\n"
        );
        let containers = format!(
            "[containers]\ndefault_ulimits = [\"nofile=1024:2048\", \"nproc=4096:8192\"]\nnetns = \"host\"\n\
             [engine]\nruntime = \"runc\"\nstatic_dir = \"{dir}/store/libpod\"\ntmp_dir = \"{dir}/tmp\"\n"
        );
        fs::write(self.path("storage.conf"), storage).unwrap();
        fs::write(self.path("containers.conf"), containers).unwrap();
        for (variable, file) in
            [("CONTAINERS_STORAGE_CONF", "storage.conf"), ("CONTAINERS_CONF", "containers.conf")]
        {
            let file = self.path(file).display().to_string();
            self = self.with_env(variable, &file);
        }
        self.has_podman = true;
        // What apt-get would install is in the image, and a test has no business with a mirror.
        let base = "debian:bookworm-slim";
        let script = format!(
            "printf 'FROM {DEBIAN}\\nRUN ln -sf /bin/true /usr/bin/apt-get\\n' | podman build -q -t {base} -"
        );
        self.run(&script).expect_ok("make the base image");
        self
    }

    /// Runs shell as a page has it, with `set -eu`.
    pub fn run(&self, script: &str) -> Output {
        let script = format!("echo $$ >> {GROUPS}\nset -eu\n{script}");
        let mut bash = Command::new("bash");
        bash.args(["-c", &script]).current_dir(self.dir.path()).env_clear().envs(&self.env);
        finish(bash.process_group(0), LIMIT)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        for group in super::read(&self.path(GROUPS)).lines() {
            let _ = killpg(Pid::from_raw(group.parse().unwrap_or(i32::MAX)), Signal::SIGTERM);
        }
        if self.has_podman {
            for words in [["rm", "-fa"], ["rmi", "-fa"]] {
                let mut podman = Command::new("podman");
                let _ = podman.args(words).envs(&self.env).output();
            }
        }
    }
}

mod tests {
    use super::{Block, blocks};

    #[test]
    fn blocks_are_read_with_their_language_and_name() {
        let text = "a\n   ```sh test=one\n   x\n\n     y\n   ```\nb\n```text\n```\n";
        let block = |language: &str, name: Option<&str>, text: &str| Block {
            language: language.to_owned(),
            name: name.map(str::to_owned),
            text: text.to_owned(),
        };
        assert_eq!(blocks(text), [block("sh", Some("one"), "x\n\n  y\n"), block("text", None, "")]);
    }
}
