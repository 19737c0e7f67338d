//! How GARM writes "nothing", and secrets on the wire.

use serde::{Deserialize, Deserializer};

use crate::secret::Secret;

/// `null` for a list or a text means an empty one.
pub(crate) fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A secret that may be missing, `null` or empty.
pub(crate) fn secret<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Secret>, D::Error> {
    let value: Option<String> = Option::deserialize(deserializer)?;
    Ok(value.filter(|v| !v.trim().is_empty()).map(|v| Secret::new(&v)))
}
