//! How a client proves to NATS who it is.
//!
//! `nats.credentials_file` holds the seed of a key that the server's configuration lists, as `remuda nats-auth` writes it,
//! or a JWT and the seed of its key (a `.creds` file). Without a file, user and password are those in the URL of the
//! first server that has them; the client library does not read them.

use std::{fmt, path::Path};

use async_nats::{ConnectOptions, ServerAddr};
use nkeys::KeyPair;
use percent_encoding::percent_decode_str;
use remuda_domain::error::{Error, Result};

use super::NatsOptions;

const FIELD: &str = "credentials_file";
/// Of a `.creds` file.
const ARMOR: &str = "-----BEGIN";
/// Inboxes of clients that have no name. The inboxes of others begin with this too, so that permissions for all
/// inboxes cover them.
const INBOX: &str = "_INBOX";

/// What proves who a client is.
pub(super) enum Credentials {
    /// The seed of a key.
    Seed(String),
    /// A whole `.creds` file.
    Jwt(String),
    Password {
        user: String,
        password: String,
    },
    Token(String),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(***)")
    }
}

impl Credentials {
    /// From the file or the key, otherwise from the addresses. `None` if there are none.
    pub(super) fn find(options: &NatsOptions, servers: &[ServerAddr]) -> Result<Option<Self>> {
        let key = || Error::invalid("key", "expected the content of a file from `remuda nats-auth`");
        match (&options.credentials_file, &options.key) {
            (Some(path), _) => Self::read(path).map(Some),
            (None, Some(text)) => Self::parse(text).map(Some).ok_or_else(key),
            (None, None) => Ok(servers.iter().find_map(Self::of_address)),
        }
    }

    fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Error::invalid(FIELD, format!("cannot read {}", path.display())).with_source(error)
        })?;
        Self::parse(&text)
            .ok_or_else(|| Error::invalid(FIELD, format!("expected a key in {}", path.display())))
    }

    /// Lines that begin with # are comments.
    fn parse(text: &str) -> Option<Self> {
        if text.contains(ARMOR) {
            return Some(Self::Jwt(text.to_owned()));
        }
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let seed = lines.next().filter(|seed| KeyPair::from_seed(seed).is_ok())?;
        lines.next().is_none().then(|| Self::Seed(seed.to_owned()))
    }

    /// A user without a password is a token.
    fn of_address(server: &ServerAddr) -> Option<Self> {
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let user = decoded(server.username()?);
        Some(match server.password() {
            Some(password) => Self::Password { user, password: decoded(password) },
            None => Self::Token(user),
        })
    }

    pub(super) fn apply(&self, options: ConnectOptions) -> Result<ConnectOptions> {
        match self {
            Self::Seed(seed) => Ok(options.nkey(seed.clone())),
            // Without the source, which may quote the file.
            Self::Jwt(text) => options
                .credentials(text)
                .map_err(|_| Error::invalid(FIELD, "expected a JWT and the seed of its key")),
            Self::Password { user, password } => {
                Ok(options.user_and_password(user.clone(), password.clone()))
            }
            Self::Token(token) => Ok(options.token(token.clone())),
        }
    }

    /// The prefix of the client's inboxes: its own, so that no client reads responses to others.
    pub(super) fn inbox_prefix(&self) -> String {
        match self {
            Self::Seed(seed) => match KeyPair::from_seed(seed) {
                Ok(key) => inbox_of(&key.public_key()),
                Err(_) => INBOX.to_owned(),
            },
            Self::Password { user, .. } if is_subject_token(user) => inbox_of(user),
            // The operator of the accounts decides about inboxes.
            Self::Password { .. } | Self::Jwt(_) | Self::Token(_) => INBOX.to_owned(),
        }
    }
}

/// The prefix of the inboxes of a user or a public key.
pub(super) fn inbox_of(name: &str) -> String {
    format!("{INBOX}.{name}")
}

fn is_subject_token(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !name.is_empty() && name.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_with_a_seed_and_comments_is_accepted() {
        let seed = KeyPair::new_user().seed().unwrap();
        let parsed = Credentials::parse(&format!("# worker\n\n{seed}\n"));
        assert!(matches!(&parsed, Some(Credentials::Seed(found)) if *found == seed));
        for bad in ["", "# nothing", "SUxyz", &format!("{seed}\n{seed}")] {
            assert!(Credentials::parse(bad).is_none(), "{bad}");
        }
        assert!(!format!("{parsed:?}").contains(&seed));
    }

    #[test]
    fn each_user_has_inboxes_of_its_own() {
        let key = KeyPair::new_user();
        let credentials = Credentials::Seed(key.seed().unwrap());
        assert_eq!(credentials.inbox_prefix(), format!("_INBOX.{}", key.public_key()));
        for (server, inbox) in [
            ("nats://remuda-worker:p%40ss@host:4222", Some("_INBOX.remuda-worker")),
            ("nats://token@host:4222", Some("_INBOX")),
            ("nats://a.b:password@host:4222", Some("_INBOX")),
            ("tls://host:4222", None),
        ] {
            let found = Credentials::find(
                &NatsOptions::default(),
                &["nats://h".parse().unwrap(), server.parse().unwrap()],
            );
            let found = found.unwrap();
            assert_eq!(found.as_ref().map(Credentials::inbox_prefix).as_deref(), inbox, "{server}");
            if let Some(Credentials::Password { user, password }) = found {
                assert!(["p@ss", "password"].contains(&password.as_str()), "{user}");
            }
        }
    }
}
