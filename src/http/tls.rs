//! TLS as the client speaks it: ring's algorithms, and never a certificate of our own.

use std::sync::{Arc, OnceLock};

use rustls::crypto::{CryptoProvider, KeyProvider, ring};
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::SigningKey;
use rustls::{ClientConfig, Error};

use super::{ClientError, Trust};

/// A client that believes `trust`.
pub(super) fn config(trust: &Trust) -> Result<ClientConfig, ClientError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| ClientError(error.to_string()))?;
    Ok(builder.with_root_certificates(trust.roots()).with_no_client_auth())
}

fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let make = || CryptoProvider { key_provider: &NoKeys, ..ring::default_provider() };
    PROVIDER.get_or_init(|| Arc::new(make())).clone()
}

/// Signs nothing: without client certificates there is nothing to sign, and the code for it stays out of
/// the binary.
#[derive(Debug)]
struct NoKeys;

impl KeyProvider for NoKeys {
    fn load_private_key(&self, _: PrivateKeyDer<'static>) -> Result<Arc<dyn SigningKey>, Error> {
        Err(Error::General("client certificates are not supported".into()))
    }
}
