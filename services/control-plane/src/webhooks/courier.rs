//! One attempt to deliver.

use std::{sync::Arc, time::Duration};

use chrono::Utc;
use rand::Rng as _;
use remuda_domain::{
    DeliveryId,
    error::{Code, Error, Result},
    webhook::{DeliveryFailure, MAX_RETRY_DELAY, WebhookSecret, retry_delay},
};
use remuda_egress::{Allowed, Egress, Resolve, SystemResolver, Way, cause, check_url};
use reqwest::{Response, StatusCode, header};
use tokio::time::timeout;

use super::signature::sign;

/// Read of an answer, so that its connection can be used again.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// How deliveries are made.
#[derive(Clone, Debug)]
pub struct WebhookOptions {
    /// Hosts and networks that may be reached although they are not public.
    pub allowed: Vec<Allowed>,
    pub resolver: Arc<dyn Resolve>,
    /// For one attempt, from looking up the name to the answer.
    pub timeout: Duration,
    /// Before an event is given up.
    pub max_attempts: u32,
    /// Before the second attempt; it doubles from there.
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

/// Delivers within the network rules.
#[derive(Debug)]
pub(crate) struct Courier {
    egress: Egress,
    timeout: Duration,
    pub(super) max_attempts: u32,
    retry_delay: Duration,
}

/// What is delivered.
#[derive(Clone, Debug)]
pub(crate) struct Parcel<'a> {
    pub(crate) id: DeliveryId,
    pub(crate) body: String,
    pub(crate) secrets: &'a [WebhookSecret],
}

/// What the receiver said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Accepted {
        status: u16,
    },
    /// It wants to hear no more.
    Gone(DeliveryFailure),
    Failed {
        failure: DeliveryFailure,
        /// It said when to come back.
        retry_after: Option<Duration>,
    },
}

impl Answer {
    fn failed(status: Option<u16>, message: impl Into<String>) -> Self {
        let failure = DeliveryFailure { status, message: message.into() };
        Self::Failed { failure, retry_after: None }
    }
}

impl Courier {
    pub(crate) fn new(options: WebhookOptions) -> Self {
        let WebhookOptions { allowed, resolver, timeout, max_attempts, retry_delay } = options;
        Self { egress: Egress::new("url", allowed, resolver), timeout, max_attempts, retry_delay }
    }

    /// Whether a webhook may have this URL. A host that cannot be found now may be there when something happens; every
    /// delivery is checked again.
    pub(crate) async fn check(&self, url: &str) -> Result<()> {
        let url = check_url("url", url)?;
        match timeout(self.timeout, self.egress.check(url)).await {
            Ok(Err(error)) if error.code() != Code::Unavailable => Err(error),
            _ => Ok(()),
        }
    }

    /// Tries once. `way` is kept for the next delivery to the same URL.
    pub(crate) async fn deliver(&self, url: &str, way: &mut Option<Way>, parcel: &Parcel<'_>) -> Answer {
        let attempt = async {
            let way = match way {
                Some(way) => way,
                None => way.insert(self.open(url).await?),
            };
            Ok::<Answer, Error>(post(way, parcel).await)
        };
        match timeout(self.timeout, attempt).await {
            Ok(Ok(answer)) => answer,
            // Why a name cannot be resolved says nothing of use to whoever owns the webhook.
            Ok(Err(error)) => Answer::failed(None, error.message()),
            Err(_) => Answer::failed(None, format!("no answer within {:?}", self.timeout)),
        }
    }

    async fn open(&self, url: &str) -> Result<Way, Error> {
        self.egress.open(check_url("url", url)?).await
    }

    /// The pause after so many failed attempts: as the receiver wants it, if that is longer.
    pub(super) fn pause(&self, failed: u32, wanted: Option<Duration>) -> Duration {
        let pause = retry_delay(self.retry_delay, failed, rand::rng().random());
        wanted.map_or(pause, |wanted| wanted.min(MAX_RETRY_DELAY).max(pause))
    }
}

