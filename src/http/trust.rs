//! Which certificate authorities are believed.
//!
//! The system's store and the roots built into the binary are always believed (an image without
//! `ca-certificates` must still boot); [`Trust`] holds what comes on top. Verification is never off.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tracing::warn;

/// Extra certificate authorities, DER-encoded.
#[derive(Debug, Clone, Default)]
pub struct Trust {
    extra: Vec<CertificateDer<'static>>,
}

impl Trust {
    /// Adds every usable certificate of a PEM bundle; a broken one is skipped with a warning that
    /// names `origin`. Returns how many were added.
    pub fn add_pem(&mut self, bundle: &[u8], origin: &str) -> usize {
        let before = self.extra.len();
        for (index, parsed) in CertificateDer::pem_slice_iter(bundle).enumerate() {
            let usable = parsed.map_err(|error| error.to_string()).and_then(|der| {
                let mut store = rustls::RootCertStore::empty();
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

    pub fn is_empty(&self) -> bool {
        self.extra.is_empty()
    }

    /// The extra authorities as one PEM bundle, for programs that take a file.
    pub fn to_pem(&self) -> String {
        use base64::Engine as _;
        let mut pem = String::new();
        for der in &self.extra {
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

    pub(super) fn certificates(&self) -> impl Iterator<Item = &CertificateDer<'static>> {
        webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().chain(&self.extra)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_certificate_is_skipped_and_the_others_are_kept() {
        let mut good = Trust::default();
        good.extra.push(webpki_root_certs::TLS_SERVER_ROOT_CERTS[0].clone());
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let bundle = format!("text\r\n{broken}{}", good.to_pem()).replace('\n', "\r\n");
        let mut trust = Trust::default();
        assert_eq!(trust.add_pem(bundle.as_bytes(), "the test"), 1);
        assert_eq!(trust.to_pem(), good.to_pem());
    }
}
