//! Tokens: messages of a work queue stream whose subject says all there is to say.

mod source;

use std::{sync::Arc, time::Duration};

use async_nats::{
    Request, RequestErrorKind, Subject,
    jetstream::{AckKind, stream::LastRawMessageErrorKind},
};
use async_trait::async_trait;
use chrono::Utc;
use remuda_domain::{
    Pool, SessionId, TenantId,
    error::{Error, Result},
    trace::TraceContext,
};
use serde::Deserialize;
use tokio::time::timeout;

pub(super) use self::source::NatsTokens;
use super::{Shared, trace, unavailable};
use crate::traits::{Published, Token};

/// The one refusal that means the session has a token. Its error code is shared by every failure to store, a failed disk
/// included, so only the text tells.
const OCCUPIED: &str = "maximum messages per subject exceeded";

/// Longer delays would overflow what the server keeps time in.
const LONGEST_DELAY: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Deserialize)]
struct Answer {
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

/// What an attempt to publish came to, when it came to anything.
enum Attempt {
    Published(Published),
    /// No stream takes the subject: the server was wiped.
    NoStream,
}

pub(super) async fn publish(
    shared: &Shared,
    pool: &Pool,
    tenant: TenantId,
    session: SessionId,
    origin: Option<TraceContext>,
) -> Result<Published> {
    let subject = shared.names.token(pool, tenant, session);
    if let Attempt::Published(published) = attempt(shared, subject.clone(), origin).await? {
        return Ok(published);
    }
    shared.repair(pool).await?;
    match attempt(shared, subject, origin).await? {
        Attempt::Published(published) => Ok(published),
        Attempt::NoStream => Err(Error::unavailable("NATS: no stream takes tokens")),
    }
}

/// Without a message id: the server would drop a later token with the same id as a duplicate, and say it was stored.
async fn attempt(shared: &Shared, subject: String, origin: Option<TraceContext>) -> Result<Attempt> {
    shared.control.check_connected()?;
    let mut request = Request::new();
    if let Some(origin) = origin {
        request = request.headers(trace::headers(origin));
    }
    let request = shared.control.client().send_request(subject, request);
    match timeout(shared.options.request_timeout, request).await {
        Ok(Ok(message)) => judge(&message.payload).map(Attempt::Published),
        Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => Ok(Attempt::NoStream),
        Ok(Err(error)) => Err(unavailable("publish token", error)),
        Err(_) => Err(Error::unavailable("NATS: publish token: timed out")),
    }
}

fn judge(answer: &[u8]) -> Result<Published> {
    let answer: Answer =
        serde_json::from_slice(answer).map_err(|error| unavailable("publish token", error))?;
    match answer.error {
        None => Ok(Published::Stored),
        Some(refusal) if refusal.description == OCCUPIED => Ok(Published::AlreadyScheduled),
        Some(Refusal { err_code, description }) => {
            Err(Error::unavailable(format!("NATS: publish token: {description} (code {err_code})")))
        }
    }
}

/// Deletes the stored token of a session if it is older than `older_than`.
pub(super) async fn discard(
    shared: &Shared,
    pool: &Pool,
    tenant: TenantId,
    session: SessionId,
    older_than: Duration,
) -> Result<bool> {
    shared.control.check_connected()?;
    let subject = shared.names.token(pool, tenant, session);
    let limit = shared.options.request_timeout;
    let stream = shared.jetstream.get_stream_no_info(shared.names.stream());
    let stream = shared.control.bounded("stream", stream).await?;
    let stored = match timeout(limit, stream.get_last_raw_message_by_subject(&subject)).await {
        Ok(Ok(stored)) => stored,
        Ok(Err(error)) => match error.kind() {
            LastRawMessageErrorKind::NoMessageFound => return Ok(false),
            LastRawMessageErrorKind::JetStream(reason) if reason.code() == 404 => return Ok(false),
            _ => return Err(unavailable("look up token", error)),
        },
        Err(_) => return Err(Error::unavailable("NATS: look up token: timed out")),
    };
    let age = Utc::now().signed_duration_since(stored.time).to_std().unwrap_or_default();
    if age < older_than {
        return Ok(false);
    }
    // By sequence, so that a token published in the meantime is not hit.
    shared.control.bounded("delete token", stream.delete_message(stored.sequence)).await
}

/// A token in our hands. The server gives it to another worker `ack_wait` after the last sign of life.
struct NatsToken {
    shared: Arc<Shared>,
    tenant: TenantId,
    session: SessionId,
    origin: Option<TraceContext>,
    reply: Subject,
}

#[async_trait]
impl Token for NatsToken {
    fn tenant(&self) -> TenantId {
        self.tenant
    }

    fn session(&self) -> SessionId {
        self.session
    }

    fn origin(&self) -> Option<TraceContext> {
        self.origin
    }

    async fn keep_alive(&self) -> Result<()> {
        let payload = AckKind::Progress.into();
        self.shared.control.publish("keep token", self.reply.to_string(), payload).await
    }

    fn keep_alive_every(&self) -> Duration {
        self.shared.options.ack_wait / 3
    }

    /// Asks for an answer: an ack alone returns before the token is gone.
    async fn finish(self: Box<Self>) -> Result<()> {
        self.shared.control.check_connected()?;
        let request = self.shared.control.client().request(self.reply.clone(), AckKind::Ack.into());
        self.shared.control.bounded("finish token", request).await.map(drop)
    }

    async fn retry_after(self: Box<Self>, delay: Duration) -> Result<()> {
        let delay = (!delay.is_zero()).then(|| delay.min(LONGEST_DELAY));
        let payload = AckKind::Nak(delay).into();
        self.shared.control.publish("give back token", self.reply.to_string(), payload).await
    }
}

#[cfg(test)]
mod tests {
    use remuda_domain::Code;

    use super::*;

    #[test]
    fn only_the_text_tells_an_occupied_subject_from_a_failed_disk() {
        let refused = |text: &str| {
            judge(format!(r#"{{"error":{{"code":503,"err_code":10077,"description":"{text}"}}}}"#).as_bytes())
        };
        assert_eq!(judge(br#"{"stream":"REMUDA_TOKENS","seq":7}"#).unwrap(), Published::Stored);
        assert_eq!(refused(OCCUPIED).unwrap(), Published::AlreadyScheduled);
        for other in ["no space left on device", "maximum bytes exceeded", ""] {
            assert_eq!(refused(other).unwrap_err().code(), Code::Unavailable);
        }
        assert_eq!(judge(b"").unwrap_err().code(), Code::Unavailable);
    }
}
