//! The handle that tests hold: starts the simulation on a thread of its own, stops it on drop.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::archive::{ArchiveSize, RunnerScript};
use crate::controller::Controller;
use crate::controller::tools::forge_arch;
use crate::forge::{Forge, Registration, RunnerEvent};
use crate::instance::Instance;
use crate::options::{InstanceSpec, SimOptions};
use crate::record::{Call, Host, Record, table_head};
use crate::server::{Shared, router};
use crate::urls::Urls;
use crate::wire::fault::Fault;
use crate::wire::listener::{Connection, Connections, WireListener};
use crate::wire::storm::Weather;
use crate::wire::tls::PrivateCa;

/// A running simulation of GARM and of a forge, on loopback.
#[derive(Debug)]
pub struct Sim {
    shared: Arc<Shared>,
    ca: Option<PrivateCa>,
    garm: Mutex<Site>,
    forge: Mutex<Site>,
    // Last, so that everything above is still there while tasks end. `None` only while dropping.
    runtime: Option<Runtime>,
}

/// A host that can go down and come back on the same port.
#[derive(Debug)]
struct Site {
    host: Host,
    port: u16,
    connections: Arc<Connections>,
    serving: Option<JoinHandle<()>>,
}

impl Sim {
    /// Starts a simulation.
    ///
    /// # Panics
    /// When loopback sockets cannot be had; a test cannot go on without them.
    pub fn start(options: SimOptions) -> Self {
        Self::try_start(options).expect("the simulation needs free loopback ports and a thread")
    }

    /// Starts a simulation, for programs that can say why it failed.
    pub fn try_start(options: SimOptions) -> io::Result<Self> {
        apart(|| Self::build(options))
    }

