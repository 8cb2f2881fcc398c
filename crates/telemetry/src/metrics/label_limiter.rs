//! Limits the number of distinct values of a label.

use std::{collections::HashSet, sync::Arc};

use super::{KeyValue, OTHER};
use parking_lot::RwLock;

/// Bytes kept of a value, since every scrape contains it.
const MAX_BYTES: usize = 128;

/// Passes a limited number of distinct label values, and replaces all further ones by `other`: every value is a time series
/// for the lifetime of the process.
#[derive(Debug)]
pub struct LabelLimiter {
    known: RwLock<HashSet<Arc<str>>>,
    limit: usize,
}

impl LabelLimiter {
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { known: RwLock::default(), limit }
    }

    /// The value, or `other`.
    pub fn value<'a>(&self, value: &'a str) -> &'a str {
        let value = truncated(value);
        if self.known(value).is_some() { value } else { OTHER }
    }

    /// A label with the value, or with `other`. Does not copy known values.
    pub fn label(&self, name: &'static str, value: &str) -> KeyValue {
        match self.known(truncated(value)) {
            Some(value) => KeyValue::new(name, value),
            None => KeyValue::new(name, OTHER),
        }
    }

    fn known(&self, value: &str) -> Option<Arc<str>> {
        let full = {
            let known = self.known.read();
            if let Some(value) = known.get(value) {
                return Some(Arc::clone(value));
            }
            known.len() >= self.limit
        };
        // The common case with many tenants; no write lock needed.
        if full {
            return None;
        }
        let mut known = self.known.write();
        if let Some(value) = known.get(value) {
            return Some(Arc::clone(value));
        }
        if known.len() >= self.limit {
            return None;
        }
        let value: Arc<str> = value.into();
        known.insert(Arc::clone(&value));
        Some(value)
    }
}

fn truncated(value: &str) -> &str {
    &value[..value.floor_char_boundary(MAX_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_values_are_kept() {
        let limiter = LabelLimiter::new(2);
        assert_eq!(
            ["a", "b", "a", "c", "b"].map(|value| limiter.value(value)),
            ["a", "b", "a", "other", "b"]
        );
        assert_eq!(limiter.label("x", "a"), KeyValue::new("x", "a"));
        assert_eq!(limiter.label("x", "d"), KeyValue::new("x", "other"));
    }

    #[test]
    fn long_values_are_truncated() {
        let (limiter, long) = (LabelLimiter::new(1), format!("x{}", "é".repeat(MAX_BYTES)));
        let kept = format!("x{}", "é".repeat(63));
        assert_eq!(limiter.value(&long), kept);
        assert_eq!(limiter.label("x", &long), KeyValue::new("x", kept));
    }

    #[test]
    fn distinct_values_never_exceed_the_limit() {
        let limiter = LabelLimiter::new(100);
        let seen: HashSet<String> =
            (0..10_000).map(|n| limiter.value(&format!("tenant-{n}")).to_owned()).collect();
        assert_eq!(seen.len(), 101);
    }
}
