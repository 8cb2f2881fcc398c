//! Keeps secrets out of what others say.

use remuda_domain::model::ModelDefinition;
use reqwest::Url;

/// Shorter ones are words like `none`, which local servers get for a key, and would only garble messages.
const MIN_SECRET: usize = 6;
const MAX_MESSAGE_CHARS: usize = 500;

/// All that must not be seen again of a definition.
#[derive(Clone, Default)]
pub(crate) struct Secrets(Vec<String>);

impl Secrets {
    /// From here on they are in no line of the log either.
    pub(crate) fn of(model: &ModelDefinition, url: &Url) -> Self {
        let given = model.key.iter().chain(model.headers.values()).map(|secret| secret.expose().to_owned());
        // Some providers take the key as a part of the query.
        let query = url.query_pairs().map(|(_, value)| value.into_owned());
        let mut secrets = Vec::new();
        for secret in given.chain(query) {
            // `Bearer <key>`: the second word is secret alone, too.
            secrets.extend(secret.split_whitespace().map(str::to_owned));
            secrets.push(secret);
        }
        secrets.retain(|secret| secret.len() >= MIN_SECRET);
        // Longer first: one may be a part of another.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.iter().for_each(|secret| remuda_telemetry::hide_for_now(secret));
        Self(secrets)
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
    fn messages_are_one_short_line() {
        assert_eq!(secrets().clean(" a\r\n\tb\u{7}c \u{1b}[31m"), "a b c [31m");
        assert_eq!(secrets().clean(&"é".repeat(5000)).chars().count(), MAX_MESSAGE_CHARS + 1);
        let late = format!("{}sk-0123456789", "x".repeat(MAX_MESSAGE_CHARS - 5));
        assert!(!secrets().clean(&late).contains("sk-"));
    }
}