    fn build(mut options: SimOptions) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("garm-sim")
            .enable_all()
            .build()?;
        let ca = (options.tls || options.forge_tls).then(|| PrivateCa::new("garm-sim private CA"));
        let acceptor = ca.as_ref().map(|ca| ca.acceptor(options.certificate));
        if options.forge_ca_known && options.forge_tls {
            options.ca_bundle = ca.as_ref().map(PrivateCa::pem);
        }
        let (garm_tls, forge_tls) =
            (acceptor.clone().filter(|_| options.tls), acceptor.filter(|_| options.forge_tls));
        let sites = [Host::Garm, Host::Forge, Host::Forge].map(|host| Site {
            host,
            port: 0,
            connections: Arc::default(),
            serving: None,
        });
        let [mut garm, mut forge, mut events] = sites;
        let bind = |port, tls, site: &Site| {
            runtime.block_on(WireListener::bind(port, tls, Arc::clone(&site.connections)))
        };
        let garm_listener = bind(options.port, garm_tls.clone(), &garm)?;
        let forge_listener = bind(options.forge_port, forge_tls.clone(), &forge)?;
        let events_listener = match &forge_tls {
            Some(_) => Some(bind(0, None, &events)?),
            None => None,
        };
        let origin = |scheme: &str, listener: &WireListener| {
            format!("{scheme}://127.0.0.1:{}", listener.address().port())
        };
        let scheme = |tls: bool| if tls { "https" } else { "http" };
        let forge_url = origin(scheme(options.forge_tls), &forge_listener);
        let urls = Urls {
            garm: origin(scheme(options.tls), &garm_listener),
            events: events_listener
                .as_ref()
                .map_or_else(|| forge_url.clone(), |listener| origin("http", listener)),
            forge: forge_url,
        };
        let garm_ca = ca.as_ref().filter(|_| options.tls).map(PrivateCa::pem);
        let storm = options.storm.map(Weather::new);
        let shared = Arc::new(Shared {
            forge: Arc::new(Forge::new(options.ranges, options.webhooks)),
            controller: Arc::new(Controller::new(options, urls, garm_ca)),
            record: Arc::new(Record::new()),
            faults: Mutex::default(),
            storm: Mutex::new(storm),
        });
        if shared.controller.options.archive.size == ArchiveSize::Large {
            // It takes seconds: not in the middle of somebody's boot.
            shared.controller.archive();
        }
        garm.serve(&runtime, &shared, garm_listener);
        forge.serve(&runtime, &shared, forge_listener);
        if let Some(listener) = events_listener {
            events.serve(&runtime, &shared, listener);
        }
        Ok(Self {
            shared,
            ca,
            garm: Mutex::new(garm),
            forge: Mutex::new(forge),
            runtime: Some(runtime),
        })
    }

    fn urls(&self) -> &Urls {
        &self.shared.controller.urls
    }

    /// GARM's origin, without a trailing slash.
    pub fn base_url(&self) -> String {
        self.urls().garm.clone()
    }

    /// What an instance gets as `METADATA_URL`.
    pub fn metadata_url(&self) -> String {
        self.urls().metadata()
    }

    /// What an instance gets as `CALLBACK_URL`.
    pub fn callback_url(&self) -> String {
        self.urls().callback()
    }

    /// The forge's origin, on another port than GARM's.
    pub fn forge_url(&self) -> String {
        self.urls().forge.clone()
    }

    /// Where the x64 archive is downloaded from.
    pub fn download_url(&self) -> String {
        let version = &self.shared.controller.options.archive.version;
        let arch = forge_arch("amd64").unwrap_or_default();
        let filename = format!("actions-runner-linux-{arch}-{version}.tar.gz");
        self.urls().download(version, &filename)
    }

    /// The same archive under another host name (`localhost`): a third origin, for redirects.
    pub fn mirror_url(&self) -> String {
        self.download_url().replace("127.0.0.1", "localhost")
    }

    /// The CA that signed the servers' certificates, when any of them speaks TLS.
    pub fn ca_pem(&self) -> Option<String> {
        self.ca.as_ref().map(PrivateCa::pem)
    }

    /// The archive's bytes.
    pub fn archive_bytes(&self) -> Vec<u8> {
        self.shared.controller.archive().bytes.to_vec()
    }

    /// The archive's checksum, lower case.
    pub fn archive_sha256(&self) -> String {
        self.shared.controller.archive().sha256.clone()
    }

    /// The archive's tree, unpacked into `home` (a runner that is in the image already).
    pub fn unpack_runner(&self, home: &Path) -> io::Result<()> {
        crate::archive::unpack(&self.shared.controller.archive().bytes, home)
    }

    /// Overwrites the script of a runner in `home`.
    pub fn write_script(&self, home: &Path, script: &RunnerScript) -> io::Result<()> {
        let mut script = script.clone();
        if self.shared.controller.options.forge_tls {
            script = script.events_url(&self.urls().events);
        }
        script.write(home)
    }

    /// Has GARM create an instance.
    pub fn create(&self, spec: InstanceSpec) -> Instance {
        let name = self.shared.controller.create(spec);
        self.instance(&name)
    }

    /// The handle of an instance by its name.
    pub fn instance(&self, name: &str) -> Instance {
        Instance::new(Arc::clone(&self.shared), name.to_owned())
    }

    /// Signs any claims as GARM would, for tokens that are wrong in one way.
    pub fn sign(&self, claims: &serde_json::Value) -> String {
        self.shared.controller.sign(claims)
    }

    /// Adds a fault.
    pub fn fault(&self, fault: Fault) {
        self.faults().push(fault);
    }

    /// Takes every fault back.
    pub fn clear_faults(&self) {
        self.faults().clear();
    }

    fn faults(&self) -> std::sync::MutexGuard<'_, Vec<Fault>> {
        let faults = &self.shared.faults;
        faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every call so far, in the order in which they came.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.record.calls()
    }

    /// The time on the clock of [`Call::at`].
    pub fn now(&self) -> Duration {
        self.shared.record.now()
    }

    /// The calls as a table.
    pub fn calls_table(&self) -> String {
        let mut table = table_head() + "\n";
        for call in self.calls() {
            table.push_str(&call.row());
            table.push('\n');
        }
        table
    }

    /// Waits until `holds` is true of the calls; false when it was not within `limit`. It is
    /// looked at after every change of the simulation, not only after calls.
    pub fn wait_until(&self, limit: Duration, mut holds: impl FnMut(&[Call]) -> bool) -> bool {
        let found = self.shared.record.wait(limit, |calls| holds(calls).then_some(()));
        found.is_some()
    }

    /// What runners told the forge, in order.
    pub fn runner_events(&self) -> Vec<RunnerEvent> {
        self.shared.forge.events()
    }

    /// The runners that are registered with a token now.
    pub fn registrations(&self) -> Vec<Registration> {
        self.shared.forge.registrations()
    }

    /// GARM goes down: connections reset, new ones refused.
    pub fn garm_down(&self) {
        self.down(&self.garm);
    }

    /// GARM comes back on its port with everything it knew.
    pub fn garm_up(&self) -> io::Result<()> {
        let tls = self.shared.controller.options.tls;
        self.up(&self.garm, tls)
    }

    /// The forge goes down.
    pub fn forge_down(&self) {
        self.down(&self.forge);
    }

    /// The forge comes back on its port.
    pub fn forge_up(&self) -> io::Result<()> {
        let tls = self.shared.controller.options.forge_tls;
        self.up(&self.forge, tls)
    }

    fn down(&self, site: &Mutex<Site>) {
        let mut site = site.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(serving), Some(runtime)) = (site.serving.take(), &self.runtime) {
            serving.abort();
            // The port is closed once the task is gone.
            let _ = apart(|| runtime.block_on(serving));
        }
        site.connections.cut();
    }

    fn up(&self, site: &Mutex<Site>, tls: bool) -> io::Result<()> {
        let mut site = site.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(runtime) = self.runtime.as_ref().filter(|_| site.serving.is_none()) else {
            return Ok(());
        };
        let kind = self.shared.controller.options.certificate;
        let acceptor = self.ca.as_ref().filter(|_| tls).map(|ca| ca.acceptor(kind));
        let connections = Arc::clone(&site.connections);
        let binding = WireListener::bind(site.port, acceptor, connections);
        let listener = apart(|| runtime.block_on(binding))?;
        site.serve(runtime, &self.shared, listener);
        Ok(())
    }
}

/// Does something on a thread of its own and waits for it: a runtime must not be entered or
/// ended from a thread of another one, and tests may be async.
fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let done = std::thread::scope(|scope| scope.spawn(work).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl Site {
    fn serve(&mut self, runtime: &Runtime, shared: &Arc<Shared>, listener: WireListener) {
        self.port = listener.address().port();
        let service = router(Arc::clone(shared), self.host)
            .into_make_service_with_connect_info::<Connection>();
        let serving = axum::serve(listener, service);
        self.serving = Some(runtime.spawn(async move {
            // It ends with the runtime or when aborted, never by itself.
            let _ = serving.await;
        }));
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            apart(|| runtime.shutdown_timeout(Duration::from_secs(2)));
        }
    }
}
