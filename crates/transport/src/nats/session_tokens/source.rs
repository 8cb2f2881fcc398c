//! Pulls tokens.
//!
//! A pull request stays open on the server until it is filled or expires, and what the server sends to a closed inbox
//! is lost to everyone for `ack_wait`. So requests are not tied to calls of `take`: the source keeps one inbox open
//! during its whole lifetime, records how much it has requested ([`OpenPulls`]), returns as soon as anything arrives,
//! and requests the difference the next time. It never requests more than the caller has free slots for. When the
//! caller's free slots shrink, after an error, and when the source is dropped, the inbox is abandoned: a task reads
//! it until its requests have ended and puts back immediately what still arrives. (Draining the subscription would be
//! simpler, but the client library does not wait for messages in transit.)

use std::{mem, sync::Arc, time::Duration};

use async_nats::{HeaderMap, Message, StatusCode, Subscriber, jetstream::AckKind};
use async_trait::async_trait;
use futures::{FutureExt, StreamExt};
use remuda_domain::{
    Pool,
    error::{Error, Result},
};
use serde::Serialize;
use tokio::{
    runtime::Handle,
    sync::watch,
    time::{Instant, sleep_until, timeout_at},
};

use super::NatsToken;
use crate::{
    meters::Deliveries,
    nats::{Shared, envelope, open_pulls::OpenPulls},
    traits::{Token, TokenSource},
};

/// How long a pull request stays open, and `take` waits. Expiry is also the heartbeat: a server that says nothing
/// about a request for longer has forgotten it.
const EXPIRES: Duration = Duration::from_secs(5);
/// If this many pull requests in a row get no response from a server that otherwise responds, the consumer is broken.
/// NATS before 2.9.16 creates such consumers while another process creates their stream.
const RECREATE_CONSUMER_AFTER: u32 = 2;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_secs(1);
const REMAINING_HEADER: &str = "Nats-Pending-Messages";

/// Body of a pull request.
#[derive(Serialize)]
struct PullRequest {
    batch: usize,
    /// In nanoseconds.
    expires: u128,
}

pub(in crate::nats) struct NatsTokens {
    shared: Arc<Shared>,
    pool: Pool,
    inbox: Option<Inbox>,
    open_pulls: OpenPulls,
    reconnects: watch::Receiver<u64>,
    /// The consumer may be gone: check before the next request.
    consumer_uncertain: bool,
    /// Consecutive requests without any response.
    unanswered: u32,
    pause: Duration,
    last_take: Instant,
    deliveries: Deliveries,
}

struct Inbox {
    subject: String,
    subscriber: Subscriber,
}

/// Result of waiting for the inbox.
enum PullEvent {
    Token(Message),
    /// No token, but the open requests have changed.
    Changed,
    TimedOut,
}

#[async_trait]
impl TokenSource for NatsTokens {
    async fn take(&mut self, max: usize) -> Result<Vec<Box<dyn Token>>> {
        self.discard_stale_inbox();
        let deadline = Instant::now() + EXPIRES;
        let result = self.take_until(max, deadline).await;
        self.last_take = Instant::now();
        result
    }
}

impl NatsTokens {
    pub(in crate::nats) fn new(shared: Arc<Shared>, pool: Pool) -> Self {
        let reconnects = shared.control.reconnects();
        let deliveries = shared.meters.deliveries(&pool);
        Self {
            shared,
            pool,
            inbox: None,
            open_pulls: OpenPulls::default(),
            reconnects,
            consumer_uncertain: true,
            unanswered: 0,
            pause: FIRST_PAUSE,
            last_take: Instant::now(),
            deliveries,
        }
    }

    async fn take_until(&mut self, max: usize, deadline: Instant) -> Result<Vec<Box<dyn Token>>> {
        if self.open_pulls.total() > max {
            self.abandon(true);
        }
        if max == 0 {
            return Ok(Vec::new());
        }
        loop {
            if let Err(error) = self.request_tokens(max).await {
                self.abandon(true);
                self.consumer_uncertain = true;
                if !self.back_off(deadline).await {
                    return Err(error);
                }
                continue;
            }
            // No await from here to the return: a token must not be held by a future that may be dropped.
            match self.receive(deadline).await {
                PullEvent::Token(first) => {
                    let tokens = self.collect(first, max);
                    if !tokens.is_empty() {
                        self.pause = FIRST_PAUSE;
                        return Ok(tokens);
                    }
                }
                PullEvent::Changed => {}
                PullEvent::TimedOut => return Ok(Vec::new()),
            }
        }
    }

