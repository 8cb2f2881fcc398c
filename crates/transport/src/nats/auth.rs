//! Generates the accounts of NATS: a user for each role, with the permissions that it needs.
//!
//! The configuration is for a server with static accounts, from 2.9 on. Users have keys, of which the server knows the
//! public half only, or passwords, for installations that are configured by environment variables.

use std::fmt::{self, Write as _};

use nkeys::KeyPair;
use rand::RngCore as _;
use remuda_domain::error::{Error, Result};

use super::{credentials::inbox_of, permissions::Permissions, subjects::Subjects};
use crate::bus_role::BusRole;

/// Users of one installation.
pub struct NatsAuth {
    subjects: Subjects,
    users: Vec<User>,
}

struct User {
    role: BusRole,
    secret: Secret,
}

enum Secret {
    Key(Box<KeyPair>),
    Password(String),
    /// The name of a variable of the server's environment that holds the password.
    Variable(String),
}

impl fmt::Debug for NatsAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsAuth").field("subjects", &self.subjects).finish_non_exhaustive()
    }
}

impl NatsAuth {
    /// New keys for all roles of the installation with this prefix.
    pub fn with_keys(prefix: &str) -> Result<Self> {
        Self::new(prefix, |_| Secret::Key(Box::new(KeyPair::new_user())))
    }

    /// New passwords.
    pub fn with_passwords(prefix: &str) -> Result<Self> {
        Self::new(prefix, |_| Secret::Password(new_password()))
    }

    /// Passwords that the server reads from variables such as `NATS_WORKER_PASSWORD`.
    pub fn with_variables(prefix: &str) -> Result<Self> {
        Self::new(prefix, |role| {
            Secret::Variable(format!("NATS_{}_PASSWORD", role.as_str().to_uppercase().replace('-', "_")))
        })
    }

    fn new(prefix: &str, secret: impl Fn(BusRole) -> Secret) -> Result<Self> {
        let users = BusRole::ALL.into_iter().map(|role| User { role, secret: secret(role) }).collect();
        Ok(Self { subjects: Subjects::new(prefix)?, users })
    }

    /// The accounts for the server's configuration. With keys it contains no secret.
    #[must_use]
    pub fn server_config(&self) -> String {
        let mut text = format!("accounts {{\n  {} {{\n", self.subjects.prefix().to_uppercase());
        text.push_str("    jetstream: enabled\n    users: [\n");
        for user in &self.users {
            // Writing to a string cannot fail.
            write!(text, "      # {}\n      {{\n        ", user.role.as_str()).ok();
            match &user.secret {
                Secret::Key(key) => writeln!(text, "nkey: {}", key.public_key()).ok(),
                Secret::Password(password) => {
                    writeln!(text, "user: {}, password: \"{password}\"", self.user_name(user.role)).ok()
                }
                Secret::Variable(name) => {
                    writeln!(text, "user: {}, password: ${name}", self.user_name(user.role)).ok()
                }
            };
            let inbox = inbox_of(&self.identity(user));
            if let Some(Permissions { publish, subscribe }) =
                Permissions::of(user.role, &self.subjects, &inbox)
            {
                text.push_str("        permissions: {\n");
                push_allowed(&mut text, "publish", &publish);
                push_allowed(&mut text, "subscribe", &subscribe);
                text.push_str("        }\n");
            }
            text.push_str("      }\n");
        }
        text.push_str("    ]\n  }\n}\n");
        text
    }

    /// The content of a role's credentials file. An error if the role has a password.
    pub fn credentials_file(&self, role: BusRole) -> Result<String> {
        let Some(User { secret: Secret::Key(key), .. }) = self.user(role) else {
            return Err(Error::internal("the role has no key"));
        };
        let seed = key.seed().map_err(|error| Error::internal("the key has no seed").with_source(error))?;
        let prefix = self.subjects.prefix();
        Ok(format!("# NATS: the key of the role {} of {prefix}. Keep it secret.\n{seed}\n", role.as_str()))
    }

    /// A role's user and password. An error if it has none.
    pub fn password(&self, role: BusRole) -> Result<(String, String)> {
        match self.user(role) {
            Some(User { secret: Secret::Password(password), .. }) => {
                Ok((self.user_name(role), password.clone()))
            }
            _ => Err(Error::internal("the role has no password")),
        }
    }

    /// The URL of a server with a role's user and password. An error if it has none.
    pub fn url(&self, role: BusRole, server: impl fmt::Display) -> Result<String> {
        let (user, password) = self.password(role)?;
        Ok(format!("nats://{user}:{password}@{server}"))
    }

    fn user_name(&self, role: BusRole) -> String {
        format!("{}-{}", self.subjects.prefix(), role.as_str())
    }

    fn user(&self, role: BusRole) -> Option<&User> {
        self.users.iter().find(|user| user.role == role)
    }

    /// What distinguishes the user's inboxes from those of others.
    fn identity(&self, user: &User) -> String {
        match &user.secret {
            Secret::Key(key) => key.public_key(),
            Secret::Password(_) | Secret::Variable(_) => self.user_name(user.role),
        }
    }
}

fn push_allowed(text: &mut String, what: &str, subjects: &[String]) {
    writeln!(text, "          {what}: {{ allow: [").ok();
    for subject in subjects {
        writeln!(text, "            \"{subject}\"").ok();
    }
    text.push_str("          ] }\n");
}

/// 256 random bits, in characters that need no quotes. It begins with a letter, because the server takes what begins
/// like a number for one.
fn new_password() -> String {
    let mut bytes = [0; 32];
    rand::rng().fill_bytes(&mut bytes);
    bytes.iter().fold("p".to_owned(), |mut text, byte| {
        write!(text, "{byte:02x}").ok();
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_with_keys_contains_no_secret() {
        let auth = NatsAuth::with_keys("remuda").unwrap();
        let config = auth.server_config();
        for role in BusRole::ALL {
            let file = auth.credentials_file(role).unwrap();
            let seed = file.lines().last().unwrap();
            assert!(seed.starts_with("SU") && !config.contains(seed), "{role:?}");
            assert!(auth.url(role, "h").is_err());
        }
        assert!(!format!("{auth:?}").contains("SU"));
    }

    #[test]
    fn every_role_has_a_password_of_its_own() {
        let auth = NatsAuth::with_passwords("remuda").unwrap();
        let urls: std::collections::HashSet<String> =
            BusRole::ALL.iter().map(|role| auth.url(*role, "127.0.0.1:4222").unwrap()).collect();
        assert_eq!(urls.len(), BusRole::ALL.len());
        assert!(auth.credentials_file(BusRole::Worker).is_err());
    }

    #[test]
    fn variables_are_not_quoted() {
        let config = NatsAuth::with_variables("remuda").unwrap().server_config();
        assert!(config.contains("user: remuda-control-plane, password: $NATS_CONTROL_PLANE_PASSWORD\n"));
    }
}
