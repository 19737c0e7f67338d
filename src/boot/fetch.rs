//! The phase that brings the runner to its home, and its papers beside it.

use std::time::Instant;

use tracing::{info, warn};

use super::discover::Assignment;
use super::kept::{self, Kept, Place};
use super::{Boot, Goal, authorities, told};
use crate::error::Error;
use crate::forge::github::configure::Registration;
use crate::forge::github::files::{self, JitFiles};
use crate::http::Patience;
use crate::secret::Secret;
use crate::state;
use crate::timeline::Phase;
use crate::tools::download::{self, Candidate};
use crate::tools::locate::{self, Found};
use crate::tools::{blocking, copy, place};

/// How the runner proves who it is.
pub(super) enum Papers {
    Jit,
    /// Boxed, for it is much larger than nothing.
    Token(Box<Registration>),
}

/// The same, fetched.
pub(super) enum Fetched {
    Jit(JitFiles),
    Token {
        registration: Box<Registration>,
        token: Secret,
        at: Instant,
    },
    /// An earlier boot, which was killed, has registered the runner.
    Registered {
        agent_id: u64,
    },
}

impl Boot {
    /// Brings the runner to its home, and its papers beside it.
    pub(super) async fn fetch(&self, assignment: Assignment) -> Result<Fetched, Error> {
        let Assignment { candidates, papers } = assignment;
        // All are let run to an end of their own: dropping one half-way would leave its threads behind.
        let trust = self.trust.borrow().clone();
        let patience = self.garm.patience();
        let halt = patience.cancel.child_token();
        let while_useful = Patience { cancel: halt.clone(), ..patience.clone() };
        let papers = self.step("papers", async {
            let papers = self.fetch_papers(papers).await;
            // Without papers the runner is of no use, and its download need not be waited for.
            if papers.is_err() {
                halt.cancel();
            }
            papers
        });
        let runner = self.step("runner", self.fetch_runner(&candidates, &while_useful));
        let system = authorities::add_to_system(&self.config, &trust, &patience.cancel);
        let system = self.step("authorities", system);
        let (papers, system_knows) = match self.goal {
            Goal::Run => {
                let (runner, papers, system_knows) = tokio::join!(runner, papers, system);
                let papers = papers?;
                runner?;
                (papers, system_knows)
            }
            // The token is kept in the home, which the runner makes.
            Goal::Install => {
                let (runner, system_knows) = tokio::join!(runner, system);
                runner?;
                (papers.await?, system_knows)
            }
        };
        self.defaults.replace(authorities::variables(&self.config, &trust, system_knows));
        Ok(papers)
    }

    async fn fetch_runner(
        &self,
        candidates: &[Candidate],
        patience: &Patience,
    ) -> Result<(), Error> {
        let (home, assets) = (self.config.home.clone(), self.config.assets.clone());
        let owner = self.config.switch_to.clone();
        let found = blocking(move || locate::find(&home, assets.as_deref())).await;
        let home = self.config.home.clone();
        match found {
            Found::InHome(runner) => {
                let version = runner.version.unwrap_or_default();
                info!(version, "the runner is in its home already");
                blocking(move || place::sweep(&home)).await;
            }
            Found::InAssets(runner) => {
                info!(
                    version = runner.version,
                    "copying the runner from {}",
                    runner.home.display()
                );
                self.reporter.installing("copying the runner from the image");
                let cancel = patience.cancel.clone();
                let user = self.config.user.clone();
                let once = self.goal == Goal::Run && self.config.registration.ephemeral;
                blocking(move || {
                    let (owner, user, cancel) = (owner.as_ref(), &user, &cancel);
                    copy::bring(&runner, &home, &copy::Order { owner, user, once, cancel })
                })
                .await?;
            }
            Found::Nothing(reasons) => {
                for reason in reasons {
                    info!("no runner to use: {reason}");
                }
                self.reporter.installing("downloading the runner");
                let http = self.http.borrow().clone();
                let (owner, pace) = (owner.as_ref(), download::Pace::default());
                // Boxed, for the futures of one download in its many stages are large.
                let unpacked =
                    Box::pin(download::download(&http, candidates, &home, owner, pace, patience))
                        .await?;
                self.timeline.borrow_mut().add_bytes(Phase::Fetch, unpacked.compressed_bytes);
                info!(files = unpacked.files, bytes = unpacked.bytes, "the runner is unpacked");
            }
        }
        Ok(())
    }

    async fn fetch_papers(&self, papers: Papers) -> Result<Fetched, Error> {
        match papers {
            Papers::Jit => {
                let file = async |name| {
                    let file = self.garm.credential(name).await;
                    file.map_err(|source| told::garm("the JIT files", source))
                };
                // In two rows: so many connections are open since `discover`.
                let others = async {
                    Ok((file("credentials").await?, file("credentials_rsaparams").await?))
                };
                let (runner, (credentials, rsa_params)) = tokio::try_join!(file("runner"), others)?;
                Ok(Fetched::Jit(JitFiles::check(runner, credentials, rsa_params)?))
            }
            Papers::Token(registration) => self.registration_token(registration).await,
        }
    }

    /// The registration token, which GARM hands out once: an earlier boot of this instance, which was
    /// killed, may have it.
    async fn registration_token(
        &self,
        mut registration: Box<Registration>,
    ) -> Result<Fetched, Error> {
        let kept = self.kept();
        match kept.find() {
            Some(kept::Found::Registered { agent_id })
                if files::registered(&self.config.home).is_ok_and(|id| id == agent_id) =>
            {
                info!(agent_id, "the runner was registered by an earlier start of this instance");
                return Ok(Fetched::Registered { agent_id });
            }
            Some(kept::Found::Token { token, at }) => {
                info!("an earlier start of this instance has fetched the registration token");
                // It may have registered under our name, which is nobody else's.
                registration.replace = true;
                return Ok(Fetched::Token { registration, token, at });
            }
            _ => {}
        }
        let token = self.garm.registration_token().await.map_err(told::registration_token)?;
        kept.keep_token(&token);
        Ok(Fetched::Token { registration, token, at: Instant::now() })
    }

    /// Where the registration is kept over a restart: in the runtime folder; but an installation has only
    /// the home in common with the boot that follows it.
    pub(super) fn kept(&self) -> Kept {
        let runtime = match state::folder(&self.config.dirs.runtime) {
            Ok(folder) => Some(Place::Runtime(folder)),
            Err(error) => {
                warn!("failed to {error}; a restart would be without the registration");
                None
            }
        };
        let home = Place::Home(self.config.home.clone(), self.config.user.clone());
        let places = match self.goal {
            Goal::Run => runtime.into_iter().chain([home]).collect(),
            Goal::Install => [home].into_iter().chain(runtime).collect(),
        };
        Kept::new(places, &self.instance)
    }
}