async fn post(way: &Way, parcel: &Parcel<'_>) -> Answer {
    let (id, timestamp) = (parcel.id.to_string(), Utc::now().timestamp());
    let signature = sign(parcel.secrets, &id, timestamp, parcel.body.as_bytes());
    let request = way
        .client
        .post(way.url.clone())
        .header(header::CONTENT_TYPE, "application/json")
        .header("webhook-id", id)
        .header("webhook-timestamp", timestamp)
        .header("webhook-signature", signature)
        .body(parcel.body.clone());
    match request.send().await {
        Ok(response) => read(response).await,
        Err(error) => Answer::failed(None, format!("cannot reach the receiver: {}", cause(&error))),
    }
}

async fn read(mut response: Response) -> Answer {
    let status = response.status();
    let wanted = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
    let retry_after = wanted.and_then(|seconds| seconds.trim().parse().ok()).map(Duration::from_secs);
    // What it says is for nobody: it could come from a place that the webhook's owner must not see.
    let mut bytes = 0;
    while let Ok(Some(chunk)) = response.chunk().await {
        bytes += chunk.len();
        if bytes > MAX_ANSWER_BYTES {
            break;
        }
    }
    judge(status, retry_after)
}

fn judge(status: StatusCode, retry_after: Option<Duration>) -> Answer {
    let number = status.as_u16();
    let failure = |message: String| DeliveryFailure { status: Some(number), message };
    match status {
        status if status.is_success() => Answer::Accepted { status: number },
        StatusCode::GONE => Answer::Gone(failure("the receiver answered 410: it is gone for good".into())),
        status if status.is_redirection() => {
            let message = format!("the receiver answered {number}: redirects are not followed");
            Answer::Failed { failure: failure(message), retry_after: None }
        }
        _ => Answer::Failed { failure: failure(format!("the receiver answered {number}")), retry_after },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Knows no name.
    #[derive(Debug)]
    struct Nothing;

    #[async_trait::async_trait]
    impl Resolve for Nothing {
        async fn resolve(&self, _: &str) -> std::io::Result<Vec<std::net::IpAddr>> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn only_success_is_success() {
        let judged = |number| judge(StatusCode::from_u16(number).unwrap(), Some(Duration::from_secs(9)));
        for number in [200, 201, 202, 204, 299] {
            assert_eq!(judged(number), Answer::Accepted { status: number });
        }
        assert!(matches!(judged(410), Answer::Gone(failure) if failure.status == Some(410)));
        for (number, wait) in
            [(301, None), (302, None), (304, None), (400, Some(9)), (429, Some(9)), (503, Some(9))]
        {
            let Answer::Failed { failure, retry_after } = judged(number) else { panic!("{number}") };
            assert_eq!((failure.status, retry_after), (Some(number), wait.map(Duration::from_secs)));
        }
    }

    #[test]
    fn a_receiver_may_ask_for_more_time_but_not_for_ever() {
        let courier = Courier::new(WebhookOptions::default());
        let pause = |failed, wanted: Option<u64>| courier.pause(failed, wanted.map(Duration::from_secs));
        assert!((3..=7).contains(&pause(1, None).as_secs()) && pause(1, Some(0)).as_secs() >= 3);
        assert_eq!(pause(1, Some(60)), Duration::from_secs(60));
        assert_eq!(pause(1, Some(u64::MAX)), MAX_RETRY_DELAY);
    }

    #[tokio::test]
    async fn private_places_are_refused_and_unknown_ones_may_come() {
        let courier = Courier::new(WebhookOptions::default());
        for url in
            ["http://127.0.0.1/", "https://[::1]/", "https://169.254.169.254/latest", "http://10.0.0.1:8080"]
        {
            let error = courier.check(url).await.unwrap_err();
            assert_eq!((error.code(), error.field()), (Code::AddressNotAllowed, Some("url")), "{url}");
        }
        for url in ["", "x", "ftp://example.org/", "https://user@example.org/"] {
            assert_eq!(courier.check(url).await.unwrap_err().code(), Code::InvalidArgument, "{url}");
        }
        let lost = Courier::new(WebhookOptions { resolver: Arc::new(Nothing), ..WebhookOptions::default() });
        assert!(lost.check("https://there.example/").await.is_ok());
        let parcel = Parcel { id: DeliveryId::new(), body: String::new(), secrets: &[] };
        let answer = lost.deliver("https://there.example/", &mut None, &parcel).await;
        assert_eq!(answer, Answer::failed(None, "cannot find the host there.example"));
    }
}
