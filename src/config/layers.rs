//! Where a setting's value comes from: flags beat the environment, the environment beats the file.
//!
//! Owns: the environment of this process; no other place reads it. Must not: interpret a value.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use super::settings::{ALL, CONFIG, Kind, Setting};
use super::{ConfigError, given};

const DEFAULT_FILE: &str = "/etc/garm-bootstrap/config.toml";

/// The environment as this process got it.
#[derive(Debug, Clone, Default)]
pub struct Environment(Vec<(OsString, OsString)>);

impl Environment {
    pub fn of_process() -> Self {
        Self(std::env::vars_os().collect())
    }

    pub fn pairs(&self) -> &[(OsString, OsString)] {
        &self.0
    }

    /// The value of `name`; an empty one counts as not set, for that is how templates write "nothing".
    pub fn get(&self, name: &str) -> Option<String> {
        let value = self.0.iter().find(|(key, _)| key == OsStr::new(name))?.1.to_string_lossy();
        (!value.trim().is_empty()).then(|| value.into_owned())
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(key, _)| key == OsStr::new(name))
    }
}

impl FromIterator<(OsString, OsString)> for Environment {
    fn from_iter<T: IntoIterator<Item = (OsString, OsString)>>(pairs: T) -> Self {
        Self(pairs.into_iter().collect())
    }
}

/// Where a value was found, as an error names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Flag(&'static str),
    Env(&'static str),
    File(&'static str, PathBuf),
    Bootstrap(&'static str),
    Metadata(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => write!(f, "--{name}"),
            Self::Env(name) => write!(f, "${name}"),
            Self::File(name, path) => write!(f, "\"{name}\" in {}", path.display()),
            Self::Bootstrap(name) => write!(f, "\"{name}\" in the bootstrap file"),
            Self::Metadata(name) => write!(f, "\"{name}\" in GARM's metadata"),
        }
    }
}

/// A value and where it came from.
#[derive(Debug, Clone)]
pub struct Found {
    pub values: Vec<String>,
    pub origin: Origin,
}

impl Found {
    /// The value; of a list, the first.
    pub fn value(&self) -> &str {
        self.values.first().map_or("", String::as_str)
    }
}

/// What was typed: values by setting name.
pub type Flags = BTreeMap<&'static str, Vec<String>>;

/// All layers, before anything is interpreted.
#[derive(Debug, Clone, Default)]
pub struct Layers {
    flags: Flags,
    pub env: Environment,
    file: Option<(PathBuf, BTreeMap<&'static str, Vec<String>>)>,
}

impl Layers {
    /// Without the config file: what is known before it has been read.
    pub fn new(flags: Flags, env: Environment) -> Self {
        Self { flags, env, file: None }
    }

    /// Reads the config file: the one that was named, or the default one where it exists.
    pub fn read_file(&mut self) -> Result<(), ConfigError> {
        let named = self.find(&CONFIG).map(|found| PathBuf::from(found.value()));
        let path = named.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_FILE));
        let text = match given::read_text(&path) {
            Ok(text) => text,
            Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(());
            }
            Err(source) => return Err(ConfigError::Read { path, source }),
        };
        let values = parse_file(&path, &text)?;
        self.file = Some((path, values));
        Ok(())
    }

    /// The config file that was read.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_ref().map(|(path, _)| path.as_path())
    }

    pub fn find(&self, setting: &'static Setting) -> Option<Found> {
        let name = setting.name;
        if let Some(values) = self.flags.get(name) {
            return Some(Found { values: values.clone(), origin: Origin::Flag(name) });
        }
        for env in setting.env {
            if let Some(value) = self.env.get(env) {
                let values = match setting.kind {
                    Kind::List => words(&value),
                    _ => vec![value],
                };
                return Some(Found { values, origin: Origin::Env(env) });
            }
        }
        let (path, file) = self.file.as_ref()?;
        let values = file.get(name)?.clone();
        Some(Found { values, origin: Origin::File(name, path.clone()) })
    }
}

