//! A URL that masks its password when displayed.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

const MASK: &str = "***";

/// A URL that may contain a password or a token. Only [`SecretUrl::expose`] returns them: `Debug`, `Display` and
/// serialization mask them.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct SecretUrl(String);

impl SecretUrl {
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// The whole URL. Only use it to connect.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The URL with its secrets masked. In doubt it masks too much: the text between `//` and the last `@` is split at its
    /// first colon, so a password may contain any character, encoded or not.
    #[must_use]
    pub fn masked(&self) -> String {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("", &self.0));
        let separator = if scheme.is_empty() { "" } else { "://" };
        let Some((userinfo, after)) = rest.rsplit_once('@') else {
            return mask_query(&self.0);
        };
        let after = mask_query(after);
        // NATS takes a user without a password as a token.
        let is_token = !scheme.starts_with("postgres");
        match userinfo.split_once(':') {
            Some((user, _)) => format!("{scheme}{separator}{user}:{MASK}@{after}"),
            None if is_token => format!("{scheme}{separator}{MASK}@{after}"),
            None => format!("{scheme}{separator}{userinfo}@{after}"),
        }
    }
}

/// The secret parts of a URL, both encoded and decoded.
pub(crate) fn secrets_of(url: &str) -> Vec<String> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (userinfo, after) = rest.rsplit_once('@').unwrap_or(("", rest));
    let (user, password) = userinfo.split_once(':').unwrap_or(("", userinfo));
    let is_user = user.is_empty() && scheme.starts_with("postgres");
    let query = after.split_once('?').map_or("", |(_, query)| query);
    let of_query =
        query.split('&').filter_map(|pair| pair.split_once('=').filter(|(name, _)| is_secret(name)));
    let location = after.split('?').next().unwrap_or_default();
    // A password that equals the user, host or database name cannot be masked: the name appears in many lines.
    let is_name = |word: &str| {
        word == scheme || word == user || location.split(['/', ':', ',']).any(|name| name == word)
    };
    let of_location = Some(password).filter(|password| !is_user && !is_name(password));
    let written =
        of_location.into_iter().chain(of_query.map(|(_, value)| value)).filter(|secret| !secret.is_empty());
    written.flat_map(|secret| [secret.to_owned(), percent_decoded(secret)]).collect()
}

/// Percent-decodes a text, unless the result is not UTF-8.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| *first == b'%').and_then(|it| std::str::from_utf8(it).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

/// Masks `password=…` and similar parameters.
fn mask_query(text: &str) -> String {
    let Some((before, query)) = text.split_once('?') else {
        return text.to_owned();
    };
    let masked: Vec<String> = query
        .split('&')
        .map(|pair| match pair.split_once('=') {
            Some((name, _)) if is_secret(name) => format!("{name}={MASK}"),
            _ => pair.to_owned(),
        })
        .collect();
    format!("{before}?{}", masked.join("&"))
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["password", "passwd", "secret", "token"].iter().any(|word| name.contains(word))
}

impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.masked())
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.masked(), f)
    }
}

impl Serialize for SecretUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.masked())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_secrets_are_masked() {
        for (url, shown) in [
            ("", ""),
            ("sqlite:/var/lib/remuda.db", "sqlite:/var/lib/remuda.db"),
            ("postgres://db/remuda", "postgres://db/remuda"),
            ("postgres://user@db/remuda", "postgres://user@db/remuda"),
            ("postgres://user:pa:ss@db:5432/remuda", "postgres://user:***@db:5432/remuda"),
            ("postgres://user:p@ss/w?rd@db/remuda", "postgres://user:***@db/remuda"),
            (
                "postgres:///remuda?host=/tmp&password=x&sslmode=on",
                "postgres:///remuda?host=/tmp&password=***&sslmode=on",
            ),
            ("nats://token@127.0.0.1:4222", "nats://***@127.0.0.1:4222"),
            ("nats://user:pw@127.0.0.1:4222", "nats://user:***@127.0.0.1:4222"),
            ("user:pw@host", "user:***@host"),
        ] {
            assert_eq!(SecretUrl::new(url).masked(), shown, "{url}");
        }
    }

    #[test]
    fn secrets_are_found_encoded_and_decoded() {
        for (url, secrets) in [
            ("", &[] as &[&str]),
            ("sqlite:/var/lib/remuda.db", &[]),
            ("postgres://user@db/remuda", &[]),
            ("postgres://user:pa%40ss@db/remuda", &["pa%40ss", "pa@ss"]),
            ("postgres://user:p@s:s/w?rd@db/remuda", &["p@s:s/w?rd", "p@s:s/w?rd"]),
            ("postgres://remuda:remuda@db/x", &[]),
            ("postgres://me:remuda@db/remuda", &[]),
            ("postgres://me:postgres@db/remuda", &[]),
            ("postgres:///x?password=%zz&sslmode=on", &["%zz", "%zz"]),
            ("nats://token@127.0.0.1:4222", &["token", "token"]),
            ("plain-key", &[]),
        ] {
            assert_eq!(secrets_of(url), secrets, "{url}");
        }
    }

    proptest! {
        #[test]
        fn no_format_shows_the_password(password in "[!-~]{8,20}") {
            let url = SecretUrl::new(format!("postgres://user:{password}@db/remuda"));
            for shown in [format!("{url}"), format!("{url:?}"), toml::Value::try_from(&url).unwrap().to_string()] {
                prop_assert!(!shown.contains(&password), "{}", shown);
            }
            prop_assert!(url.expose().contains(&password));
        }
    }
}
