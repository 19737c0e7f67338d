//! Who this instance is to be: what a person said, what GARM says, and what the instance was made with.
//!
//! The order is that of the settings: a person's word, GARM's metadata, the bootstrap file. The
//! checksum goes with its download: a mirror of the same file is held to the same sum.

use std::collections::BTreeMap;

use url::Url;

use crate::config::{Bootstrap, Config};
use crate::error::Error;
use crate::forge::github::configure::Registration;
use crate::garm::{RunnerMetadata, Tools};
use crate::host::os;
use crate::tools::digest::Sha256;
use crate::tools::download::Candidate;

/// Where the runner can be downloaded; empty if nobody says.
pub(super) fn candidates(
    config: &Config,
    metadata: Option<&RunnerMetadata>,
) -> Result<Vec<Candidate>, Error> {
    let told = metadata
        .map(|m| &m.runner_tools)
        .filter(|tools| !tools.download_url.is_empty())
        .or_else(|| config.bootstrap.as_ref()?.tools_for(os::forge_arch()));
    let given = config.sha256.as_deref().map(sha256).transpose()?;
    if config.downloads.is_empty() {
        let own = told.map(|tools| candidate(tools, given)).transpose()?;
        return Ok(own.into_iter().collect());
    }
    let mirror = |url: &Url| {
        let same_file = told.filter(|tools| file_name(url) == Some(tools.filename.as_str()));
        let told_sum = same_file.and_then(|tools| sum_of(tools).transpose()).transpose()?;
        Ok(Candidate { url: url.clone(), sha256: given.or(told_sum), token: None })
    };
    config.downloads.iter().map(mirror).collect()
}

fn candidate(tools: &Tools, given: Option<Sha256>) -> Result<Candidate, Error> {
    let url = Url::parse(&tools.download_url).map_err(|_| Error::Nonsense {
        what: "the runner's download URL",
        value: tools.download_url.clone(),
        expected: "a URL",
    })?;
    let token = tools.temp_download_token.clone();
    Ok(Candidate { url, sha256: given.or(sum_of(tools)?), token })
}

fn sum_of(tools: &Tools) -> Result<Option<Sha256>, Error> {
    let text = tools.sha256_checksum.trim();
    if text.is_empty() { Ok(None) } else { sha256(text).map(Some) }
}

/// A checksum that is there but cannot be read must not count as none.
fn sha256(text: &str) -> Result<Sha256, Error> {
    text.parse().map_err(|_| Error::Nonsense {
        what: "the runner's checksum",
        value: text.to_owned(),
        expected: "a sha256 of 64 hexadecimal digits",
    })
}

fn file_name(url: &Url) -> Option<&str> {
    url.path_segments()?.next_back().filter(|name| !name.is_empty())
}

/// What config.sh is to be told.
pub(super) fn registration(
    config: &Config,
    metadata: Option<&RunnerMetadata>,
) -> Result<Registration, Error> {
    let wishes = &config.registration;
    let bootstrap = config.bootstrap.as_ref();
    let told_url = first([
        metadata.map(|m| m.runner_registration_url.as_str()),
        bootstrap.map(|b| b.repo_url.as_str()),
    ]);
    let url = match (&wishes.url, told_url) {
        (Some(url), _) => url.clone(),
        (None, Some(told)) => Url::parse(told).map_err(|_| Error::Nonsense {
            what: "the URL to register at",
            value: told.to_owned(),
            expected: "a URL",
        })?,
        (None, None) => {
            return Err(Error::NotTold { what: "where to register", how: "give --url" });
        }
    };
    let name = wishes.name.as_deref().or_else(|| name(config, metadata, bootstrap));
    let name = name.ok_or(Error::NotTold { what: "the runner's name", how: "give --name" })?;
    // GARM's metadata does not tell the group; the bootstrap file does.
    let told_group = first([bootstrap.map(|b| b.runner_group.as_str())]);
    let group = wishes.group.as_deref().or(told_group).filter(|group| *group != "default");
    let told_labels = metadata.map(|m| m.runner_labels.clone()).filter(|l| !l.is_empty());
    let labels = wishes.labels.clone().or(told_labels);
    Ok(Registration {
        url,
        name: name.to_owned(),
        labels: labels.or_else(|| bootstrap.map(|b| b.labels.clone())).unwrap_or_default(),
        group: group.map(str::to_owned),
        work: wishes.work.clone(),
        ephemeral: wishes.ephemeral,
        no_default_labels: wishes.no_default_labels,
        disable_update: wishes.disable_update,
        replace: wishes.replace,
    })
}

/// GARM matches runners by name, so the token's own word on it is as good as the metadata's.
fn name<'a>(
    config: &'a Config,
    metadata: Option<&'a RunnerMetadata>,
    bootstrap: Option<&'a Bootstrap>,
) -> Option<&'a str> {
    first([
        metadata.map(|m| m.runner_name.as_str()),
        bootstrap.map(|b| b.name.as_str()),
        config.access.claims.name.as_deref(),
    ])
}

fn first<const N: usize>(candidates: [Option<&str>; N]) -> Option<&str> {
    candidates.into_iter().flatten().find(|text| !text.trim().is_empty())
}

/// The PEM texts of a CA bundle as GARM's metadata carries it; what is not base64 is taken as PEM.
pub(super) fn pem_texts(bundles: &BTreeMap<String, String>) -> impl Iterator<Item = Vec<u8>> {
    use base64::Engine as _;
    bundles.values().map(|text| {
        base64::engine::general_purpose::STANDARD
            .decode(text.trim())
            .unwrap_or_else(|_| text.clone().into_bytes())
    })
}
