//! Where GARM is and the token for it: found first, so that whatever else is wrong can be told to GARM.

use std::fmt;
use std::path::PathBuf;

use url::Url;

use super::parse::http_url;
use super::settings::{CALLBACK_URL, METADATA_URL, Setting, TOKEN, TOKEN_FILE};
use super::{Bootstrap, ConfigError, Found, Layers, Origin, given};
use crate::garm::Access;
use crate::secret::Secret;

/// The name of the systemd credential that may hold the token.
const CREDENTIAL: &str = "garm-token";

const NO_METADATA: ConfigError =
    ConfigError::Missing { what: "metadata-url", how: "give --metadata-url or METADATA_URL" };
const NO_CALLBACK: ConfigError =
    ConfigError::Missing { what: "callback-url", how: "give --callback-url or CALLBACK_URL" };
const NO_TOKEN: ConfigError =
    ConfigError::Missing { what: "token", how: "give --token-file, GARM_TOKEN or BEARER_TOKEN" };

pub fn access(layers: &Layers, bootstrap: Option<&Bootstrap>) -> Result<Access, ConfigError> {
    let metadata =
        url(layers, &METADATA_URL, bootstrap.map(|b| ("metadata-url", &b.metadata_url)))?;
    let callback =
        url(layers, &CALLBACK_URL, bootstrap.map(|b| ("callback-url", &b.callback_url)))?;
    let token = token(layers, bootstrap)?;
    Ok(Access::new(
        &metadata.ok_or(NO_METADATA)?,
        &callback.ok_or(NO_CALLBACK)?,
        token.ok_or(NO_TOKEN)?,
    ))
}

/// As much of it as it takes to say something: the metadata URL may be what is wrong.
pub fn access_to_report(
    layers: &Layers,
    bootstrap: Option<&Bootstrap>,
) -> Result<Access, ConfigError> {
    let callback =
        url(layers, &CALLBACK_URL, bootstrap.map(|b| ("callback-url", &b.callback_url)))?;
    let callback = callback.ok_or(NO_CALLBACK)?;
    let token = token(layers, bootstrap)?.ok_or(NO_TOKEN)?;
    Ok(Access::new(&callback, &callback, token))
}

fn url(
    layers: &Layers,
    setting: &'static Setting,
    bootstrap: Option<(&'static str, &String)>,
) -> Result<Option<Url>, ConfigError> {
    let from_bootstrap = || {
        let (key, value) = bootstrap.filter(|(_, value)| !value.is_empty())?;
        Some(Found { values: vec![value.clone()], origin: Origin::Bootstrap(key) })
    };
    layers.find(setting).or_else(from_bootstrap).map(|found| http_url(&found)).transpose()
}

/// Where the token is; the order of the variants is the order in which they count.
#[derive(Debug)]
pub enum PlaceOfToken {
    File(PathBuf),
    Credential(PathBuf),
    Environment(Found),
    Bootstrap(Secret),
}

impl fmt::Display for PlaceOfToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "the file {}", path.display()),
            Self::Credential(path) => write!(f, "the systemd credential {}", path.display()),
            Self::Environment(found) => write!(f, "{}", found.origin),
            Self::Bootstrap(_) => f.write_str("the bootstrap file"),
        }
    }
}

/// A file that was named, a systemd credential, the environment, the bootstrap file; in this order.
pub fn place_of_token(layers: &Layers, bootstrap: Option<&Bootstrap>) -> Option<PlaceOfToken> {
    if let Some(found) = layers.find(&TOKEN_FILE) {
        return Some(PlaceOfToken::File(PathBuf::from(found.value())));
    }
    if let Some(dir) = layers.env.get("CREDENTIALS_DIRECTORY") {
        let path = PathBuf::from(dir).join(CREDENTIAL);
        if path.exists() {
            return Some(PlaceOfToken::Credential(path));
        }
    }
    let from_environment = layers.find(&TOKEN).map(PlaceOfToken::Environment);
    let from_bootstrap = || bootstrap?.instance_token.clone().map(PlaceOfToken::Bootstrap);
    from_environment.or_else(from_bootstrap)
}

fn token(layers: &Layers, bootstrap: Option<&Bootstrap>) -> Result<Option<Secret>, ConfigError> {
    let Some(place) = place_of_token(layers, bootstrap) else { return Ok(None) };
    let error = |why: String| ConfigError::Token { place: place.to_string(), why };
    let token = match &place {
        PlaceOfToken::File(path) | PlaceOfToken::Credential(path) => {
            Secret::new(&given::read_text(path).map_err(|source| error(source.to_string()))?)
        }
        PlaceOfToken::Environment(found) => Secret::new(found.value()),
        PlaceOfToken::Bootstrap(token) => token.clone(),
    };
    if token.is_empty() {
        return Err(error("it is empty".to_owned()));
    }
    // GARM would refuse it in words that mean another thing, or it would not even pass as a header.
    if let Some(odd) = token.expose().chars().find(|c| !c.is_ascii_graphic()) {
        let what = match odd {
            odd if odd.is_whitespace() => "more than one word".to_owned(),
            odd => format!("the character U+{:04X}", u32::from(odd)),
        };
        return Err(error(format!("it holds {what}, so it is not a token")));
    }
    Ok(Some(token))
}