    /// Requests as many tokens as the caller has free slots for, less those already requested.
    async fn request_tokens(&mut self, max: usize) -> Result<()> {
        self.shared.control.check_connected()?;
        if self.unanswered >= RECREATE_CONSUMER_AFTER {
            self.shared.remove_consumer(&self.pool).await?;
            self.unanswered = 0;
        }
        if self.consumer_uncertain {
            self.shared.repair(&self.pool).await?;
            self.consumer_uncertain = false;
        }
        let missing = max.saturating_sub(self.open_pulls.total());
        if missing == 0 {
            return Ok(());
        }
        let client = self.shared.control.client();
        let inbox = match &mut self.inbox {
            Some(inbox) => inbox,
            none => {
                let subject = client.new_inbox();
                let subscriber =
                    self.shared.control.bounded("subscribe", client.subscribe(subject.clone())).await?;
                none.insert(Inbox { subject, subscriber })
            }
        };
        let pull = serde_json::to_vec(&PullRequest { batch: missing, expires: EXPIRES.as_nanos() })
            .map_err(|error| Error::internal("cannot encode a pull request").with_source(error))?;
        let request = client.publish_with_reply(
            self.shared.subjects.next_message(&self.pool),
            inbox.subject.clone(),
            pull.into(),
        );
        self.shared.control.bounded("pull", request).await?;
        self.open_pulls.opened(missing, Instant::now() + EXPIRES);
        Ok(())
    }

    async fn receive(&mut self, deadline: Instant) -> PullEvent {
        let Some(inbox) = &mut self.inbox else { return PullEvent::TimedOut };
        let overdue = self.open_pulls.overdue_at().unwrap_or(deadline);
        let message = tokio::select! {
            biased;
            message = inbox.subscriber.next() => message,
            _ = self.reconnects.changed() => {
                // The server has forgotten our requests, or it is another server.
                self.abandon(true);
                self.consumer_uncertain = true;
                return PullEvent::Changed;
            }
            () = sleep_until(overdue.min(deadline)) => {
                if overdue > deadline {
                    return PullEvent::TimedOut;
                }
                tracing::debug!(pool = %self.pool, "pull request got no response");
                self.abandon(true);
                self.consumer_uncertain = true;
                self.unanswered += 1;
                return PullEvent::Changed;
            }
        };
        self.unanswered = 0;
        self.classify(message)
    }

    /// Tells tokens from status messages.
    fn classify(&mut self, message: Option<Message>) -> PullEvent {
        let Some(message) = message else {
            self.inbox = None;
            self.open_pulls = OpenPulls::default();
            return PullEvent::Changed;
        };
        match message.status.unwrap_or(StatusCode::OK) {
            StatusCode::OK => {
                self.open_pulls.settle(1);
                return PullEvent::Token(message);
            }
            StatusCode::IDLE_HEARTBEAT => {}
            StatusCode::TIMEOUT | StatusCode::NOT_FOUND => {
                self.pause = FIRST_PAUSE;
                self.open_pulls.settle_ended(message.headers.as_ref().and_then(remaining_messages));
            }
            status => {
                // No such consumer, too many open requests, or a server that shuts down.
                tracing::warn!(pool = %self.pool, %status, reason = message.description, "pull request rejected");
                self.abandon(true);
                self.consumer_uncertain = true;
            }
        }
        PullEvent::Changed
    }

    /// The first token and those that have arrived already, up to `max`.
    fn collect(&mut self, first: Message, max: usize) -> Vec<Box<dyn Token>> {
        let mut tokens = Vec::new();
        tokens.extend(self.to_token(first));
        while tokens.len() < max {
            let Some(inbox) = &mut self.inbox else { break };
            let Some(message) = inbox.subscriber.next().now_or_never() else { break };
            if let PullEvent::Token(message) = self.classify(message) {
                tokens.extend(self.to_token(message));
            }
        }
        tokens
    }

