//! Collects the secrets in the configuration.

use std::fs;

use crate::{secret_url::secrets_of, tree::Config};

/// Shorter lines of a credentials file are headings.
const MIN_CREDENTIAL: usize = 20;

impl Config {
    /// All secrets in the configuration, to mask them in logs. A credentials file that cannot be read is skipped here: the
    /// connection to NATS will report it.
    #[must_use]
    pub fn secrets(&self) -> Vec<String> {
        let urls = self.nats.servers.iter().chain([&self.store.url]).map(|url| url.expose());
        let others = [self.tools.search_url.as_str(), self.telemetry.otlp_endpoint.as_str()];
        let mut secrets: Vec<String> = urls.chain(others).flat_map(secrets_of).collect();
        secrets.push(self.tools.search_key.expose().to_owned());
        let credentials = fs::read_to_string(&self.nats.credentials_file).unwrap_or_default();
        let lines = credentials.lines().chain(self.nats.key.expose().lines()).map(str::trim);
        secrets.extend(
            lines
                .filter(|line| line.len() >= MIN_CREDENTIAL && !line.starts_with(['-', '#']))
                .map(str::to_owned),
        );
        secrets.retain(|secret| !secret.is_empty());
        secrets
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SecretText, SecretUrl};

    #[test]
    fn secrets_of_all_settings_are_collected() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("nats.creds");
        fs::write(
            &file,
            "-----BEGIN USER NKEY SEED-----\nSUAB0123456789ABCDEFGHIJ\n------END USER NKEY SEED------\n",
        )
        .unwrap();
        let mut config = Config::default();
        assert_eq!(config.secrets(), Vec::<String>::new());
        config.store.url = SecretUrl::new("postgres://u:one-password@db/x");
        config.nats.servers =
            vec![SecretUrl::new("nats://a:two-password@n1"), SecretUrl::new("nats://three-token@n2")];
        config.nats.credentials_file = file;
        config.tools.search_key = SecretText::new("four-key");
        config.telemetry.otlp_endpoint = "http://u:five-password@c:4317".to_owned();
        let secrets = config.secrets();
        for secret in [
            "one-password",
            "two-password",
            "three-token",
            "SUAB0123456789ABCDEFGHIJ",
            "four-key",
            "five-password",
        ] {
            assert!(secrets.iter().any(|it| it == secret), "{secret} in {secrets:?}");
        }
        assert!(!secrets.iter().any(|secret| secret.contains("NKEY")));
    }
}
