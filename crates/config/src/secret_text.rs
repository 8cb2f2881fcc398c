//! A text that is never shown: a key or a token.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

/// A secret. Only [`SecretText::expose`] returns it: `Debug` and serialization mask it.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct SecretText(String);

impl SecretText {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself. Only use it to prove who this process is.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn masked(&self) -> &'static str {
        if self.0.is_empty() { "" } else { "***" }
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.masked(), f)
    }
}

impl Serialize for SecretText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.masked())
    }
}

#[cfg(test)]
mod tests {
    use crate::{Config, SecretText};

    #[test]
    fn keys_are_not_in_the_displayed_configuration() {
        let mut config = Config::default();
        config.nats.key = SecretText::new("SUAKEY");
        config.tools.search_key = SecretText::new("search-key");
        let shown = format!("{}{config:?}", config.to_toml());
        assert!(!shown.contains("SUAKEY") && !shown.contains("search-key"), "{shown}");
    }
}