    fn to_token(&self, message: Message) -> Option<Box<dyn Token>> {
        let Message { reply: Some(reply), subject, headers, .. } = message else { return None };
        let Some((tenant, session)) = self.shared.subjects.parse_token(&subject) else {
            if self.shared.envelope.may_log() {
                tracing::warn!(%subject, "removing a message that is not a token");
            }
            let shared = Arc::clone(&self.shared);
            self.shared.tasks.spawn(async move {
                shared.control.acknowledge("remove message", &reply, AckKind::Term).await.ok();
            });
            return None;
        };
        self.deliveries.count(1, u64::from(times_delivered(&reply) > 1));
        let origin = envelope::origin(headers.as_ref());
        Some(Box::new(NatsToken { shared: Arc::clone(&self.shared), tenant, session, origin, reply }))
    }

    /// Abandons an inbox that was not read for long. Its tokens may be with another worker by now; handing them out
    /// or putting them back would disturb that worker. This only happens to callers that do not take although they
    /// have free slots.
    fn discard_stale_inbox(&mut self) {
        if self.last_take.elapsed() > self.shared.options.ack_wait / 2 && self.open_pulls.total() > 0 {
            self.abandon(false);
        }
    }

    /// Stops using the inbox. Tokens in transit are put back, or left to be redelivered.
    fn abandon(&mut self, put_back: bool) {
        let open_pulls = mem::take(&mut self.open_pulls);
        let Some(inbox) = self.inbox.take() else { return };
        // Outside a runtime no task can put tokens back; the server redelivers them after `ack_wait`.
        if let (true, Ok(runtime)) = (put_back, Handle::try_current()) {
            let task = return_late_tokens(Arc::clone(&self.shared), inbox.subscriber, open_pulls);
            self.shared.tasks.spawn_on(task, &runtime);
        }
    }

    /// Backs off before a retry. `false` if the deadline comes first.
    async fn back_off(&mut self, deadline: Instant) -> bool {
        let until = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        sleep_until(until.min(deadline)).await;
        until < deadline
    }
}

impl Drop for NatsTokens {
    fn drop(&mut self) {
        self.abandon(self.last_take.elapsed() < self.shared.options.ack_wait / 2);
    }
}

/// Delivery count of a message, this delivery included. It is part of the ack subject:
/// `$JS.ACK.<stream>.<consumer>.<times>.…`, from newer servers
/// `$JS.ACK.<domain>.<account>.<stream>.<consumer>.<times>.…`.
fn times_delivered(reply: &str) -> u64 {
    let parts: Vec<&str> = reply.split('.').collect();
    let times = if parts.len() > 9 { parts.get(6) } else { parts.get(4) };
    times.and_then(|times| times.parse().ok()).unwrap_or(1)
}

/// How many messages remained when a request ended, according to the server.
fn remaining_messages(headers: &HeaderMap) -> Option<usize> {
    headers.get(REMAINING_HEADER)?.as_str().parse().ok()
}

/// Puts back what arrives until all requests have ended.
async fn return_late_tokens(shared: Arc<Shared>, mut subscriber: Subscriber, mut open_pulls: OpenPulls) {
    while let Some(overdue) = open_pulls.overdue_at() {
        let Ok(Some(message)) = timeout_at(overdue, subscriber.next()).await else { return };
        match (message.status.unwrap_or(StatusCode::OK), message.reply) {
            (StatusCode::OK, Some(reply)) => {
                open_pulls.settle(1);
                let put_back = shared.control.acknowledge("put back token", &reply, AckKind::Nak(None));
                if let Err(error) = put_back.await {
                    tracing::debug!(%error, "token was not put back; it will be redelivered");
                }
            }
            (StatusCode::OK | StatusCode::IDLE_HEARTBEAT, _) => {}
            (StatusCode::TIMEOUT | StatusCode::NOT_FOUND, _) => {
                open_pulls.settle_ended(message.headers.as_ref().and_then(remaining_messages));
            }
            // The request was rejected, or its consumer is gone.
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::times_delivered;

    #[test]
    fn delivery_count_is_read_from_the_ack_subject() {
        assert_eq!(times_delivered("$JS.ACK.REMUDA_TOKENS.default.1.7.7.1700000000000000000.0"), 1);
        assert_eq!(times_delivered("$JS.ACK.REMUDA_TOKENS.default.3.7.9.1700000000000000000.0"), 3);
        assert_eq!(
            times_delivered("$JS.ACK._.ACCHASH.REMUDA_TOKENS.default.2.7.9.1700000000000000000.0.x"),
            2
        );
        assert_eq!(times_delivered("anything"), 1);
    }
}
