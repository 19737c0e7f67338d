//! Files that people name: the config file, the token, certificates, the bootstrap JSON.
//!
//! Owns: that reading one comes to an end, whatever it is. A pipe that nobody writes into would hold up
//! the boot for ever, and signals with it; a device would fill the memory.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// More than any of these files has.
const LARGEST: u64 = 16 << 20;
/// How long the writer of a pipe may take.
const LONGEST: Duration = Duration::from_secs(10);
/// What some editors put in front of a text.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// The whole file, or stdin if `path` is `-`; without a byte order mark.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let bytes = if path == Path::new("-") {
        in_time(|| whole(io::stdin()))?
    } else if std::fs::metadata(path)?.is_file() {
        whole(File::open(path)?)?
    } else {
        let path = path.to_owned();
        in_time(move || whole(File::open(path)?))?
    };
    Ok(bytes.strip_prefix(BOM).map(<[u8]>::to_vec).unwrap_or(bytes))
}

/// The same, as text.
pub(super) fn read_text(path: &Path) -> io::Result<String> {
    let not_text = |_| io::Error::new(io::ErrorKind::InvalidData, "it is not text in UTF-8");
    String::from_utf8(read(path)?).map_err(not_text)
}

fn whole(from: impl io::Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(io::Error::other(format!("it is longer than {} MiB", LARGEST >> 20)));
    }
    Ok(bytes)
}

/// The thread of a read that never ends is left to the end of the process, which is near then.
fn in_time(read: impl FnOnce() -> io::Result<Vec<u8>> + Send + 'static) -> io::Result<Vec<u8>> {
    let (sender, done) = mpsc::channel();
    std::thread::Builder::new().name("reader".to_owned()).spawn(move || sender.send(read()))?;
    done.recv_timeout(LONGEST).unwrap_or_else(|_| {
        let why = format!("it did not come to an end within {} s", LONGEST.as_secs());
        Err(io::Error::new(io::ErrorKind::TimedOut, why))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"\xef\xbb\xbf{}").unwrap();
        assert_eq!(read_text(&path).unwrap(), "{}");
        std::fs::write(&path, b"\xff\xfe{\0}\0").unwrap();
        assert_eq!(read_text(&path).unwrap_err().to_string(), "it is not text in UTF-8");
    }

    #[test]
    fn a_file_without_an_end_is_refused() {
        let error = read(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(error.to_string(), "it is longer than 16 MiB");
    }

    #[test]
    fn a_pipe_is_read_when_somebody_writes_into_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let writer = std::thread::spawn({
            let path = path.clone();
            move || std::fs::write(path, "the text")
        });
        assert_eq!(read_text(&path).unwrap(), "the text");
        writer.join().unwrap().unwrap();
    }
}
