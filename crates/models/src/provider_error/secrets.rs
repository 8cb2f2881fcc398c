//! Removes secrets from messages of providers.

use std::ops::RangeInclusive;

use remuda_domain::model::ModelDefinition;
use reqwest::Url;

/// Shorter values are words like `none`, which local servers get as a key. Removing them would only garble messages.
const MIN_SECRET: usize = 6;
const MAX_MESSAGE_CHARS: usize = 500;
/// Limits for the values that are hidden from the process's log. Headers are chosen by tenants, who may set any
/// number of any length, and every log line is searched for all of them.
const MAX_HIDDEN: usize = 16;
const HIDDEN_BYTES: RangeInclusive<usize> = 8..=4096;

/// All secrets of a definition.
#[derive(Clone, Default)]
pub(crate) struct Secrets(Vec<String>);

impl Secrets {
    /// Also hides the secrets from the log.
    pub(crate) fn of(model: &ModelDefinition, url: &Url) -> Self {
        let mut secrets = Self::values(model, url);
        remuda_telemetry::mask_secrets_temporarily(&hidden(&secrets));
        secrets.retain(|secret| secret.len() >= MIN_SECRET);
        // Longer values first: one may be part of another.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Self(secrets)
    }

    /// All secret values, the key first.
    fn values(model: &ModelDefinition, url: &Url) -> Vec<String> {
        let values = model.key.iter().chain(model.headers.values()).map(|secret| secret.expose().to_owned());
        // Some providers take the key in the query.
        let query = url.query_pairs().map(|(_, value)| value.into_owned());
        let with_credentials = |secret: String| [credentials(&secret).map(str::to_owned), Some(secret)];
        values.chain(query).flat_map(with_credentials).flatten().collect()
    }

    /// A foreign text as one short line without secrets.
    pub(crate) fn clean(&self, text: &str) -> String {
        let text = self.redact(text);
        let words: Vec<_> = text
            .split(|c: char| c.is_whitespace() || c.is_control())
            .filter(|word| !word.is_empty())
            .collect();
        // Checked again: a control character may have split a key.
        let unbroken: String = text.chars().filter(|c| !c.is_control()).collect();
        let text = if self.0.iter().any(|secret| unbroken.contains(secret)) {
            self.redact(&unbroken)
        } else {
            words.join(" ")
        };
        match text.char_indices().nth(MAX_MESSAGE_CHARS) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        }
    }

    fn redact(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "***"))
    }
}

/// `Bearer <key>`: the second word alone is secret, too.
fn credentials(header: &str) -> Option<&str> {
    let (scheme, credentials) = header.trim_start().split_once(' ')?;
    let is_known = ["bearer", "basic"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    is_known.then(|| credentials.trim())
}

fn hidden(secrets: &[String]) -> Vec<&str> {
    let fits = |secret: &&str| HIDDEN_BYTES.contains(&secret.len());
    secrets.iter().map(String::as_str).filter(fits).take(MAX_HIDDEN).collect()
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets() -> Secrets {
        Secrets(vec!["sk-0123456789".to_owned(), "0123456789".to_owned()])
    }

    #[test]
    fn secrets_are_redacted_from_messages() {
        for text in ["key sk-0123456789 is wrong", "0123456789", "sk-01234\u{0}56789", "sk-01234\n56789 no"] {
            let clean = secrets().clean(text);
            assert!(!clean.contains("56789") && clean.contains("***"), "{clean:?}");
        }
        assert!(!format!("{:?}", secrets()).contains("sk-"));
    }

    #[test]
    fn credentials_are_split_only_from_known_schemes() {
        assert_eq!(credentials("Bearer abc def"), Some("abc def"));
        assert_eq!(credentials("basic  dXNlcjpwYXNz "), Some("dXNlcjpwYXNz"));
        for whole in ["sk-0123456789", "text/html, application/json", "Bearer"] {
            assert_eq!(credentials(whole), None, "{whole}");
        }
    }

    #[test]
    fn hidden_values_are_bounded_in_number_and_length() {
        let many: Vec<String> = (0..100).map(|number| format!("header-{number:03}")).collect();
        let all = [vec!["short".to_owned(), "x".repeat(4097), "y".repeat(4096)], many].concat();
        let hidden = hidden(&all);
        assert_eq!((hidden.len(), hidden[0].len(), hidden[15]), (MAX_HIDDEN, 4096, "header-014"));
    }

    #[test]
    fn messages_are_cleaned_to_one_short_line() {
        assert_eq!(secrets().clean(" a\r\n\tb\u{7}c \u{1b}[31m"), "a b c [31m");
        assert_eq!(secrets().clean(&"é".repeat(5000)).chars().count(), MAX_MESSAGE_CHARS + 1);
        let late = format!("{}sk-0123456789", "x".repeat(MAX_MESSAGE_CHARS - 5));
        assert!(!secrets().clean(&late).contains("sk-"));
    }
}
