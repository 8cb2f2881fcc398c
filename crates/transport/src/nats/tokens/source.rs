//! Pulling tokens.
//!
//! A pull request stays open on the server until it is filled or expires, and what the server sends to someone who no
//! longer listens is lost to everyone for `ack_wait`. So requests are not tied to calls of `take`: the source keeps one
//! inbox open over its whole life, remembers how much it has asked for ([`Demand`]), returns as soon as anything comes,
//! and asks for the difference the next time. It never asks for more than the caller has room for. When the caller's
//! room shrinks, when something went wrong, and when the source is dropped, the inbox is abandoned: a task listens to it
//! until its requests are over and gives back at once what still comes. (Draining the subscription would be shorter, but
//! the client library does not wait for what is under way.)

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
    nats::{Shared, demand::Demand, trace},
    traits::{Token, TokenSource},
};

/// How long a pull request stays open, and `take` waits. Expiry is also the heartbeat: a server that says nothing about
/// a request for longer has forgotten it.
const EXPIRES: Duration = Duration::from_secs(5);
/// A server that answers everything but this many pulls in a row has a consumer that cannot speak. NATS before 2.9.16 makes
/// such a one when it is created in the moment in which another process creates its stream.
const MUTE_AFTER: u32 = 2;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const LEFT_HEADER: &str = "Nats-Pending-Messages";

/// A pull request.
#[derive(Serialize)]
struct Pull {
    batch: usize,
    /// In nanoseconds.
    expires: u128,
}

pub(in crate::nats) struct NatsTokens {
    shared: Arc<Shared>,
    pool: Pool,
    inbox: Option<Inbox>,
    demand: Demand,
    reconnects: watch::Receiver<u64>,
    /// The consumer may be gone: look before the next request.
    in_doubt: bool,
    /// Requests in a row that the server said nothing about.
    unanswered: u32,
    pause: Duration,
    last_take: Instant,
    deliveries: Deliveries,
}

struct Inbox {
    subject: String,
    subscriber: Subscriber,
}

/// What became of waiting.
enum Received {
    Token(Message),
    /// Nothing to hand out, but the demand has changed.
    Changed,
    Silence,
}

#[async_trait]
impl TokenSource for NatsTokens {
    async fn take(&mut self, max: usize) -> Result<Vec<Box<dyn Token>>> {
        self.forget_what_is_old();
        let deadline = Instant::now() + EXPIRES;
        let result = self.take_until(max, deadline).await;
        self.last_take = Instant::now();
        result
    }
}

impl NatsTokens {
    pub(in crate::nats) fn new(shared: Arc<Shared>, pool: Pool) -> Self {
        let reconnects = shared.control.reconnects();
        let deliveries = shared.meters.of(&pool);
        Self {
            shared,
            pool,
            inbox: None,
            demand: Demand::default(),
            reconnects,
            in_doubt: true,
            unanswered: 0,
            pause: FIRST_PAUSE,
            last_take: Instant::now(),
            deliveries,
        }
    }

    async fn take_until(&mut self, max: usize, deadline: Instant) -> Result<Vec<Box<dyn Token>>> {
        if self.demand.total() > max {
            self.abandon(true);
        }
        if max == 0 {
            return Ok(Vec::new());
        }
        loop {
            if let Err(error) = self.ask(max).await {
                self.abandon(true);
                self.in_doubt = true;
                if !self.rest(deadline).await {
                    return Err(error);
                }
                continue;
            }
            // No await from here to the return: a token must not be held by a future that may be dropped.
            match self.receive(deadline).await {
                Received::Token(first) => {
                    let tokens = self.collect(first, max);
                    if !tokens.is_empty() {
                        self.pause = FIRST_PAUSE;
                        return Ok(tokens);
                    }
                }
                Received::Changed => {}
                Received::Silence => return Ok(Vec::new()),
            }
        }
    }

    /// Makes the demand equal to what the caller has room for.
    async fn ask(&mut self, max: usize) -> Result<()> {
        self.shared.control.check_connected()?;
        if self.unanswered >= MUTE_AFTER {
            self.shared.remove_consumer(&self.pool).await?;
            self.unanswered = 0;
        }
        if self.in_doubt {
            self.shared.repair(&self.pool).await?;
            self.in_doubt = false;
        }
        let missing = max.saturating_sub(self.demand.total());
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
        let pull = serde_json::to_vec(&Pull { batch: missing, expires: EXPIRES.as_nanos() })
            .map_err(|error| Error::internal("cannot write a pull request").with_source(error))?;
        let request = client.publish_with_reply(
            self.shared.names.next_message(&self.pool),
            inbox.subject.clone(),
            pull.into(),
        );
        self.shared.control.bounded("pull", request).await?;
        self.demand.asked(missing, Instant::now() + EXPIRES);
        Ok(())
    }

    async fn receive(&mut self, deadline: Instant) -> Received {
        let Some(inbox) = &mut self.inbox else { return Received::Silence };
        let overdue = self.demand.overdue_at().unwrap_or(deadline);
        let message = tokio::select! {
            biased;
            message = inbox.subscriber.next() => message,
            _ = self.reconnects.changed() => {
                // The server has forgotten our requests, or is another one.
                self.abandon(true);
                self.in_doubt = true;
                return Received::Changed;
            }
            () = sleep_until(overdue.min(deadline)) => {
                if overdue > deadline {
                    return Received::Silence;
                }
                tracing::debug!(pool = %self.pool, "a pull request was not answered");
                self.abandon(true);
                self.in_doubt = true;
                self.unanswered += 1;
                return Received::Changed;
            }
        };
        self.unanswered = 0;
        self.sort(message)
    }

