//! Accounts, read from `/etc/passwd` and `/etc/group` themselves.
//!
//! Must not: go through NSS. A static binary cannot load NSS modules safely, and the accounts that a
//! runner image makes are in those two files.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::{getgid, getgroups, getuid};

/// Who a process runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The login name; `uid-<number>` where no passwd entry exists (a container with a random uid).
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups, the primary one included.
    pub groups: Vec<u32>,
    /// `None` where no passwd entry exists.
    pub home: Option<PathBuf>,
    pub shell: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    #[error("find the user \"{name}\": no such user in {}", passwd.display())]
    Unknown { name: String, passwd: PathBuf },
    #[error("read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
}

impl Account {
    /// The account called `name`; a number is taken as a uid.
    pub fn find(name: &str) -> Result<Self, UsersError> {
        Self::find_in(Path::new("/etc"), name)
    }

    /// The account that every system has, in an image that names none.
    fn root() -> Self {
        Self {
            name: "root".to_owned(),
            uid: 0,
            gid: 0,
            groups: vec![0],
            home: None,
            shell: PathBuf::from("/bin/sh"),
        }
    }

    /// The account that this process runs as, passwd entry or not.
    pub fn current() -> Self {
        let uid = getuid().as_raw();
        Self::find(&uid.to_string()).unwrap_or_else(|_| Self {
            name: format!("uid-{uid}"),
            uid,
            gid: getgid().as_raw(),
            groups: getgroups()
                .map(|gs| gs.iter().map(|g| g.as_raw()).collect())
                .unwrap_or_default(),
            home: None,
            shell: PathBuf::from("/bin/sh"),
        })
    }

    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// The first folder on the way to `path` that this account may not enter, by its mode; what does not
    /// exist is no hindrance. Access control lists are not looked at.
    pub fn barred_from(&self, path: &Path) -> Option<PathBuf> {
        let mut above: Vec<&Path> = path.ancestors().collect();
        above.reverse();
        above.into_iter().find(|folder| !self.may_enter(folder)).map(Path::to_owned)
    }

    fn may_enter(&self, folder: &Path) -> bool {
        let Ok(meta) = std::fs::metadata(folder) else { return true };
        let shift = match () {
            () if self.is_root() => return true,
            () if meta.uid() == self.uid => 6,
            () if self.groups.contains(&meta.gid()) => 3,
            () => 0,
        };
        !meta.is_dir() || (meta.mode() >> shift) & 0o1 != 0
    }

    fn find_in(etc: &Path, name: &str) -> Result<Self, UsersError> {
        let passwd = etc.join("passwd");
        let number: Option<u32> = name.parse().ok();
        let entries = match read(&passwd) {
            Err(_) if name == "root" || number == Some(0) => return Ok(Self::root()),
            entries => entries?,
        };
        let fields = entries
            .lines()
            .map(|line| line.split(':').collect::<Vec<_>>())
            .filter(|f| f.len() >= 7)
            .find(|f| f[0] == name || number.is_some_and(|n| f[2].parse() == Ok(n)))
            .ok_or_else(|| UsersError::Unknown { name: name.to_owned(), passwd: passwd.clone() })?;
        let (Ok(uid), Ok(gid)) = (fields[2].parse(), fields[3].parse()) else {
            return Err(UsersError::Unknown { name: name.to_owned(), passwd });
        };
        let shell = if fields[6].is_empty() { "/bin/sh" } else { fields[6] };
        Ok(Self {
            name: fields[0].to_owned(),
            uid,
            gid,
            groups: groups_of(etc, fields[0], gid),
            home: Some(PathBuf::from(fields[5])),
            shell: PathBuf::from(shell),
        })
    }
}

/// All groups of the user, `primary` first; an unreadable group file leaves the primary one.
fn groups_of(etc: &Path, user: &str, primary: u32) -> Vec<u32> {
    let mut groups = vec![primary];
    for line in read(&etc.join("group")).unwrap_or_default().lines() {
        let mut fields = line.split(':').skip(2);
        let gid = fields.next().and_then(|gid| gid.parse().ok());
        let members = fields.next().unwrap_or_default();
        if let Some(gid) = gid
            && members.split(',').any(|m| m == user)
            && !groups.contains(&gid)
        {
            groups.push(gid);
        }
    }
    groups
}

fn read(path: &Path) -> Result<String, UsersError> {
    std::fs::read(path)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .map_err(|source| UsersError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
impl Account {
    /// An account that no system has.
    pub(crate) fn somebody() -> Self {
        Self {
            name: "somebody".to_owned(),
            uid: 4711,
            gid: 4712,
            groups: vec![4712],
            home: None,
            shell: PathBuf::from("/bin/sh"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn etc() -> tempfile::TempDir {
        let etc = tempfile::tempdir().unwrap();
        std::fs::write(
            etc.path().join("passwd"),
            "root:x:0:0:root:/root:/bin/bash\nci:x:1001:1001:CI:/srv/ci:/bin/zsh\nbad:x:y:z:a:b:c\n",
        )
        .unwrap();
        std::fs::write(
            etc.path().join("group"),
            "root:x:0:\ndocker:x:990:someone,ci\nci:x:1001:\nkvm:x:991:cicero\n",
        )
        .unwrap();
        etc
    }

    #[test]
    fn an_account_is_found_by_name_and_by_number_with_its_groups() {
        let etc = etc();
        let by_name = Account::find_in(etc.path(), "ci").unwrap();
        assert_eq!(by_name, Account::find_in(etc.path(), "1001").unwrap());
        assert_eq!(by_name.groups, [1001, 990]);
        assert_eq!(by_name.home.as_deref(), Some(Path::new("/srv/ci")));
    }

    #[test]
    fn root_is_known_where_there_is_no_passwd() {
        let empty = tempfile::tempdir().unwrap();
        let root = Account::find_in(empty.path(), "root").unwrap();
        assert_eq!((root.name.as_str(), root.is_root()), ("root", true));
        assert_eq!(root, Account::find_in(empty.path(), "0").unwrap());
        assert!(Account::find_in(empty.path(), "ci").is_err());
    }

    #[test]
    fn an_unknown_user_is_named_in_the_error() {
        let error = Account::find_in(etc().path(), "nobody-here").unwrap_err().to_string();
        assert!(error.starts_with("find the user \"nobody-here\": no such user in"), "{error}");
    }

    #[test]
    fn a_folder_that_the_account_may_not_enter_is_found_on_the_way() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let closed = dir.path().join("closed");
        std::fs::create_dir(&closed).unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
        let stranger =
            Account { uid: 4_000_000, gid: 4_000_000, groups: vec![], ..Account::current() };
        assert_eq!(stranger.barred_from(&closed.join("a/b")), Some(closed.clone()));
        assert_eq!(stranger.barred_from(&dir.path().join("x")), None);
        assert_eq!(Account { uid: 0, ..stranger }.barred_from(&closed), None);
    }

    #[test]
    fn a_broken_entry_is_not_taken_for_root() {
        assert!(Account::find_in(etc().path(), "bad").is_err());
    }
}
