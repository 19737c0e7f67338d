//! Which certificate authorities are believed.
//!
//! The system's store and the roots built into the binary are always believed (an image without
//! `ca-certificates` must still boot); [`Trust`] holds what comes on top. Verification is never off.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tracing::warn;

use super::Store;

/// The system's certificate authorities and extra ones, DER-encoded.
#[derive(Debug, Clone, Default)]
pub struct Trust {
    system: Arc<[CertificateDer<'static>]>,
    extra: Vec<CertificateDer<'static>>,
}

impl Trust {
    /// What `store` holds. It is read now, and once.
    pub fn of_system(store: &Store) -> Self {
        Self { system: store.load().into(), extra: Vec::new() }
    }

    /// Adds every usable certificate of a PEM bundle; a broken one is skipped with a warning that
    /// names `origin`. Returns how many were added.
    pub fn add_pem(&mut self, bundle: &[u8], origin: &str) -> usize {
        let before = self.extra.len();
        for (index, parsed) in CertificateDer::pem_slice_iter(bundle).enumerate() {
            let usable = parsed.map_err(|error| error.to_string()).and_then(|der| {
                let mut store = RootCertStore::empty();
                store.add(der.clone()).map(|()| der).map_err(|error| error.to_string())
            });
            match usable {
                Ok(der) if !self.extra.contains(&der) => self.extra.push(der),
                Ok(_) => {}
                Err(why) => warn!("certificate {} of {origin} is skipped: {why}", index + 1),
            }
        }
        self.extra.len() - before
    }

    /// Whether nothing was added to what the system has.
    pub fn is_empty(&self) -> bool {
        self.extra.is_empty()
    }

    /// The extra authorities as PEM, one text each.
    pub fn extra_pems(&self) -> impl Iterator<Item = String> {
        self.extra.iter().map(|der| Self::pem_of(std::slice::from_ref(der)))
    }

    /// Those of them that the system does not have, as PEM, one text each.
    pub fn unknown_to_system(&self) -> impl Iterator<Item = String> {
        let unknown = self.extra.iter().filter(|der| !self.system.contains(der));
        unknown.map(|der| Self::pem_of(std::slice::from_ref(der)))
    }

    /// Everything that is believed, as one PEM bundle, for programs that take a file in place of the
    /// system's.
    pub fn to_pem(&self) -> String {
        let system: &[CertificateDer<'_>] = if self.system.is_empty() {
            webpki_root_certs::TLS_SERVER_ROOT_CERTS
        } else {
            &self.system
        };
        Self::pem_of(system) + &Self::pem_of(&self.extra)
    }

    pub(super) fn pem_of(certificates: &[CertificateDer<'_>]) -> String {
        use base64::Engine as _;
        let mut pem = String::new();
        for der in certificates {
            pem.push_str("-----BEGIN CERTIFICATE-----\n");
            let text = base64::engine::general_purpose::STANDARD.encode(der);
            for line in text.as_bytes().chunks(64) {
                pem.push_str(&String::from_utf8_lossy(line));
                pem.push('\n');
            }
            pem.push_str("-----END CERTIFICATE-----\n");
        }
        pem
    }

    /// Ready for the TLS library; what it cannot use of the system's store is left out.
    pub(super) fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        let built_in = webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter();
        roots.add_parsable_certificates(
            self.system.iter().chain(built_in).chain(&self.extra).cloned(),
        );
        roots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_certificate_is_skipped_and_the_others_are_kept() {
        let good = Trust::pem_of(&webpki_root_certs::TLS_SERVER_ROOT_CERTS[..1]);
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let bundle = format!("text\r\n{broken}{good}").replace('\n', "\r\n");
        let mut trust = Trust::default();
        assert_eq!(trust.add_pem(bundle.as_bytes(), "the test"), 1);
        assert_eq!(trust.extra_pems().collect::<String>(), good);
        assert!(trust.to_pem().ends_with(&good));
    }
}
