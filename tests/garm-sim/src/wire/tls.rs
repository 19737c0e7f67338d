//! A private certificate authority and the server certificate that it signs for loopback.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

use crate::options::ServerCertificate;

/// A certificate authority that no trust store knows.
pub struct PrivateCa {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl std::fmt::Debug for PrivateCa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PrivateCa").finish_non_exhaustive()
    }
}

impl PrivateCa {
    /// A fresh authority with that common name.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("ring makes P-256 keys");
        let issuer =
            CertifiedIssuer::self_signed(params, key).expect("these parameters are always valid");
        Self { issuer }
    }

    /// Its certificate.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A TLS server for loopback, `localhost` and `garm.example`, HTTP/1.1 only.
    pub(crate) fn acceptor(&self, kind: ServerCertificate) -> TlsAcceptor {
        let names: &[&str] = match kind {
            ServerCertificate::WrongName => &["other.example"],
            _ => &["127.0.0.1", "::1", "localhost", "garm.example"],
        };
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("the names are plain ASCII");
        match kind {
            ServerCertificate::Expired => params.not_after = date_time_ymd(2021, 1, 1),
            ServerCertificate::NotYetValid => params.not_before = date_time_ymd(2090, 1, 1),
            _ => {}
        }
        params.distinguished_name.push(DnType::CommonName, "garm-sim");
        let key = KeyPair::generate().expect("ring makes P-256 keys");
        let certificate = params.signed_by(&key, &self.issuer).expect("the authority may sign");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring supports TLS 1.2 and 1.3")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("the key belongs to the certificate");
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }
}
