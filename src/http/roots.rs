//! The certificate authorities of the system.
//!
//! One bundle file is read instead of a folder of some 280: that was 15 ms of every boot (measured
//! 2026-12-01). `SSL_CERT_FILE` and `SSL_CERT_DIR` take the system's place, as with OpenSSL. Nothing
//! here fails: a system without a store still has the roots that are built into the binary.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tracing::{debug, warn};

/// Where distributions keep the bundle.
const BUNDLES: [&str; 8] = [
    "/etc/ssl/certs/ca-certificates.crt", // Debian, Ubuntu, Gentoo, Arch, Alpine
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Red Hat, Fedora
    "/etc/pki/tls/certs/ca-bundle.crt",   // older Red Hat
    "/etc/ssl/ca-bundle.pem",             // SUSE
    "/var/lib/ca-certificates/ca-bundle.pem", // newer SUSE
    "/etc/ssl/cert.pem",                  // Alpine, BSD-like
    "/etc/pki/tls/cacert.pem",            // OpenELEC
    "/opt/etc/ssl/certs/ca-certificates.crt", // Entware
];
/// Read where there is no bundle.
const FOLDERS: [&str; 2] = ["/etc/ssl/certs", "/etc/pki/tls/certs"];
/// A folder with more files than this is none of certificates.
const FILES_MAX: usize = 2000;

/// Where this process is to look.
#[derive(Debug, Clone, Default)]
pub struct Store {
    /// `SSL_CERT_FILE`.
    pub file: Option<PathBuf>,
    /// `SSL_CERT_DIR`: folders with colons between them.
    pub folders: Option<String>,
}

impl Store {
    /// Every certificate of the store, each once, not yet looked at closely.
    pub(super) fn load(&self) -> Vec<CertificateDer<'static>> {
        let found = if self.file.is_none() && self.folders.is_none() {
            of_system(Path::new("/"))
        } else {
            self.of_variables()
        };
        let mut seen = HashSet::new();
        found.into_iter().filter(|der| seen.insert(der.clone())).collect()
    }

    fn of_variables(&self) -> Vec<CertificateDer<'static>> {
        let mut found = Vec::new();
        if let Some(file) = &self.file {
            match read(file) {
                Ok(certificates) => found.extend(certificates),
                Err(why) => warn!("SSL_CERT_FILE ({}) cannot be used: {why}", file.display()),
            }
        }
        for folder in self.folders.iter().flat_map(|f| f.split(':')).filter(|f| !f.is_empty()) {
            match of_folder(Path::new(folder)) {
                Ok(certificates) => found.extend(certificates),
                Err(why) => warn!("SSL_CERT_DIR ({folder}) cannot be used: {why}"),
            }
        }
        found
    }
}

fn of_system(root: &Path) -> Vec<CertificateDer<'static>> {
    let below = |path: &str| root.join(path.trim_start_matches('/'));
    let bundles = BUNDLES.iter().filter_map(|path| read(&below(path)).ok());
    let folders = FOLDERS.iter().filter_map(|path| of_folder(&below(path)).ok());
    let mut stores = bundles.chain(folders).filter(|certificates| !certificates.is_empty());
    stores.next().unwrap_or_else(|| {
        debug!("this system has no certificate authorities; those built in will do");
        Vec::new()
    })
}

fn of_folder(folder: &Path) -> std::io::Result<Vec<CertificateDer<'static>>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)?.take(FILES_MAX).flatten() {
        let path = entry.path();
        let is_candidate = path.extension().is_some_and(is_certificate_name) && path.is_file();
        if is_candidate {
            found.extend(read(&path).unwrap_or_default());
        }
    }
    Ok(found)
}

/// `.pem`, `.crt`, `.cer`, and OpenSSL's hash links, which end in a number.
fn is_certificate_name(extension: &OsStr) -> bool {
    let extension = extension.to_string_lossy();
    matches!(&*extension, "pem" | "crt" | "cer") || extension.parse::<u32>().is_ok()
}

/// What cannot be read in the file is left out: a system's store is not ours to complain of.
fn read(file: &Path) -> std::io::Result<Vec<CertificateDer<'static>>> {
    let bytes = std::fs::read(file)?;
    Ok(CertificateDer::pem_slice_iter(&bytes).filter_map(Result::ok).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::Trust;
    use super::*;

    fn pem(index: usize) -> String {
        Trust::pem_of(&webpki_root_certs::TLS_SERVER_ROOT_CERTS[index..=index])
    }

    #[test]
    fn the_first_bundle_that_is_there_is_read_and_the_folder_only_without_one() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("etc/ssl/certs");
        assert!(of_system(dir.path()).is_empty());
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("one.pem"), pem(0)).unwrap();
        fs::write(folder.join("README"), pem(1)).unwrap();
        assert_eq!(of_system(dir.path()).len(), 1);
        fs::write(folder.join("ca-certificates.crt"), pem(0) + &pem(1)).unwrap();
        assert_eq!(of_system(dir.path()).len(), 2);
    }

    #[test]
    fn the_variables_take_the_systems_place() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("bundle");
        fs::write(&file, pem(2)).unwrap();
        fs::write(dir.path().join("0a.0"), pem(2)).unwrap();
        fs::write(dir.path().join("0b.0"), pem(3)).unwrap();
        let folders = format!("/does/not/exist:{}", dir.path().display());
        let store = Store { file: Some(file), folders: Some(folders) };
        assert_eq!(store.load().len(), 2, "each certificate once");
        let missing = Store { file: Some(dir.path().join("none")), folders: None };
        assert!(missing.load().is_empty());
    }
}
