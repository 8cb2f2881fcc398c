//! Connection options and JetStream settings.

use std::{fmt, path::PathBuf, time::Duration};

use remuda_domain::error::{Error, Result};

/// The server's minimum redelivery timeout is a millisecond. Below this value, ordinary jitter would look like a dead
/// worker.
const MIN_ACK_WAIT: Duration = Duration::from_millis(100);

/// Connection options and JetStream settings.
#[derive(Clone, PartialEq, Eq)]
pub struct NatsOptions {
    /// URLs (`nats://host:4222`, `tls://…`). Any server that responds will do.
    pub servers: Vec<String>,
    /// Separates installations that share a server: starts every subject and, in upper case, the stream's name.
    pub prefix: String,
    /// Replicas of the token stream. More than one requires NATS 2.12.3, and a publish may then be rejected for some
    /// milliseconds after [`finish`](crate::Token::finish).
    pub replicas: usize,
    /// A file with the seed of a key, or a `.creds` file.
    pub credentials_file: Option<PathBuf>,
    /// What such a file contains. Not shown by `Debug`.
    pub key: Option<String>,
    /// PEM file of the authority that has signed the server's certificate, besides those of the system.
    pub ca_file: Option<PathBuf>,
    /// Whether this client creates and repairs the token stream. Others wait for it, and only create consumers.
    pub manages_stream: bool,
    pub connect_timeout: Duration,
    /// How long the server waits for an ack or keep-alive before it redelivers a token to another worker.
    pub ack_wait: Duration,
    pub request_timeout: Duration,
    /// Maximum number of tokens held by workers, per pool; negative means no limit. Delivery stops silently at the
    /// limit, and pulls only ask for free slots, so leave it unlimited.
    pub max_ack_pending: i64,
}

/// Shows neither addresses, which may hold a password, nor the key.
impl fmt::Debug for NatsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsOptions")
            .field("prefix", &self.prefix)
            .field("replicas", &self.replicas)
            .field("ack_wait", &self.ack_wait)
            .finish_non_exhaustive()
    }
}

impl Default for NatsOptions {
    fn default() -> Self {
        Self {
            servers: vec!["nats://127.0.0.1:4222".to_owned()],
            prefix: "remuda".to_owned(),
            replicas: 1,
            credentials_file: None,
            key: None,
            ca_file: None,
            manages_stream: true,
            connect_timeout: Duration::from_secs(5),
            ack_wait: Duration::from_secs(30),
            request_timeout: Duration::from_secs(5),
            max_ack_pending: -1,
        }
    }
}

impl NatsOptions {
    /// Whether a file or an address has credentials.
    #[must_use]
    pub fn has_credentials(&self) -> bool {
        self.credentials_file.is_some()
            || self.key.is_some()
            || self.servers.iter().any(|server| server.contains('@'))
    }

    /// The same servers without any credentials: to find out whether they accept everybody.
    #[must_use]
    pub fn anonymous(&self) -> Self {
        let without = |server: &String| match (server.split_once("://"), server.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, address))) => format!("{scheme}://{address}"),
            _ => server.clone(),
        };
        let servers = self.servers.iter().map(without).collect();
        Self { servers, credentials_file: None, key: None, ..self.clone() }
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.servers.is_empty() {
            return Err(Error::invalid("servers", "expected at least one NATS URL"));
        }
        if !(1..=5).contains(&self.replicas) {
            return Err(Error::invalid("replicas", "expected 1 to 5"));
        }
        if self.ack_wait < MIN_ACK_WAIT {
            return Err(Error::invalid("ack_wait", "expected at least 100 ms"));
        }
        if self.max_ack_pending == 0 {
            return Err(Error::invalid("max_ack_pending", "expected a positive number, or -1 for no limit"));
        }
        Ok(())
    }
}
