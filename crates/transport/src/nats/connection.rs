//! One connection to NATS.

use std::{future::Future, time::Duration};

use async_nats::{
    Client, ConnectOptions, Event, PublishError, RequestErrorKind, Subject, Subscriber, connection::State,
    jetstream::AckKind,
};
use bytes::Bytes;
use remuda_domain::error::{Error, Result};
use tokio::{sync::watch, time::timeout};

use super::{
    NatsOptions,
    credentials::Credentials,
    envelope::{MAX_HEADERS, Sealed},
    unavailable,
};

const FIRST_RECONNECT_DELAY: Duration = Duration::from_millis(20);
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(2);
/// How long a response may take before another request is made.
const ASK_JETSTREAM_AFTER: Duration = Duration::from_millis(100);

/// One connection, which reconnects forever.
pub(super) struct Connection {
    client: Client,
    limit: Duration,
    connected: watch::Receiver<u64>,
    lost: watch::Receiver<u64>,
}

/// The part of a server's URL that may be logged: without user and password.
fn without_credentials(server: &str) -> &str {
    server.rsplit_once('@').map_or(server, |(_, address)| address)
}

impl Connection {
    pub(super) async fn connect(name: &str, options: &NatsOptions) -> Result<Self> {
        let (connections, connected) = watch::channel(0);
        let (losses, lost) = watch::channel(0);
        let mut settings = ConnectOptions::new()
            .name(name)
            .connection_timeout(options.connect_timeout)
            .request_timeout(Some(options.request_timeout))
            .reconnect_delay_callback(reconnect_delay)
            .event_callback(move |event| {
                on_event(&event, &connections, &losses);
                std::future::ready(())
            });
        let servers = parse_servers(&options.servers)?;
        if let Some(credentials) = Credentials::find(options, &servers)? {
            settings = credentials.apply(settings)?.custom_inbox_prefix(credentials.inbox_prefix());
        }
        if let Some(path) = &options.ca_file {
            settings = settings.add_root_certificates(path.clone());
        }
        let limit = options.connect_timeout.saturating_mul(u32::try_from(servers.len()).unwrap_or(u32::MAX));
        let addresses: Vec<&str> = options.servers.iter().map(|server| without_credentials(server)).collect();
        let message = || format!("cannot connect to NATS at {}", addresses.join(", "));
        let client = timeout(limit, settings.connect(servers))
            .await
            .map_err(|_| Error::unavailable(format!("{}: timed out", message())))?
            .map_err(|error| Error::unavailable(message()).with_source(error))?;
        Ok(Self { client, limit: options.request_timeout, connected, lost })
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Maximum size of a message beside its headers, which count too.
    pub(super) fn max_message(&self) -> usize {
        self.client.max_payload().saturating_sub(MAX_HEADERS)
    }

    pub(super) fn version(&self) -> String {
        self.client.server_info().version
    }

    pub(super) fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// Changes with every reconnect. The server has forgotten our requests then.
    pub(super) fn reconnects(&self) -> watch::Receiver<u64> {
        let mut receiver = self.connected.clone();
        receiver.mark_unchanged();
        receiver
    }

    /// Changes whenever messages for subscribers may have been lost.
    pub(super) fn losses(&self) -> watch::Receiver<u64> {
        let mut receiver = self.lost.clone();
        receiver.mark_unchanged();
        receiver
    }

    /// Applies the request timeout and converts the error.
    pub(super) async fn bounded<T, E>(
        &self,
        what: &str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        match timeout(self.limit, work).await {
            Ok(result) => result.map_err(|error| unavailable(what, error)),
            Err(_) => Err(Error::unavailable(format!("NATS: {what}: timed out"))),
        }
    }

    /// Sends a message to the current subscribers without waiting for a response. Fails while disconnected, because
    /// the client would send the message much later.
    pub(super) async fn send(&self, what: &str, subject: String, message: Sealed) -> Result<()> {
        self.check_connected()?;
        self.bounded(what, self.enqueue(subject, message)).await
    }

    /// Hands a message to the client, which may wait for room in its buffer.
    pub(super) async fn enqueue(&self, subject: String, message: Sealed) -> Result<(), PublishError> {
        match message.headers {
            Some(headers) => self.client.publish_with_headers(subject, headers, message.payload).await,
            None => self.client.publish(subject, message.payload).await,
        }
    }

    /// Tells the server about a token. Its kind says everything, so it needs no envelope.
    pub(super) async fn acknowledge(&self, what: &str, reply: &Subject, kind: AckKind) -> Result<()> {
        self.check_connected()?;
        self.bounded(what, self.client.publish(reply.clone(), kind.into())).await
    }

    pub(super) fn check_connected(&self) -> Result<()> {
        if self.is_connected() { Ok(()) } else { Err(Error::unavailable("not connected to NATS")) }
    }

    pub(super) async fn flush(&self) -> Result<()> {
        self.bounded("flush", self.client.flush()).await
    }

    /// Subscribes and returns once the server has registered it: everything published from then on arrives.
    pub(super) async fn subscribe(&self, subject: String, no_responders: &str) -> Result<Subscriber> {
        let subscriber = self.subscribe_unconfirmed(subject).await?;
        self.round_trip(no_responders).await?;
        Ok(subscriber)
    }

    /// Subscribes without waiting for the server.
    pub(super) async fn subscribe_unconfirmed(&self, subject: String) -> Result<Subscriber> {
        self.check_connected()?;
        self.bounded("subscribe", self.client.subscribe(subject)).await
    }

    /// Returns when the server has processed everything sent before on this connection.
    ///
    /// A request without responders is answered immediately. It has one if somebody subscribes to everything, who need
    /// not answer; then JetStream is asked.
    pub(super) async fn round_trip(&self, no_responders: &str) -> Result<()> {
        self.check_connected()?;
        let first = self.client.request(no_responders.to_owned(), Bytes::new());
        let second = async {
            tokio::time::sleep(ASK_JETSTREAM_AFTER).await;
            self.client.request("$JS.API.INFO", Bytes::new()).await
        };
        let response = async {
            tokio::select! {
                response = first => response,
                response = second => response,
            }
        };
        match timeout(self.limit, response).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => Ok(()),
            Ok(Err(error)) => Err(unavailable("no response", error)),
            Err(_) => Err(Error::unavailable("NATS: no response in time")),
        }
    }
}

