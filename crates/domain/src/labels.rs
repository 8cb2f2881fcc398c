//! Labels: texts that a caller attaches to a run to find it again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Key/value pairs of a run, by key. They never change, and child runs inherit them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Labels(BTreeMap<String, String>);

pub const MAX_LABELS: usize = 32;
/// In bytes.
pub const MAX_LABEL_KEY: usize = 63;
/// In bytes.
pub const MAX_LABEL_VALUE: usize = 256;

impl Labels {
    /// Checks labels. Errors name the label: `labels.team`.
    pub fn new(labels: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let labels: BTreeMap<String, String> = labels.into_iter().collect();
        if labels.len() > MAX_LABELS {
            return Err(Error::invalid("labels", format!("expected at most {MAX_LABELS} labels")));
        }
        for (key, value) in &labels {
            check_key(key)?;
            // NUL and other control characters would break terminals, logs and PostgreSQL.
            if value.len() > MAX_LABEL_VALUE || value.chars().any(char::is_control) {
                let expected = format!("expected at most {MAX_LABEL_VALUE} bytes without control characters");
                return Err(Error::invalid(format!("labels.{key}"), expected));
            }
        }
        Ok(Self(labels))
    }

    /// Reads `key=value` texts, each key once.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let mut labels = BTreeMap::new();
        for text in texts {
            let (key, value) =
                text.split_once('=').ok_or_else(|| Error::invalid("labels", "expected key=value"))?;
            if labels.insert(key.to_owned(), value.to_owned()).is_some() {
                check_key(key)?;
                return Err(Error::invalid(format!("labels.{key}"), "expected each key once"));
            }
        }
        Self::new(labels)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

/// Keys have no `=`, so that `key=value` can be split.
fn check_key(key: &str) -> Result<()> {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    let starts_well = key.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    if starts_well && key.len() <= MAX_LABEL_KEY && key.bytes().all(valid) {
        return Ok(());
    }
    let expected =
        "expected keys of 1 to 63 letters, digits, -, _, . or /, which begin with a letter or digit";
    Err(Error::invalid("labels", expected))
}

impl IntoIterator for Labels {
    type Item = (String, String);
    type IntoIter = std::collections::btree_map::IntoIter<String, String>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(key: &str, value: &str) -> Result<Labels> {
        Labels::new([(key.to_owned(), value.to_owned())])
    }

    #[test]
    fn limits_are_inclusive_and_counted_in_bytes() {
        assert!(label(&"k".repeat(63), &"v".repeat(256)).is_ok());
        assert!(label("app.example.com/team-1_x", "").is_ok());
        for key in ["", "a=b", "-a", "é", "a b", "a\0", &"k".repeat(64)] {
            assert_eq!(label(key, "v").unwrap_err().field(), Some("labels"), "{key:?}");
        }
        for value in ["a\nb", "\0", &"é".repeat(129)] {
            assert_eq!(label("k", value).unwrap_err().field(), Some("labels.k"), "{value:?}");
        }
        let many = |count: usize| Labels::new((0..count).map(|n| (format!("k{n}"), String::new())));
        assert!(many(32).is_ok() && many(33).is_err());
    }

    #[test]
    fn text_is_split_at_the_first_equals_sign() {
        let labels = Labels::parse(["k=a=b", "l="]).unwrap();
        assert_eq!(labels.iter().collect::<Vec<_>>(), [("k", "a=b"), ("l", "")]);
        assert_eq!(Labels::parse(["k"]).unwrap_err().field(), Some("labels"));
        assert_eq!(Labels::parse(["k=a", "k=b"]).unwrap_err().field(), Some("labels.k"));
    }
}
