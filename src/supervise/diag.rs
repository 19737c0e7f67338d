//! The runner's own log, as far as somebody else may read it.
//!
//! It lies in the runner's home, where an earlier job may have put anything: only a plain file that
//! belongs to the runner's user is read, no link is followed, and never more than a bounded part. What a job
//! writes there can bring nobody to grief but that job.
//! Must not: change anything there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use nix::fcntl::OFlag;

use super::Launch;
use super::output::Cutter;
use crate::forge::{Dialect, Event, Sign};
use crate::text::readable;

/// How much of the end is told, and how many lines of it.
const TAIL: u64 = 8 * 1024;
const TAIL_LINES: usize = 12;
/// How much is read at one look; what is beyond is read at the next one.
const AT_ONE_LOOK: u64 = 256 * 1024;

/// How much of the end is read to learn what a crashed agent may not have noted: that was its last moment.
const LAST_MOMENT: u64 = 1024 * 1024;

/// The log of the present start.
pub(super) struct Diag {
    folder: PathBuf,
    dialect: Dialect,
    /// Whose files are believed.
    owner: u32,
    /// The newest log, and its length, when the runner was started: what was there is an earlier start's.
    before: Option<(String, u64)>,
    read: Option<Reading>,
}

/// How far the log has been looked at.
struct Reading {
    name: String,
    offset: u64,
    cutter: Cutter,
}

impl Diag {
    pub(super) fn of(launch: &Launch) -> Self {
        let owner = launch.program.user.as_ref().map(|user| user.uid);
        Self {
            folder: launch.home.join(launch.dialect.diag_folder()),
            dialect: launch.dialect,
            owner: owner.unwrap_or_else(|| nix::unistd::geteuid().as_raw()),
            before: None,
            read: None,
        }
    }

    /// The runner is about to be started (again).
    pub(super) fn starts(&mut self) {
        self.before = self.newest().map(|name| {
            let length = self.open(&name).and_then(|file| file.metadata()).map_or(0, |m| m.len());
            (name, length)
        });
        self.read = None;
    }

    /// What was there before this start, for [`Self::goes_on_after`].
    pub(super) fn before(&self) -> Option<(String, u64)> {
        self.before.clone()
    }

    /// The start was another agent's.
    pub(super) fn goes_on_after(&mut self, before: Option<(String, u64)>) {
        self.before = before;
    }

    /// What the Listener has said of its state in the end of the log.
    pub(super) fn events(&self) -> Vec<Event> {
        let bytes = self.end(LAST_MOMENT);
        let text = String::from_utf8_lossy(&bytes);
        text.lines().filter_map(|line| self.dialect.read_log_line(line)).collect()
    }

    /// The last lines of it, fit to be shown; empty if there are none.
    pub(super) fn last_lines(&self) -> String {
        let text = readable(&self.end(TAIL));
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }

    /// The whole lines of the last `length` bytes.
    fn end(&self, length: u64) -> Vec<u8> {
        let Some((name, from)) = self.present() else { return Vec::new() };
        let read = || -> io::Result<Vec<u8>> {
            let mut file = self.open(&name)?;
            let start = file.metadata()?.len().saturating_sub(length).max(from);
            file.seek(SeekFrom::Start(start))?;
            let mut bytes = Vec::new();
            file.take(length).read_to_end(&mut bytes)?;
            if start > from {
                // The first line is a piece of one.
                let cut =
                    bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
                bytes.drain(..cut);
            }
            Ok(bytes)
        };
        read().unwrap_or_default()
    }

    /// Calls `take` with each sign of the lines that have come since the last look.
    pub(super) fn for_each_sign(&mut self, mut take: impl FnMut(Sign)) {
        let Some((name, from)) = self.present() else { return };
        let mut reading = match self.read.take() {
            Some(reading) if reading.name == name => reading,
            _ => Reading { name, offset: from, cutter: Cutter::default() },
        };
        let read = |reading: &Reading| -> io::Result<Vec<u8>> {
            let mut file = self.open(&reading.name)?;
            file.seek(SeekFrom::Start(reading.offset))?;
            let mut bytes = Vec::new();
            file.take(AT_ONE_LOOK).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = read(&reading).unwrap_or_default();
        reading.offset += bytes.len() as u64;
        let dialect = self.dialect;
        reading.cutter.push(&bytes, |line| {
            if let Some(sign) = dialect.sign(&String::from_utf8_lossy(line)) {
                take(sign);
            }
        });
        self.read = Some(reading);
    }

    /// The log of this start, and where in it this start begins.
    fn present(&self) -> Option<(String, u64)> {
        let newest = self.newest()?;
        match &self.before {
            Some((before, length)) if *before == newest => Some((newest, *length)),
            _ => Some((newest, 0)),
        }
    }

    /// Names hold the time, so that the last one is the newest.
    fn newest(&self) -> Option<String> {
        let entries = fs::read_dir(&self.folder).ok()?.flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| self.dialect.is_diag_log(name)).max()
    }

