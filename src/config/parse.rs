//! From text to types, with errors that name where the text stood.

use std::str::FromStr as _;
use std::time::Duration;

use tracing::level_filters::LevelFilter;
use url::Url;

use super::settings::{LOG_FORMAT, LOG_LEVEL, Setting};
use super::{ConfigError, Found, Layers};

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Journal where stderr is the journal, else text.
    Auto,
    Text,
    /// No time stamps, a priority prefix (sd-daemon(3)).
    Journal,
    Json,
}

#[derive(Debug, Clone, Copy)]
pub struct LogSettings {
    pub level: LevelFilter,
    pub format: LogFormat,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { level: LevelFilter::INFO, format: LogFormat::Auto }
    }
}

impl LogSettings {
    pub fn resolve(layers: &Layers) -> Result<Self, ConfigError> {
        let level = read(layers, &LOG_LEVEL, "one of error, warn, info, debug, trace", |text| {
            LevelFilter::from_str(text).ok()
        })?;
        let format =
            read(layers, &LOG_FORMAT, "one of auto, text, journal, json", |text| match text {
                "auto" => Some(LogFormat::Auto),
                "text" => Some(LogFormat::Text),
                "journal" => Some(LogFormat::Journal),
                "json" => Some(LogFormat::Json),
                _ => None,
            })?;
        let default = Self::default();
        Ok(Self { level: level.unwrap_or(default.level), format: format.unwrap_or(default.format) })
    }
}

/// The value of `setting` as `parse` reads it.
pub(super) fn read<T>(
    layers: &Layers,
    setting: &'static Setting,
    expected: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, ConfigError> {
    layers.find(setting).map(|found| value(&found, expected, parse)).transpose()
}

pub(super) fn value<T>(
    found: &Found,
    expected: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T, ConfigError> {
    let text = found.value().trim();
    parse(text).ok_or_else(|| ConfigError::BadValue {
        origin: found.origin.clone(),
        value: crate::secret::redact(text).into_owned(),
        expected,
    })
}

pub(super) fn http_url(found: &Found) -> Result<Url, ConfigError> {
    let expected = if found.value().is_ascii() {
        "an http:// or https:// address"
    } else {
        "an address in ASCII: write the name of its host as xn--..., as DNS has it"
    };
    value(found, expected, parse_http_url)
}

pub(super) fn parse_http_url(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    (matches!(url.scheme(), "http" | "https") && url.has_host()).then_some(url)
}

pub(super) fn duration(
    layers: &Layers,
    setting: &'static Setting,
) -> Result<Option<Duration>, ConfigError> {
    read(layers, setting, "a duration such as 90s, 5m or 2h", parse_duration)
}

/// What is longer than anything here lives is as good as for ever, and can be added to a time.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    Some(humantime::parse_duration(text).ok()?.min(LONGEST))
}

pub(super) fn boolean(
    layers: &Layers,
    setting: &'static Setting,
) -> Result<Option<bool>, ConfigError> {
    read(layers, setting, "true or false", parse_boolean)
}

pub(super) fn parse_boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" => Some(false),
        _ => None,
    }
}
