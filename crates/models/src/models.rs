//! Calls models, with retries and circuit breakers.

mod endpoints;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use remuda_domain::{
    error::{Code, Error, Result},
    model::{ModelDefinition, ProviderKind, Registry},
};
use remuda_telemetry::metrics::{
    self, Counter, Histogram, KeyValue, Labels,
    registry::{MODEL_FIRST_TOKEN, MODEL_RETRIES, label},
};
use tokio::time::Instant;

use endpoints::Endpoints;

use crate::{
    AttemptError, Delta, ModelOptions, OnDelta, Provider, Request, Response, Retry,
    anthropic::Anthropic,
    breaker::{Breaker, Permit},
    openai::OpenAi,
    retry,
    scripted::Scripted,
};

/// Calls models through their providers. Cheap to clone; clones share connections and breakers.
#[derive(Clone, Debug)]
pub struct Models {
    options: Arc<ModelOptions>,
    endpoints: Arc<Endpoints>,
    first_tokens: Histogram<f64>,
    retries: Counter<u64>,
}

impl Models {
    #[must_use]
    pub fn new(options: ModelOptions) -> Self {
        let options = Arc::new(options);
        Self {
            endpoints: Arc::new(Endpoints::new(Arc::clone(&options))),
            options,
            first_tokens: metrics::histogram(&MODEL_FIRST_TOKEN),
            retries: metrics::counter(&MODEL_RETRIES),
        }
    }

    /// Calls a model, and retries transient failures. If deltas of a failed attempt were passed to `on_delta`,
    /// [`Delta::Restarted`] follows. Dropping the future ends the call and closes its connection.
    pub async fn generate(
        &self,
        model: &ModelDefinition,
        request: &Request,
        on_delta: OnDelta<'_>,
    ) -> Result<Response> {
        let (provider, breaker) = self.provider(model).await?;
        let (started, first_delta_seen, emitted) =
            (Instant::now(), AtomicBool::new(false), AtomicBool::new(false));
        let relay = |delta: Delta| {
            if !first_delta_seen.swap(true, Ordering::Relaxed) {
                let labels = model_labels(model, &metrics::labels());
                self.first_tokens.record(started.elapsed().as_secs_f64(), &labels);
            }
            emitted.store(true, Ordering::Relaxed);
            on_delta(delta);
        };
        let mut breaker_wait = BreakerWait(self.options.max_breaker_wait);
        let mut attempt = 1;
        loop {
            let permit = breaker_wait.permit(breaker.as_ref()).await?;
            let failure = match self.attempt(&*provider, request, &relay).await {
                Ok(response) => {
                    report_to_breaker(permit, true);
                    return Ok(Response { attempts: attempt, ..response });
                }
                Err(failure) => failure,
            };
            report_to_breaker(permit, !failure.endpoint_fault);
            let retry_delay = self.retry_delay(failure, attempt)?;
            if emitted.swap(false, Ordering::Relaxed) {
                on_delta(Delta::Restarted);
            }
            tracing::debug!(model = %model.reference, attempt, wait = ?retry_delay, "retrying model call");
            tokio::time::sleep(retry_delay).await;
            self.retries.add(1, &model_labels(model, &metrics::labels()));
            attempt += 1;
        }
    }

    async fn attempt(
        &self,
        provider: &dyn Provider,
        request: &Request,
        on_delta: OnDelta<'_>,
    ) -> Result<Response, AttemptError> {
        let limit = self.options.attempt_timeout;
        tokio::time::timeout(limit, provider.generate(request, on_delta)).await.unwrap_or_else(|_| {
            let message = format!("the model did not finish its answer within {limit:?}");
            Err(AttemptError { retry: Retry::Never, ..AttemptError::fault(Code::ModelTimedOut, message) })
        })
    }

    /// The delay before the next attempt, or the error if there is none.
    fn retry_delay(&self, failure: AttemptError, attempt: u32) -> Result<Duration> {
        let AttemptError { error, retry, .. } = failure;
        tracing::debug!(attempt, code = %error.code(), %error, "model call attempt failed");
        match retry {
            Retry::Never => Err(error),
            Retry::After(asked)
                if attempt >= self.options.max_attempts || asked > self.options.max_retry_after =>
            {
                Err(error.retry_after(asked))
            }
            Retry::Soon if attempt >= self.options.max_attempts => Err(error),
            Retry::After(asked) => Ok(retry::requested_delay(&self.options, asked)),
            Retry::Soon => Ok(retry::backoff(&self.options, attempt)),
        }
    }

    async fn provider(&self, model: &ModelDefinition) -> Result<(Box<dyn Provider>, Option<Arc<Breaker>>)> {
        Ok(match model.provider {
            ProviderKind::OpenAi | ProviderKind::OpenAiCompatible => {
                let (endpoint, target) = self.endpoints.target(model, OpenAi::endpoint_url(model)?).await?;
                (Box::new(OpenAi::new(model, target)?), Some(endpoint))
            }
            ProviderKind::Anthropic => {
                let (endpoint, target) =
                    self.endpoints.target(model, Anthropic::endpoint_url(model)?).await?;
                (Box::new(Anthropic::new(model, target)?), Some(endpoint))
            }
            ProviderKind::Scripted => (Box::new(Scripted::new(model)), None),
        })
    }
}

/// The metric labels of a model. Platform models are few; names of workspace models are chosen by tenants and are
/// bounded.
#[must_use]
pub fn model_labels(model: &ModelDefinition, labels: &Labels) -> [KeyValue; 2] {
    let name = model.reference.to_string();
    let name = match model.reference.registry {
        Registry::Platform => KeyValue::new(label::MODEL, name),
        Registry::Workspace => labels.model(&name),
    };
    [KeyValue::new(label::PROVIDER, model.provider.as_str()), name]
}

fn report_to_breaker(permit: Option<Permit>, succeeded: bool) {
    match permit {
        Some(permit) if succeeded => permit.succeeded(),
        Some(permit) => permit.failed(),
        None => {}
    }
}

/// The remaining time that a call may wait for a breaker.
struct BreakerWait(Duration);

impl BreakerWait {
    async fn permit(&mut self, breaker: Option<&Arc<Breaker>>) -> Result<Option<Permit>> {
        let Some(breaker) = breaker else { return Ok(None) };
        let start = Instant::now();
        let waited = breaker.wait(self.0).await;
        self.0 = self.0.saturating_sub(start.elapsed());
        waited.map(Some).map_err(|left| {
            Error::new(
                Code::ModelUnavailable,
                "the model's provider failed too often and is left alone for now",
            )
            .retry_after(left)
        })
    }
}