    fn open(&self, name: &str) -> io::Result<File> {
        // Without O_NONBLOCK a named pipe would hold us up.
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits())
            .open(self.folder.join(name))?;
        let meta = file.metadata()?;
        if meta.is_file() && meta.uid() == self.owner {
            Ok(file)
        } else {
            Err(io::ErrorKind::InvalidData.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::tests::Home;
    use super::*;

    const LOST: &str =
        "[2026-08-07 11:59:46Z INFO Runner] Skipping message Job. Job message not found 'x'.\n";

    fn diag() -> (tempfile::TempDir, Diag) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("_diag")).unwrap();
        let launch = Launch { home: dir.path().to_owned(), ..Home::new("").launch };
        let diag = Diag::of(&launch);
        (dir, diag)
    }

    fn write(dir: &Path, name: &str, text: &str) {
        use std::io::Write as _;
        let path = dir.join("_diag").join(name);
        let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn signs(diag: &mut Diag) -> Vec<Sign> {
        let mut signs = Vec::new();
        diag.for_each_sign(|sign| signs.push(sign));
        signs
    }

    #[test]
    fn the_last_lines_are_those_of_the_present_start() {
        let (dir, mut diag) = diag();
        write(dir.path(), "Runner_20261201-010000-utc.log", "old\n");
        diag.starts();
        assert_eq!(diag.last_lines(), "");
        let many = (0..1000).fold(String::new(), |all, n| all + &format!("line {n}\n"));
        write(dir.path(), "Runner_20261201-020000-utc.log", &many);
        write(dir.path(), "Worker_20261201-030000-utc.log", "a job's\n");
        let last = diag.last_lines();
        assert_eq!(last.lines().count(), TAIL_LINES);
        assert!(last.starts_with("line 988\n") && last.ends_with("line 999"), "{last}");
    }

    #[test]
    fn what_an_earlier_start_has_said_is_not_taken_for_this_ones_by_another_agent_either() {
        let (dir, mut first) = diag();
        let listening = "[x INFO Terminal] WRITE LINE: 2026-12-01 01:00:00Z: Listening for Jobs\n";
        write(dir.path(), "Runner_20261201-010000-utc.log", listening);
        first.starts();
        let launch = Launch { home: dir.path().to_owned(), ..Home::new("").launch };
        let mut next = Diag::of(&launch);
        assert_eq!(next.events(), [Event::Listening]);
        next.goes_on_after(first.before());
        assert_eq!(next.events(), []);
        write(dir.path(), "Runner_20261201-020000-utc.log", listening);
        assert_eq!(next.events(), [Event::Listening]);
    }

    #[test]
    fn a_lost_job_of_an_earlier_start_does_not_count() {
        let (dir, mut diag) = diag();
        let name = "Runner_20261201-010000-utc.log";
        write(dir.path(), name, LOST);
        diag.starts();
        assert_eq!(signs(&mut diag), []);
        let (first, rest) = LOST.split_at(30);
        write(dir.path(), name, first);
        assert_eq!(signs(&mut diag), []);
        write(dir.path(), name, rest);
        assert_eq!(signs(&mut diag), [Sign::JobLost]);
        assert_eq!(signs(&mut diag), []);
    }

    #[test]
    fn a_link_or_a_pipe_in_its_place_is_not_read() {
        let (dir, diag) = diag();
        let (secret, log) = (dir.path().join("secret"), dir.path().join("_diag/Runner_2-utc.log"));
        fs::write(&secret, "not for the log\n").unwrap();
        std::os::unix::fs::symlink(&secret, &log).unwrap();
        assert_eq!(diag.last_lines(), "");
        fs::remove_file(&log).unwrap();
        nix::unistd::mkfifo(&log, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(diag.last_lines(), "");
    }
}