fn parse_servers(urls: &[String]) -> Result<Vec<async_nats::ServerAddr>> {
    let parse = |url: &String| {
        // Without the source: a URL may contain a password.
        url.parse().map_err(|_| Error::invalid("servers", "expected URLs such as nats://host:4222"))
    };
    urls.iter().map(parse).collect()
}

fn reconnect_delay(attempts: usize) -> Duration {
    let doublings = u32::try_from(attempts.saturating_sub(1)).unwrap_or(u32::MAX).min(10);
    (FIRST_RECONNECT_DELAY * 2u32.pow(doublings)).min(MAX_RECONNECT_DELAY)
}

fn on_event(event: &Event, connections: &watch::Sender<u64>, losses: &watch::Sender<u64>) {
    match event {
        Event::Connected => connections.send_modify(|count| *count += 1),
        Event::Disconnected | Event::SlowConsumer(_) | Event::Closed => {
            losses.send_modify(|count| *count += 1)
        }
        _ => {}
    }
    match event {
        Event::Connected | Event::Draining | Event::Closed => tracing::debug!(%event, "NATS connection"),
        _ => tracing::warn!(%event, "NATS connection"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reconnect_delays_grow_to_a_limit() {
        assert_eq!(reconnect_delay(0), FIRST_RECONNECT_DELAY);
        assert_eq!(reconnect_delay(1), FIRST_RECONNECT_DELAY);
        assert!(reconnect_delay(3) > reconnect_delay(2));
        assert_eq!(reconnect_delay(usize::MAX), MAX_RECONNECT_DELAY);
    }
}
