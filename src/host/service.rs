//! The service manager that started us: systemd, or whoever speaks its protocol.
//!
//! Facts: sd_notify(3), sd_listen_fds(3), systemd.service(5) (`FileDescriptorStoreMax=`). It is told of
//! our state, pinged where it watches us, and keeps file descriptors for the next one of us. Without one
//! every call here does nothing. Must not: hold us up, or fail a boot.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use tracing::debug;

use crate::text::one_line;

/// A manager that does not read is not waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// The first file descriptor that a manager passes (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;

/// The way to the manager.
#[derive(Debug, Clone, Default)]
pub struct Service {
    socket: Option<Arc<UnixDatagram>>,
    /// How often it wants to hear that we are alive; after that it ends us.
    pub watchdog: Option<Duration>,
}

impl Service {
    /// From what the manager has put into our environment: `NOTIFY_SOCKET`, `WATCHDOG_USEC`,
    /// `WATCHDOG_PID`.
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let socket = variable("NOTIFY_SOCKET").filter(|path| !path.is_empty());
        let socket = socket.and_then(|path| match connect(&path) {
            Ok(socket) => Some(Arc::new(socket)),
            Err(error) => {
                debug!("the service manager cannot be reached: {error}");
                None
            }
        });
        let ours = variable("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        let watchdog = variable("WATCHDOG_USEC").and_then(|text| text.parse().ok());
        let watchdog = watchdog.filter(|usec| ours && *usec > 0).map(Duration::from_micros);
        Self { watchdog: watchdog.filter(|_| socket.is_some()), socket }
    }

    pub fn is_there(&self) -> bool {
        self.socket.is_some()
    }

    /// One line about what we are doing, as `systemctl status` shows it.
    pub fn status(&self, text: &str) {
        self.send(&format!("STATUS={}", one_line(text)));
    }

    pub fn ready(&self) {
        self.send("READY=1");
    }

    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    pub fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    /// Has the manager keep a copy of `fd` under `name`, until [`Self::forget`] or the service's end. Not
    /// even a hang-up takes it away: what was said last may still be in it.
    pub fn keep(&self, name: &str, fd: BorrowedFd<'_>) {
        let Some(socket) = &self.socket else { return };
        let text = format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0");
        let (fds, text) = ([fd.as_raw_fd()], [IoSlice::new(text.as_bytes())]);
        let rights = [ControlMessage::ScmRights(&fds)];
        let flags = MsgFlags::MSG_NOSIGNAL;
        if let Err(error) = sendmsg::<UnixAddr>(socket.as_raw_fd(), &text, &rights, flags, None) {
            debug!("the service manager did not take {name}: {error}");
        }
    }

    pub fn forget(&self, name: &str) {
        self.send(&format!("FDSTOREREMOVE=1\nFDNAME={name}"));
    }

    fn send(&self, text: &str) {
        let Some(socket) = &self.socket else { return };
        if let Err(error) = socket.send(text.as_bytes()) {
            debug!("the service manager did not take \"{text}\": {error}");
        }
    }
}

fn connect(path: &str) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    match path.strip_prefix('@') {
        Some(name) => socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?,
        None => socket.connect(path)?,
    }
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// The file descriptors that the manager has kept for us, by name: from `LISTEN_PID`, `LISTEN_FDS` and
/// `LISTEN_FDNAMES`. Call it once and before anything is started: from here on no child inherits them.
pub fn kept(variable: impl Fn(&str) -> Option<String>) -> BTreeMap<String, OwnedFd> {
    if variable("LISTEN_PID") != Some(std::process::id().to_string()) {
        return BTreeMap::new();
    }
    let count = variable("LISTEN_FDS").and_then(|text| text.parse::<RawFd>().ok()).unwrap_or(0);
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let names = names.split(':').map(str::to_owned);
    (FIRST..FIRST + count.clamp(0, 64))
        .zip(names)
        .filter_map(|(fd, name)| Some((name, own(fd)?)))
        .collect()
}

