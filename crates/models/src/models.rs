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
    run::Failure,
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
    /// [`Delta::Restarted`] follows. [`Delta::Retrying`] reports each wait for another attempt. Dropping the future ends the call and closes its connection.
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
            let permit = breaker_wait.permit(breaker.as_ref(), attempt, on_delta).await?;
            let failure = match self.attempt(&*provider, request, &relay).await {
                Ok(response) => {
                    report_to_breaker(permit, true);
                    return Ok(Response { attempts: attempt, ..response });
                }
                Err(failure) => failure,
            };
            report_to_breaker(permit, !failure.endpoint_fault);
            let (error, delay) = self.retry_delay(failure, attempt)?;
            if emitted.swap(false, Ordering::Relaxed) {
                on_delta(Delta::Restarted);
            }
            tracing::info!(model = %model.reference, attempt, code = %error.code(), %error, retry_in = ?delay,
                "model call failed; retrying");
            on_delta(Delta::Retrying {
                attempt,
                failure: Failure::new(error.code(), error.to_string()),
                delay,
            });
            tokio::time::sleep(delay).await;
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

    /// What failed and the delay before the next attempt, or the error if there is none.
    fn retry_delay(&self, failure: AttemptError, attempt: u32) -> Result<(Error, Duration)> {
        let AttemptError { error, retry, .. } = failure;
        match retry {
            Retry::Never => Err(error),
            Retry::After(asked)
                if attempt >= self.options.max_attempts || asked > self.options.max_retry_after =>
            {
                Err(error.retry_after(asked))
            }
            Retry::Soon if attempt >= self.options.max_attempts => Err(error),
            Retry::After(asked) => Ok((error, retry::requested_delay(&self.options, asked))),
            Retry::Soon => Ok((error, retry::backoff(&self.options, attempt))),
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
    /// Waits for a permit. Reports a wait as a failed attempt, the one before `attempt`.
    async fn permit(
        &mut self,
        breaker: Option<&Arc<Breaker>>,
        attempt: u32,
        on_delta: OnDelta<'_>,
    ) -> Result<Option<Permit>> {
        let Some(breaker) = breaker else { return Ok(None) };
        let delay = match breaker.admit() {
            Ok(permit) => return Ok(Some(permit)),
            Err(remaining) => remaining.min(self.0),
        };
        let message = "the model's provider failed too often; no requests are sent to it for a while";
        if !delay.is_zero() {
            let failure = Failure::new(Code::ModelUnavailable, message);
            on_delta(Delta::Retrying { attempt: attempt - 1, failure, delay });
        }
        let start = Instant::now();
        let waited = breaker.wait(self.0).await;
        self.0 = self.0.saturating_sub(start.elapsed());
        waited.map(Some).map_err(|left| Error::new(Code::ModelUnavailable, message).retry_after(left))
    }
}
