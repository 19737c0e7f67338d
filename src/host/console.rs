//! The machine's console: the one place where people look when an instance cannot be reached.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::fcntl::OFlag;

use super::container::is_container;
use crate::text::one_line;

const CONSOLE: &str = "/dev/console";
/// A line that fits on a screen.
const LONGEST: usize = 400;

/// Writes one line there, if this is a machine and we are root. A console that does not take it at once is
/// not waited for.
pub fn tell(text: &str) -> io::Result<()> {
    if !nix::unistd::geteuid().is_root() || is_container() {
        return Ok(());
    }
    tell_at(Path::new(CONSOLE), text)
}

fn tell_at(console: &Path, text: &str) -> io::Result<()> {
    // It must neither become our controlling terminal nor hold us up.
    let flags = OFlag::O_NOCTTY | OFlag::O_NONBLOCK;
    let mut console = OpenOptions::new().append(true).custom_flags(flags.bits()).open(console)?;
    let line = crate::text::shorten(&one_line(text), LONGEST);
    console.write_all(format!("\r\ngarm-bootstrap: {line}\r\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_one_line_and_not_a_long_one() {
        let dir = tempfile::tempdir().unwrap();
        let console = dir.path().join("console");
        std::fs::write(&console, "login: ").unwrap();
        tell_at(&console, &format!("[x] fetch: failed to\nread {}", "y".repeat(9000))).unwrap();
        let text = std::fs::read_to_string(&console).unwrap();
        let line = text.strip_prefix("login: \r\ngarm-bootstrap: ").unwrap();
        assert!(line.starts_with("[x] fetch: failed to | read") && line.len() < 420, "{line}");
        assert_eq!(line.lines().count(), 1);
    }

    #[test]
    fn a_console_that_nobody_reads_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("console");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(tell_at(&pipe, "text").is_err());
    }
}