/// A descriptor of our own; `None` if there is none of that number.
#[expect(unsafe_code, reason = "a number that was passed by the manager becomes a descriptor once")]
fn own(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: nobody else in this process knows of it: it was open before us, and this is called once.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    if fcntl(&fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).is_ok() {
        return Some(fd);
    }
    // Not open: there is nothing to close either.
    std::mem::forget(fd);
    None
}

#[cfg(test)]
mod tests {
    use std::io::IoSliceMut;
    use std::os::fd::AsFd as _;

    use nix::sys::socket::{ControlMessageOwned, recvmsg};

    use super::*;

    fn manager() -> (tempfile::TempDir, UnixDatagram, Service) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let path = path.to_str().unwrap().to_owned();
        let service = Service::of(move |name| (name == "NOTIFY_SOCKET").then(|| path.clone()));
        (dir, socket, service)
    }

    fn heard(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 4096];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn the_manager_is_told_in_its_own_words() {
        let (_dir, manager, service) = manager();
        service.status("two\nlines");
        service.ready();
        service.alive();
        service.forget("x");
        let all: Vec<String> = (0..4).map(|_| heard(&manager)).collect();
        assert_eq!(
            all,
            ["STATUS=two | lines", "READY=1", "WATCHDOG=1", "FDSTOREREMOVE=1\nFDNAME=x"]
        );
    }

    #[test]
    fn a_descriptor_is_handed_over_with_its_name() {
        let (_dir, manager, service) = manager();
        let (reader, writer) = io::pipe().unwrap();
        service.keep("pipe", reader.as_fd());
        drop(reader);
        let mut text = [0; 256];
        let mut buffers = [IoSliceMut::new(&mut text)];
        let mut space = nix::cmsg_space!([RawFd; 1]);
        let flags = MsgFlags::empty();
        let message =
            recvmsg::<UnixAddr>(manager.as_raw_fd(), &mut buffers, Some(&mut space), flags)
                .unwrap();
        let rights: Vec<ControlMessageOwned> = message.cmsgs().unwrap().collect();
        assert!(matches!(&rights[..], [ControlMessageOwned::ScmRights(fds)] if fds.len() == 1));
        let length = message.bytes;
        assert!(String::from_utf8_lossy(&text[..length]).contains("FDNAME=pipe\nFDPOLL=0"));
        // The pipe still has a reader: the one that was handed over.
        io::Write::write_all(&mut &writer, b"x").unwrap();
    }

    #[test]
    fn an_abstract_socket_is_reached() {
        let name = format!("garm-bootstrap-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        Service::of(|variable| (variable == "NOTIFY_SOCKET").then(|| format!("@{name}"))).ready();
        assert_eq!(heard(&manager), "READY=1");
    }

    #[test]
    fn the_watchdog_is_ours_only_if_the_manager_says_so() {
        let (dir, _manager, _) = manager();
        let path = dir.path().join("notify").to_str().unwrap().to_owned();
        let with = |pid: Option<&str>| {
            let pid = pid.map(str::to_owned);
            let path = path.clone();
            let service = Service::of(move |name| match name {
                "NOTIFY_SOCKET" => Some(path.clone()),
                "WATCHDOG_USEC" => Some("120000000".to_owned()),
                "WATCHDOG_PID" => pid.clone(),
                _ => None,
            });
            service.watchdog
        };
        assert_eq!(with(None), Some(Duration::from_secs(120)));
        assert_eq!(with(Some("1")), None);
        assert!(!Service::of(|_| None).is_there());
    }

    #[test]
    fn descriptors_for_somebody_else_are_left_alone() {
        let variable = |name: &str| match name {
            "LISTEN_PID" => Some("1".to_owned()),
            "LISTEN_FDS" => Some("3".to_owned()),
            _ => None,
        };
        assert!(kept(variable).is_empty());
    }
}
