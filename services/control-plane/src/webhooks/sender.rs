//! Sends one delivery over HTTP and classifies the response.

use std::{sync::Arc, time::Duration};

use chrono::Utc;
use rand::Rng as _;
use remuda_domain::{
    DeliveryId,
    error::{Code, Error, Result},
    webhook::{DeliveryFailure, MAX_RETRY_DELAY, WebhookSecret, retry_delay},
};
use remuda_egress::{AllowRule, Egress, PinnedTarget, Resolve, SystemResolver, check_url, root_cause};
use reqwest::{Response, StatusCode, header};
use tokio::time::timeout;

use super::signature::sign;

/// How much of a response body is read, so that its connection can be reused.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;

/// Configuration of webhook deliveries.
#[derive(Clone, Debug)]
pub struct WebhookOptions {
    /// Hosts and networks that are allowed although they are not public.
    pub allowed: Vec<AllowRule>,
    pub resolver: Arc<dyn Resolve>,
    /// Timeout of one attempt, from name resolution to the response.
    pub timeout: Duration,
    /// Attempts before an event becomes a dead letter.
    pub max_attempts: u32,
    /// Delay before the second attempt; it doubles with each further one.
    pub retry_delay: Duration,
}

impl Default for WebhookOptions {
    fn default() -> Self {
        Self {
            allowed: Vec::new(),
            resolver: Arc::new(SystemResolver),
            timeout: Duration::from_secs(10),
            max_attempts: 12,
            retry_delay: Duration::from_secs(5),
        }
    }
}

/// Sends deliveries within the network rules.
#[derive(Debug)]
pub(crate) struct WebhookSender {
    egress: Egress,
    timeout: Duration,
    pub(super) max_attempts: u32,
    retry_delay: Duration,
}

/// The content of one delivery.
#[derive(Clone, Debug)]
pub(crate) struct Delivery<'a> {
    pub(crate) id: DeliveryId,
    pub(crate) body: String,
    pub(crate) secrets: &'a [WebhookSecret],
}

/// The outcome of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    Accepted {
        status: u16,
    },
    /// The receiver wants no more deliveries (status 410).
    Gone(DeliveryFailure),
    Failed {
        failure: DeliveryFailure,
        /// The receiver's `Retry-After` header.
        retry_after: Option<Duration>,
    },
}

impl SendOutcome {
    fn failed(status: Option<u16>, message: impl Into<String>) -> Self {
        let failure = DeliveryFailure { status, message: message.into() };
        Self::Failed { failure, retry_after: None }
    }
}

impl WebhookSender {
    pub(crate) fn new(options: WebhookOptions) -> Self {
        let WebhookOptions { allowed, resolver, timeout, max_attempts, retry_delay } = options;
        Self { egress: Egress::new("url", allowed, resolver), timeout, max_attempts, retry_delay }
    }

