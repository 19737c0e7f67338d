//! Scenarios with real processes. The fake Listener is a shell script in a folder of its own.

mod drain;
mod ends;
mod output;
mod update;

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::*;

/// A runner's home with a scripted Listener, and how it is to be launched.
pub(super) struct Home {
    dir: tempfile::TempDir,
    pub(super) launch: Launch,
}

/// A started one.
pub(super) struct Life {
    pub(super) home: Home,
    pub(super) supervisor: Supervisor,
    printed: Sink,
}

/// What was forwarded to "our stdout".
#[derive(Clone, Default)]
pub(super) struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Home {
    /// `script` is what the Listener does. It has `say WORDS` for a line of its own, `idle` to wait for
    /// a signal, and its home as the working folder.
    pub(super) fn new(script: &str) -> Self {
        const PRELUDE: &str = "say() { echo \"2026-12-01 02:03:04Z: $*\"; }\n\
            idle() { while :; do sleep 60 & wait $!; done; }\n\
            started=$(cat starts 2>/dev/null || echo 0); echo $((started + 1)) >starts\n";
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().to_owned();
        std::fs::create_dir(home.join("bin")).unwrap();
        // A link to the shell, and not a script: one that was just written may still be open for
        // writing in a child that another test has forked, and then cannot be executed.
        std::os::unix::fs::symlink("/bin/sh", home.join("bin/Runner.Listener")).unwrap();
        std::fs::write(home.join("listener.sh"), format!("{PRELUDE}{script}")).unwrap();
        for file in [".runner", ".credentials"] {
            std::fs::write(home.join(file), "{}").unwrap();
        }
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let launch = Launch {
            program: Program {
                path: home.join("bin/Runner.Listener"),
                args: vec!["listener.sh".into()],
                env: vec![("PATH".into(), path.into())],
                dir: home.clone(),
                user: None,
            },
            home,
            dialect: Dialect::GitHub,
            drain_timeout: None,
            stop_grace: LONG,
            limits: Limits::default(),
            ghost_limit: None,
            service: Service::default(),
            memory: None,
            relaunch: Some(Relaunch {
                limit: 2,
                pause: Duration::from_millis(10),
                update_limit: LONG,
            }),
        };
        Self { dir, launch }
    }

    pub(super) fn start(self) -> Life {
        let printed = Sink::default();
        let (supervisor, _) = Supervisor::start(self.launch.clone(), printed.clone());
        Life { home: self, supervisor, printed }
    }

    pub(super) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path().join(name)).unwrap_or_default()
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Life {
    pub(super) async fn until(&self, wanted: impl Fn(&State) -> bool) -> State {
        in_time(self.supervisor.wait_for(|state| wanted(state) || matches!(state, State::Ended(_))))
            .await
    }

    pub(super) async fn listening(&self) {
        let state = self.until(|state| *state == State::Listening).await;
        assert_eq!(state, State::Listening);
    }

    pub(super) async fn running(&self) {
        let state = self.until(|state| matches!(state, State::Running { .. })).await;
        assert!(matches!(state, State::Running { .. }), "{state:?}");
    }

    pub(super) async fn end(&self) -> End {
        *in_time(self.supervisor.wait_ended()).await
    }

    /// Waits for the Listener to have written something into the file `name`.
    pub(super) async fn written(&self, name: &str) -> String {
        in_time(async {
            loop {
                let text = self.home.read(name);
                if text.ends_with('\n') {
                    return text.trim().to_owned();
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
    }

    pub(super) fn printed(&self) -> String {
        String::from_utf8_lossy(&self.printed.0.lock().unwrap()).into_owned()
    }
}

/// Longer than any scenario takes.
pub(super) const LONG: Duration = Duration::from_mins(1);

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG / 2, what).await.expect("what a scenario waits for comes in time")
}

/// Whether the process is there and no zombie.
pub(super) fn is_alive(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}
