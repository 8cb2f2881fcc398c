//! Keeps secrets out of what others say.

use std::ops::RangeInclusive;

use remuda_domain::model::ModelDefinition;
use reqwest::Url;

/// Shorter ones are words like `none`, which local servers get for a key, and would only garble messages.
const MIN_SECRET: usize = 6;
const MAX_MESSAGE_CHARS: usize = 500;
/// What of a definition is kept out of the log of the whole process: headers are the tenant's, who may write down any number of
/// any length, and every line is searched for all of them.
const MOST_HIDDEN: usize = 16;
const HIDDEN_BYTES: RangeInclusive<usize> = 8..=4096;

/// All that must not be seen again of a definition.
#[derive(Clone, Default)]
pub(crate) struct Secrets(Vec<String>);

impl Secrets {
    /// From here on they are in no line of the log either.
    pub(crate) fn of(model: &ModelDefinition, url: &Url) -> Self {
        let mut secrets = Self::given(model, url);
        remuda_telemetry::hide_for_now(&hidden(&secrets));
        secrets.retain(|secret| secret.len() >= MIN_SECRET);
        // Longer first: one may be a part of another.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Self(secrets)
    }

    /// The key before all others.
    fn given(model: &ModelDefinition, url: &Url) -> Vec<String> {
        let given = model.key.iter().chain(model.headers.values()).map(|secret| secret.expose().to_owned());
        // Some providers take the key as a part of the query.
        let query = url.query_pairs().map(|(_, value)| value.into_owned());
        let both = |secret: String| [credentials(&secret).map(str::to_owned), Some(secret)];
        given.chain(query).flat_map(both).flatten().collect()
    }

    /// Somebody else's words, fit for a message: one line, not too long, nothing secret.
    pub(crate) fn clean(&self, text: &str) -> String {
        let text = self.without(text);
        let words: Vec<_> = text
            .split(|c: char| c.is_whitespace() || c.is_control())
            .filter(|word| !word.is_empty())
            .collect();
        // Once more: a key may have been broken by a control character.
        let unbroken: String = text.chars().filter(|c| !c.is_control()).collect();
        let text = if self.0.iter().any(|secret| unbroken.contains(secret)) {
            self.without(&unbroken)
        } else {
            words.join(" ")
        };
        match text.char_indices().nth(MAX_MESSAGE_CHARS) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        }
    }

    fn without(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "***"))
    }
}

/// `Bearer <key>`: the second word is secret alone, too.
fn credentials(header: &str) -> Option<&str> {
    let (scheme, credentials) = header.trim_start().split_once(' ')?;
    let is_known = ["bearer", "basic"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    is_known.then(|| credentials.trim())
}

fn hidden(secrets: &[String]) -> Vec<&str> {
    let fits = |secret: &&str| HIDDEN_BYTES.contains(&secret.len());
    secrets.iter().map(String::as_str).filter(fits).take(MOST_HIDDEN).collect()
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
    fn nothing_secret_is_left() {
        for text in ["key sk-0123456789 is wrong", "0123456789", "sk-01234\u{0}56789", "sk-01234\n56789 no"] {
            let clean = secrets().clean(text);
            assert!(!clean.contains("56789") && clean.contains("***"), "{clean:?}");
        }
        assert!(!format!("{:?}", secrets()).contains("sk-"));
    }

    #[test]
    fn only_schemes_are_split_from_what_is_secret() {
        assert_eq!(credentials("Bearer abc def"), Some("abc def"));
        assert_eq!(credentials("basic  dXNlcjpwYXNz "), Some("dXNlcjpwYXNz"));
        for whole in ["sk-0123456789", "text/html, application/json", "Bearer"] {
            assert_eq!(credentials(whole), None, "{whole}");
        }
    }

    #[test]
    fn a_tenant_hides_few_values_of_sane_length_from_the_log() {
        let many: Vec<String> = (0..100).map(|number| format!("header-{number:03}")).collect();
        let all = [vec!["short".to_owned(), "x".repeat(4097), "y".repeat(4096)], many].concat();
        let hidden = hidden(&all);
        assert_eq!((hidden.len(), hidden[0].len(), hidden[15]), (MOST_HIDDEN, 4096, "header-014"));
    }

    #[test]
    fn messages_are_one_short_line() {
        assert_eq!(secrets().clean(" a\r\n\tb\u{7}c \u{1b}[31m"), "a b c [31m");
        assert_eq!(secrets().clean(&"é".repeat(5000)).chars().count(), MAX_MESSAGE_CHARS + 1);
        let late = format!("{}sk-0123456789", "x".repeat(MAX_MESSAGE_CHARS - 5));
        assert!(!secrets().clean(&late).contains("sk-"));
    }
}
