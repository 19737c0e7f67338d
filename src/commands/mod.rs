//! What a person or a script does beside a boot.
//!
//! Owns: one room per command, each from its settings to its exit code. Must not: begin a boot, or say
//! anything to GARM that nobody asked for. A mistake in the settings is therefore told to the person only.

pub mod check;
pub mod prepare;
pub mod report;
pub mod timeline;

use std::io::Write as _;

use crate::config::{self, Bootstrap, ConfigError, Layers, LogSettings};
use crate::log;

/// Completes `layers` by the config file, begins to log, and reads the bootstrap file.
fn open(layers: &mut Layers) -> Result<Option<Bootstrap>, ConfigError> {
    begin(layers)?;
    config::bootstrap(layers)
}

/// The same without the bootstrap file.
fn begin(layers: &mut Layers) -> Result<(), ConfigError> {
    let file = layers.read_file();
    let settings = LogSettings::resolve(layers);
    log::init(settings.as_ref().copied().unwrap_or_default(), &layers.env);
    file?;
    settings?;
    Ok(())
}

/// Writes `text` to stdout; a reader that has gone (`| head`) has seen enough.
fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}