    /// Checks whether a webhook may have this URL. A host that cannot be resolved is accepted, as it may exist later;
    /// every delivery is checked again.
    pub(crate) async fn check(&self, url: &str) -> Result<()> {
        let url = check_url("url", url)?;
        match timeout(self.timeout, self.egress.check(url)).await {
            Ok(Err(error)) if error.code() != Code::Unavailable => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes one attempt. `target` is kept for the next delivery to the same URL.
    pub(crate) async fn send(
        &self,
        url: &str,
        target: &mut Option<PinnedTarget>,
        delivery: &Delivery<'_>,
    ) -> SendOutcome {
        let attempt = async {
            let target = match target {
                Some(target) => target,
                None => target.insert(self.open(url).await?),
            };
            Ok::<SendOutcome, Error>(post(target, delivery).await)
        };
        match timeout(self.timeout, attempt).await {
            Ok(Ok(outcome)) => outcome,
            // Without the source: why a name cannot be resolved is of no use to the webhook's owner.
            Ok(Err(error)) => SendOutcome::failed(None, error.message()),
            Err(_) => SendOutcome::failed(None, format!("no answer within {:?}", self.timeout)),
        }
    }

    async fn open(&self, url: &str) -> Result<PinnedTarget, Error> {
        self.egress.open(check_url("url", url)?).await
    }

    /// The delay after `failed` attempts: exponential backoff, or the receiver's `Retry-After` if that is longer.
    pub(super) fn retry_delay(&self, failed: u32, retry_after: Option<Duration>) -> Duration {
        let delay = retry_delay(self.retry_delay, failed, rand::rng().random());
        retry_after.map_or(delay, |requested| requested.min(MAX_RETRY_DELAY).max(delay))
    }
}

async fn post(target: &PinnedTarget, delivery: &Delivery<'_>) -> SendOutcome {
    let (id, timestamp) = (delivery.id.to_string(), Utc::now().timestamp());
    let signature = sign(delivery.secrets, &id, timestamp, delivery.body.as_bytes());
    let request = target
        .client
        .post(target.url.clone())
        .header(header::CONTENT_TYPE, "application/json")
        .header("webhook-id", id)
        .header("webhook-timestamp", timestamp)
        .header("webhook-signature", signature)
        .body(delivery.body.clone());
    match request.send().await {
        Ok(response) => read_outcome(response).await,
        Err(error) => SendOutcome::failed(None, format!("cannot reach the receiver: {}", root_cause(&error))),
    }
}

async fn read_outcome(mut response: Response) -> SendOutcome {
    let status = response.status();
    let value = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
    let retry_after = value.and_then(|seconds| seconds.trim().parse().ok()).map(Duration::from_secs);
    // The body is discarded: it could come from a host that the webhook's owner must not see.
    let mut bytes = 0;
    while let Ok(Some(chunk)) = response.chunk().await {
        bytes += chunk.len();
        if bytes > MAX_RESPONSE_BYTES {
            break;
        }
    }
    classify(status, retry_after)
}

fn classify(status: StatusCode, retry_after: Option<Duration>) -> SendOutcome {
    let number = status.as_u16();
    let failure = |message: String| DeliveryFailure { status: Some(number), message };
    match status {
        status if status.is_success() => SendOutcome::Accepted { status: number },
        StatusCode::GONE => {
            SendOutcome::Gone(failure("the receiver answered 410: it is gone for good".into()))
        }
        status if status.is_redirection() => {
            let message = format!("the receiver answered {number}: redirects are not followed");
            SendOutcome::Failed { failure: failure(message), retry_after: None }
        }
        _ => SendOutcome::Failed { failure: failure(format!("the receiver answered {number}")), retry_after },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A resolver that finds no host.
    #[derive(Debug)]
    struct EmptyResolver;

    #[async_trait::async_trait]
    impl Resolve for EmptyResolver {
        async fn resolve(&self, _: &str) -> std::io::Result<Vec<std::net::IpAddr>> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn only_2xx_statuses_are_accepted() {
        let classified =
            |number| classify(StatusCode::from_u16(number).unwrap(), Some(Duration::from_secs(9)));
        for number in [200, 201, 202, 204, 299] {
            assert_eq!(classified(number), SendOutcome::Accepted { status: number });
        }
        assert!(matches!(classified(410), SendOutcome::Gone(failure) if failure.status == Some(410)));
        for (number, wait) in
            [(301, None), (302, None), (304, None), (400, Some(9)), (429, Some(9)), (503, Some(9))]
        {
            let SendOutcome::Failed { failure, retry_after } = classified(number) else { panic!("{number}") };
            assert_eq!((failure.status, retry_after), (Some(number), wait.map(Duration::from_secs)));
        }
    }

    #[test]
    fn retry_after_lengthens_the_delay_up_to_a_maximum() {
        let sender = WebhookSender::new(WebhookOptions::default());
        let delay = |failed, wanted: Option<u64>| sender.retry_delay(failed, wanted.map(Duration::from_secs));
        assert!((3..=7).contains(&delay(1, None).as_secs()) && delay(1, Some(0)).as_secs() >= 3);
        assert_eq!(delay(1, Some(60)), Duration::from_secs(60));
        assert_eq!(delay(1, Some(u64::MAX)), MAX_RETRY_DELAY);
    }

    #[tokio::test]
    async fn private_addresses_are_refused_and_unresolvable_hosts_accepted() {
        let sender = WebhookSender::new(WebhookOptions::default());
        for url in
            ["http://127.0.0.1/", "https://[::1]/", "https://169.254.169.254/latest", "http://10.0.0.1:8080"]
        {
            let error = sender.check(url).await.unwrap_err();
            assert_eq!((error.code(), error.field()), (Code::AddressNotAllowed, Some("url")), "{url}");
        }
        for url in ["", "x", "ftp://example.org/", "https://user@example.org/"] {
            assert_eq!(sender.check(url).await.unwrap_err().code(), Code::InvalidArgument, "{url}");
        }
        let options = WebhookOptions { resolver: Arc::new(EmptyResolver), ..WebhookOptions::default() };
        let unresolving = WebhookSender::new(options);
        let delivery = Delivery { id: DeliveryId::new(), body: String::new(), secrets: &[] };
        assert!(unresolving.check("https://there.example/").await.is_ok());
        let outcome = unresolving.send("https://there.example/", &mut None, &delivery).await;
        assert_eq!(outcome, SendOutcome::failed(None, "cannot find the host there.example"));
    }
}
