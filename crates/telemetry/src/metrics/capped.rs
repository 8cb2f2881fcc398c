//! Letting a bounded number of values through.

use std::{
    collections::HashSet,
    sync::{Arc, PoisonError, RwLock},
};

use super::{KeyValue, OTHER};

/// What is kept of a value, in bytes. It is told with every scrape.
const MAX_BYTES: usize = 128;

/// Lets so many different values of a label through, and says `other` of all that come after them: every value is a series of
/// its own for as long as the process lives.
#[derive(Debug)]
pub struct Capped {
    known: RwLock<HashSet<Arc<str>>>,
    most: usize,
}

impl Capped {
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { known: RwLock::default(), most }
    }

    /// The value, or what stands for it.
    pub fn value<'a>(&self, value: &'a str) -> &'a str {
        let value = start(value);
        if self.known(value).is_some() { value } else { OTHER }
    }

    /// A label with the value, or what stands for it. Copies nothing that was seen before.
    pub fn label(&self, name: &'static str, value: &str) -> KeyValue {
        match self.known(start(value)) {
            Some(value) => KeyValue::new(name, value),
            None => KeyValue::new(name, OTHER),
        }
    }

    fn known(&self, value: &str) -> Option<Arc<str>> {
        let full = {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(value) = known.get(value) {
                return Some(Arc::clone(value));
            }
            known.len() >= self.most
        };
        // The usual case of an installation with many tenants, and no reason to keep others waiting.
        if full {
            return None;
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = known.get(value) {
            return Some(Arc::clone(value));
        }
        if known.len() >= self.most {
            return None;
        }
        let value: Arc<str> = value.into();
        known.insert(Arc::clone(&value));
        Some(value)
    }
}

fn start(value: &str) -> &str {
    &value[..value.floor_char_boundary(MAX_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_values_are_kept() {
        let capped = Capped::new(2);
        assert_eq!(["a", "b", "a", "c", "b"].map(|value| capped.value(value)), ["a", "b", "a", "other", "b"]);
        assert_eq!(capped.label("x", "a"), KeyValue::new("x", "a"));
        assert_eq!(capped.label("x", "d"), KeyValue::new("x", "other"));
    }

    #[test]
    fn long_values_are_cut() {
        let (capped, long) = (Capped::new(1), format!("x{}", "é".repeat(MAX_BYTES)));
        let kept = format!("x{}", "é".repeat(63));
        assert_eq!(capped.value(&long), kept);
        assert_eq!(capped.label("x", &long), KeyValue::new("x", kept));
    }

    #[test]
    fn ten_thousand_values_make_no_more_than_were_allowed() {
        let capped = Capped::new(100);
        let seen: HashSet<String> =
            (0..10_000).map(|n| capped.value(&format!("tenant-{n}")).to_owned()).collect();
        assert_eq!(seen.len(), 101);
    }
}
