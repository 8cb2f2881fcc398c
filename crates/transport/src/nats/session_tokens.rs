//! Session tokens: messages in a work queue stream. The subject holds all data.

mod source;

use std::{sync::Arc, time::Duration};

use async_nats::{
    Request, RequestErrorKind, Subject,
    jetstream::{AckKind, stream::LastRawMessageErrorKind},
};
use async_trait::async_trait;
use bytes::Bytes;
use chrono::Utc;
use remuda_domain::{
    Pool, SessionId, TenantId,
    error::{Error, Result},
    trace::TraceContext,
};
use serde::Deserialize;
use tokio::time::timeout;

pub(super) use self::source::NatsTokens;
use super::{Shared, envelope::Sealed, unavailable};
use crate::traits::{Published, Token};

/// The only rejection which means that the session has a token. Its error code is shared by every failure to store,
/// including a failed disk, so only the text distinguishes it.
const SUBJECT_OCCUPIED: &str = "maximum messages per subject exceeded";

/// Longer delays would overflow the server's time type.
const MAX_DELAY: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Deserialize)]
/// Response to a publish.
struct PublishResponse {
    error: Option<PublishError>,
}

#[derive(Deserialize)]
struct PublishError {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

/// Result of one attempt to publish.
enum PublishAttempt {
    Published(Published),
    /// No stream accepts the subject: the server was wiped.
    NoStream,
}

pub(super) async fn publish(
    shared: &Shared,
    pool: &Pool,
    tenant: TenantId,
    session: SessionId,
    origin: Option<TraceContext>,
) -> Result<Published> {
    let subject = shared.subjects.token(pool, tenant, session);
    if let PublishAttempt::Published(published) = attempt(shared, subject.clone(), origin).await? {
        return Ok(published);
    }
    shared.repair(pool).await?;
    match attempt(shared, subject, origin).await? {
        PublishAttempt::Published(published) => Ok(published),
        PublishAttempt::NoStream => Err(Error::unavailable("NATS: no stream accepts tokens")),
    }
}

/// Sends no message id: the server would drop a later token with the same id as a duplicate, and report it as stored.
async fn attempt(shared: &Shared, subject: String, origin: Option<TraceContext>) -> Result<PublishAttempt> {
    shared.control.check_connected()?;
    // The subject says everything, and the worker that takes the token claims the session from the store.
    let token = Sealed::hint(Bytes::new(), origin);
    let mut request = Request::new().payload(token.payload);
    if let Some(headers) = token.headers {
        request = request.headers(headers);
    }
    let request = shared.control.client().send_request(subject, request);
    match timeout(shared.options.request_timeout, request).await {
        Ok(Ok(message)) => parse_publish_response(&message.payload).map(PublishAttempt::Published),
        Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => Ok(PublishAttempt::NoStream),
        Ok(Err(error)) => Err(unavailable("publish token", error)),
        Err(_) => Err(Error::unavailable("NATS: publish token: timed out")),
    }
}

fn parse_publish_response(response: &[u8]) -> Result<Published> {
    let response: PublishResponse =
        serde_json::from_slice(response).map_err(|error| unavailable("publish token", error))?;
    match response.error {
        None => Ok(Published::Stored),
        Some(error) if error.description == SUBJECT_OCCUPIED => Ok(Published::AlreadyScheduled),
        Some(PublishError { err_code, description }) => {
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
    let subject = shared.subjects.token(pool, tenant, session);
    let limit = shared.options.request_timeout;
    let stream = shared.jetstream.get_stream_no_info(shared.subjects.stream());
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
    // Delete by sequence, so that a token published in the meantime is not hit.
    shared.control.bounded("delete token", stream.delete_message(stored.sequence)).await
}

/// A token held by this process. The server redelivers it to another worker `ack_wait` after the last keep-alive.
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
        self.shared.control.acknowledge("keep token alive", &self.reply, AckKind::Progress).await
    }

    fn keep_alive_every(&self) -> Duration {
        self.shared.options.ack_wait / 3
    }

    /// Waits for a response: a plain ack returns before the token is gone.
    async fn finish(self: Box<Self>) -> Result<()> {
        self.shared.control.check_connected()?;
        let request = self.shared.control.client().request(self.reply.clone(), AckKind::Ack.into());
        self.shared.control.bounded("finish token", request).await.map(drop)
    }

    async fn retry_after(self: Box<Self>, delay: Duration) -> Result<()> {
        let delay = (!delay.is_zero()).then(|| delay.min(MAX_DELAY));
        self.shared.control.acknowledge("put back token", &self.reply, AckKind::Nak(delay)).await
    }
}

#[cfg(test)]
mod tests {
    use remuda_domain::Code;

    use super::*;

    #[test]
    fn only_the_error_text_distinguishes_an_occupied_subject_from_a_failed_disk() {
        let rejected = |text: &str| {
            parse_publish_response(
                format!(r#"{{"error":{{"code":503,"err_code":10077,"description":"{text}"}}}}"#).as_bytes(),
            )
        };
        assert_eq!(
            parse_publish_response(br#"{"stream":"REMUDA_TOKENS","seq":7}"#).unwrap(),
            Published::Stored
        );
        assert_eq!(rejected(SUBJECT_OCCUPIED).unwrap(), Published::AlreadyScheduled);
        for other in ["no space left on device", "maximum bytes exceeded", ""] {
            assert_eq!(rejected(other).unwrap_err().code(), Code::Unavailable);
        }
        assert_eq!(parse_publish_response(b"").unwrap_err().code(), Code::Unavailable);
    }
}