fn words(text: &str) -> Vec<String> {
    text.split(|c: char| c == ',' || c.is_whitespace())
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

fn parse_file(path: &Path, text: &str) -> Result<BTreeMap<&'static str, Vec<String>>, ConfigError> {
    let error = |why: String| ConfigError::File { path: path.to_owned(), why };
    let table: toml::Table =
        text.parse().map_err(|e: toml::de::Error| error(e.to_string().trim_end().to_owned()))?;
    let mut values = BTreeMap::new();
    for (key, value) in table {
        let setting = ALL
            .iter()
            .find(|s| s.name == key && s.kind != Kind::Secret && s.name != CONFIG.name)
            .ok_or_else(|| error(unknown_key(&key)))?;
        let written = written(&value, setting.kind).ok_or_else(|| {
            let list = match setting.kind {
                Kind::List | Kind::Commas => ", or a list of texts",
                _ => "",
            };
            error(format!("\"{key}\" must be a text, a number, true or false{list}"))
        })?;
        values.insert(setting.name, written);
    }
    Ok(values)
}

fn unknown_key(key: &str) -> String {
    let nearest = ALL
        .iter()
        .filter(|s| s.kind != Kind::Secret)
        .map(|s| (strsim::jaro(key, s.name), s.name))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map_or("", |(_, name)| name);
    format!("there is no setting \"{key}\"; the nearest one is \"{nearest}\"")
}

fn written(value: &toml::Value, kind: Kind) -> Option<Vec<String>> {
    match value {
        toml::Value::String(text) => Some(vec![text.clone()]),
        toml::Value::Integer(number) => Some(vec![number.to_string()]),
        toml::Value::Boolean(yes) => Some(vec![yes.to_string()]),
        toml::Value::Array(values) => {
            let texts: Option<Vec<&str>> = values.iter().map(toml::Value::as_str).collect();
            match kind {
                Kind::List => Some(texts?.into_iter().map(str::to_owned).collect()),
                Kind::Commas => Some(vec![texts?.join(",")]),
                _ => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::settings;
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Environment {
        pairs.iter().map(|(k, v)| (OsString::from(k), OsString::from(v))).collect()
    }

    #[test]
    fn flags_beat_the_environment_and_that_beats_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        std::fs::write(&path, "home = \"/file\"\nuser = \"file\"\nname = \"file\"\n").unwrap();
        let flags = Flags::from([
            ("home", vec!["/flag".to_owned()]),
            ("config", vec![path.to_string_lossy().into_owned()]),
        ]);
        let mut layers = Layers::new(
            flags,
            env(&[("RUNNER_HOME", "/env"), ("GARM_RUNNER_USER", "env"), ("RUNNER_NAME", "")]),
        );
        layers.read_file().unwrap();
        assert_eq!(layers.find(&settings::HOME).unwrap().value(), "/flag");
        assert_eq!(layers.find(&settings::USER).unwrap().value(), "env");
        assert_eq!(
            layers.find(&settings::NAME).unwrap().value(),
            "file",
            "an empty variable is not set"
        );
        assert!(layers.find(&settings::GROUP).is_none());
    }

    #[test]
    fn our_own_name_in_the_environment_beats_the_images() {
        let layers =
            Layers::new(Flags::new(), env(&[("METADATA_URL", "b"), ("GARM_METADATA_URL", "a")]));
        assert_eq!(layers.find(&settings::METADATA_URL).unwrap().value(), "a");
    }

    #[test]
    fn an_unknown_key_is_named_with_its_nearest_neighbour() {
        let error = parse_file(Path::new("c.toml"), "meta-url = \"x\"").unwrap_err().to_string();
        assert_eq!(
            error,
            "read the config file c.toml: there is no setting \"meta-url\"; the nearest one is \"metadata-url\""
        );
        assert!(parse_file(Path::new("c.toml"), "token = \"x\"").is_err(), "a secret has no key");
        assert!(parse_file(Path::new("c.toml"), "home = ").is_err());
    }
}
