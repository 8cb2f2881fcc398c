//! URLs that may hold a password.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

const MASK: &str = "***";

/// A URL that may hold a password or a token. Only [`SecretUrl::expose`] shows them: `Debug`, `Display` and
/// serialisation write a masked form.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct SecretUrl(String);

impl SecretUrl {
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// The whole URL, for connecting with it and for nothing else.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The URL without its secrets. Masks too much rather than too little: whatever stands between `//` and the
    /// last `@` is split at its first colon, so a password may hold any character, encoded or not.
    #[must_use]
    pub fn masked(&self) -> String {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("", &self.0));
        let separator = if scheme.is_empty() { "" } else { "://" };
        let Some((userinfo, after)) = rest.rsplit_once('@') else {
            return mask_query(&self.0);
        };
        let after = mask_query(after);
        // NATS reads a user without password as a token.
        let is_token = !scheme.starts_with("postgres");
        match userinfo.split_once(':') {
            Some((user, _)) => format!("{scheme}{separator}{user}:{MASK}@{after}"),
            None if is_token => format!("{scheme}{separator}{MASK}@{after}"),
            None => format!("{scheme}{separator}{userinfo}@{after}"),
        }
    }
}

/// Masks `password=…` and the like.
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
    fn secrets_are_masked_and_the_rest_is_kept() {
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

    proptest! {
        #[test]
        fn no_way_of_writing_shows_the_password(password in "[!-~]{8,20}") {
            let url = SecretUrl::new(format!("postgres://user:{password}@db/remuda"));
            for shown in [format!("{url}"), format!("{url:?}"), toml::Value::try_from(&url).unwrap().to_string()] {
                prop_assert!(!shown.contains(&password), "{}", shown);
            }
            prop_assert!(url.expose().contains(&password));
        }
    }
}
