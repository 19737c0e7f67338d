//! The phase in which the instance finds out who it is to be.

use tracing::{info, warn};

use super::fetch::Papers;
use super::{Boot, assignment, told};
use crate::config::Jit;
use crate::error::Error;
use crate::garm::RunnerMetadata;
use crate::host::os;
use crate::http::{Http, HttpError};
use crate::tools::download::Candidate;

/// Who the runner is to be.
pub(super) struct Assignment {
    pub(super) candidates: Vec<Candidate>,
    pub(super) papers: Papers,
}

impl Boot {
    /// Says `installing`, and asks GARM who this is to be. A GARM that cannot say (v0.1 does not know
    /// the question, and one with a CA bundle drops the connection) is taken at what was given.
    pub(super) async fn discover(&self) -> Result<Assignment, Error> {
        let system = os::Os::read();
        let message = format!(
            "garm-bootstrap {} is booting on {} {} ({})",
            env!("CARGO_PKG_VERSION"),
            system.name,
            system.version,
            os::forge_arch()
        );
        // Asked beside the first word, over a connection that will be needed anyway.
        let first_word = self.reporter.first_contact(&message);
        let early = async { Ok(self.garm.runner_metadata_once().await) };
        let ((), early) =
            tokio::try_join!(self.step("first word", first_word), self.step("metadata", early))?;
        // Only a good answer counts: before the first word GARM may not have known this instance.
        let mut metadata = match early {
            Ok(metadata) => Ok(metadata),
            Err(_) => self.garm.runner_metadata().await,
        };
        if self.config.bootstrap.is_none() && metadata.as_ref().is_err_and(HttpError::is_dropped) {
            // Nothing else says what the metadata says: better to be sure that it is no bad hour.
            metadata = self.garm.runner_metadata().await;
        }
        let metadata = match metadata {
            Ok(metadata) => Some(metadata),
            Err(error) if error.status() == Some(401) || error.is_dropped() => {
                info!(
                    "GARM cannot say who this instance is to be; going by what was given: {error}"
                );
                None
            }
            Err(source) => return Err(told::garm("the runner's metadata", source)),
        };
        self.trust_the_forge(metadata.as_ref()).await?;
        let candidates = assignment::candidates(&self.config, metadata.as_ref())?;
        let papers = if self.is_jit(metadata.as_ref()).await? {
            Papers::Jit
        } else {
            Papers::Token(Box::new(assignment::registration(&self.config, metadata.as_ref())?))
        };
        Ok(Assignment { candidates, papers })
    }

    async fn is_jit(&self, metadata: Option<&RunnerMetadata>) -> Result<bool, Error> {
        match (self.config.jit, metadata) {
            (Jit::Wanted(jit), _) | (Jit::Guessed(jit), None) => Ok(jit),
            (_, Some(metadata)) => Ok(metadata.jit_enabled),
            // Every GARM knows this question, and its answer tells the kind.
            (Jit::Unknown, None) => match self.garm.credential("runner").await {
                Ok(_) => Ok(true),
                Err(error) if error.status() == Some(404) => Ok(false),
                Err(source) => Err(told::garm("the JIT files", source)),
            },
        }
    }

    /// Makes the forge's own authorities known, where GARM has some.
    async fn trust_the_forge(&self, metadata: Option<&RunnerMetadata>) -> Result<(), Error> {
        let bundles = match metadata {
            Some(metadata) => metadata.ca_bundles.clone(),
            None => self.garm.cert_bundle().await.unwrap_or_else(|error| {
                warn!("GARM's certificates of the forge are not known: {error}");
                std::collections::BTreeMap::default()
            }),
        };
        let mut trust = self.config.trust.clone();
        let mut added = 0;
        for pem in assignment::pem_texts(&bundles) {
            added += trust.add_pem(&pem, "GARM's CA bundle");
        }
        if added > 0 {
            info!("trusting {added} more certificate authorities of the forge");
            self.http.replace(Http::new(&trust, &self.config.proxy, vec![])?);
            self.trust.replace(trust);
        }
        Ok(())
    }
}