    /// Tells tokens from the server's remarks.
    fn sort(&mut self, message: Option<Message>) -> Received {
        let Some(message) = message else {
            self.inbox = None;
            self.demand = Demand::default();
            return Received::Changed;
        };
        match message.status.unwrap_or(StatusCode::OK) {
            StatusCode::OK => {
                self.demand.settle(1);
                return Received::Token(message);
            }
            StatusCode::IDLE_HEARTBEAT => {}
            StatusCode::TIMEOUT | StatusCode::NOT_FOUND => {
                self.pause = FIRST_PAUSE;
                self.demand.settle_ended(message.headers.as_ref().and_then(left_in));
            }
            status => {
                // No such consumer, too many waiting requests, a server that shuts down.
                tracing::warn!(pool = %self.pool, %status, reason = message.description, "a pull request was refused");
                self.abandon(true);
                self.in_doubt = true;
            }
        }
        Received::Changed
    }

    /// The first token and whatever else has arrived, up to `max`.
    fn collect(&mut self, first: Message, max: usize) -> Vec<Box<dyn Token>> {
        let mut tokens = Vec::new();
        tokens.extend(self.hold(first));
        while tokens.len() < max {
            let Some(inbox) = &mut self.inbox else { break };
            let Some(message) = inbox.subscriber.next().now_or_never() else { break };
            if let Received::Token(message) = self.sort(message) {
                tokens.extend(self.hold(message));
            }
        }
        tokens
    }

    fn hold(&self, message: Message) -> Option<Box<dyn Token>> {
        let reply = message.reply?;
        let Some((tenant, session)) = self.shared.names.parse_token(&message.subject) else {
            tracing::warn!(subject = %message.subject, "removing a message that is not a token");
            let shared = Arc::clone(&self.shared);
            self.shared.tasks.spawn(async move {
                shared.control.publish("remove message", reply.to_string(), AckKind::Term.into()).await.ok();
            });
            return None;
        };
        self.deliveries.count(1, u64::from(times_delivered(&reply) > 1));
        let origin = message.headers.as_ref().and_then(trace::context);
        Some(Box::new(NatsToken { shared: Arc::clone(&self.shared), tenant, session, origin, reply }))
    }

    /// Tokens that lie in the inbox for long may be with another worker by now; handing them out, or giving them back,
    /// would disturb it. Happens only to callers that do not ask while they have room.
    fn forget_what_is_old(&mut self) {
        if self.last_take.elapsed() > self.shared.options.ack_wait / 2 && self.demand.total() > 0 {
            self.abandon(false);
        }
    }

    /// Stops using the inbox. What is still under way is given back, or left to come back by itself.
    fn abandon(&mut self, give_back: bool) {
        let demand = mem::take(&mut self.demand);
        let Some(inbox) = self.inbox.take() else { return };
        // Dropped outside a runtime there is nobody to do it; the server will after a while.
        if let (true, Ok(runtime)) = (give_back, Handle::try_current()) {
            let task = give_back_all(Arc::clone(&self.shared), inbox.subscriber, demand);
            self.shared.tasks.spawn_on(task, &runtime);
        }
    }

    /// Waits a growing while before another try; `false` when the deadline comes first.
    async fn rest(&mut self, deadline: Instant) -> bool {
        let until = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        sleep_until(until.min(deadline)).await;
        until < deadline
    }
}

impl Drop for NatsTokens {
    fn drop(&mut self) {
        self.abandon(self.last_take.elapsed() < self.shared.options.ack_wait / 2);
    }
}

/// How often a message was delivered, this time included, which stands in the subject of its acks:
/// `$JS.ACK.<stream>.<consumer>.<times>.…`, from newer servers `$JS.ACK.<domain>.<account>.<stream>.<consumer>.<times>.…`.
fn times_delivered(reply: &str) -> u64 {
    let parts: Vec<&str> = reply.split('.').collect();
    let times = if parts.len() > 9 { parts.get(6) } else { parts.get(4) };
    times.and_then(|times| times.parse().ok()).unwrap_or(1)
}

/// How many messages the server says were left of a request that ended.
fn left_in(headers: &HeaderMap) -> Option<usize> {
    headers.get(LEFT_HEADER)?.as_str().parse().ok()
}

/// Gives back what comes until the server owes nothing more.
async fn give_back_all(shared: Arc<Shared>, mut subscriber: Subscriber, mut demand: Demand) {
    while let Some(overdue) = demand.overdue_at() {
        let Ok(Some(message)) = timeout_at(overdue, subscriber.next()).await else { return };
        match (message.status.unwrap_or(StatusCode::OK), message.reply) {
            (StatusCode::OK, Some(reply)) => {
                demand.settle(1);
                let payload = AckKind::Nak(None).into();
                if let Err(error) =
                    shared.control.publish("give back token", reply.to_string(), payload).await
                {
                    tracing::debug!(%error, "a token comes back late");
                }
            }
            (StatusCode::OK | StatusCode::IDLE_HEARTBEAT, _) => {}
            (StatusCode::TIMEOUT | StatusCode::NOT_FOUND, _) => {
                demand.settle_ended(message.headers.as_ref().and_then(left_in));
            }
            // The request was refused, or its consumer is gone.
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::times_delivered;

    #[test]
    fn servers_say_how_often_a_token_came() {
        assert_eq!(times_delivered("$JS.ACK.REMUDA_TOKENS.default.1.7.7.1700000000000000000.0"), 1);
        assert_eq!(times_delivered("$JS.ACK.REMUDA_TOKENS.default.3.7.9.1700000000000000000.0"), 3);
        assert_eq!(
            times_delivered("$JS.ACK._.ACCHASH.REMUDA_TOKENS.default.2.7.9.1700000000000000000.0.x"),
            2
        );
        assert_eq!(times_delivered("anything"), 1);
    }
}
