//! Metrics of model calls and tool calls.

use std::{sync::Arc, time::Duration};

use remuda_domain::{
    TenantId,
    error::Result,
    execution::BackendKind,
    model::{ModelDefinition, Usage},
    tool::{CallStatus, ToolOutcome},
};
use remuda_models::{Response, model_labels};
use remuda_telemetry::metrics::{
    self, ByTenant, Counter, Histogram, KeyValue, Labels,
    registry::{MODEL_COST, MODEL_DURATION, MODEL_TOKENS, STEP_DURATION, TOOL_CALLS, TOOL_DURATION, label},
};
use tokio::time::Instant;

const MICROS_IN_A_DOLLAR: f64 = 1e6;

#[derive(Debug)]
pub(crate) struct Meters {
    labels: Arc<Labels>,
    steps: Histogram<f64>,
    model_calls: Histogram<f64>,
    tokens: ByTenant<u64>,
    cost: ByTenant<f64>,
    tool_calls: Counter<u64>,
    tool_durations: Histogram<f64>,
}

impl Meters {
    pub(crate) fn new() -> Self {
        let labels = metrics::labels();
        Self {
            steps: metrics::histogram(&STEP_DURATION),
            model_calls: metrics::histogram(&MODEL_DURATION),
            tokens: ByTenant::new(metrics::counter(&MODEL_TOKENS), Arc::clone(&labels)),
            cost: ByTenant::new(metrics::float_counter(&MODEL_COST), Arc::clone(&labels)),
            tool_calls: metrics::counter(&TOOL_CALLS),
            tool_durations: metrics::histogram(&TOOL_DURATION),
            labels,
        }
    }

    /// Measures a model call. One that is dropped counts as cancelled.
    pub(crate) async fn model_call(
        &self,
        tenant: TenantId,
        model: &ModelDefinition,
        call: impl Future<Output = Result<Response>>,
    ) -> Result<Response> {
        let mut timer = ModelCallTimer {
            meters: self,
            labels: model_labels(model, &self.labels),
            begun: Instant::now(),
            status: CallStatus::Cancelled,
        };
        let result = call.await;
        timer.status = if result.is_ok() { CallStatus::Completed } else { CallStatus::Failed };
        if let Ok(response) = &result {
            self.record_usage(tenant, model, &timer.labels, &response.usage);
        }
        result
    }

    #[expect(clippy::cast_precision_loss, reason = "money in a double is exact enough for a graph")]
    fn record_usage(&self, tenant: TenantId, model: &ModelDefinition, labels: &[KeyValue; 2], usage: &Usage) {
        let directions = [
            ("input", usage.input_tokens),
            ("output", usage.output_tokens),
            ("cached", usage.cached_input_tokens),
        ];
        let [provider, name] = labels;
        for (direction, tokens) in directions {
            let labels = [provider.clone(), name.clone(), KeyValue::new(label::DIRECTION, direction)];
            self.tokens.add(tokens, &tenant, &labels);
        }
        if let Some(price) = model.price {
            self.cost.add(price.of(usage) as f64 / MICROS_IN_A_DOLLAR, &tenant, labels);
        }
    }

    /// Records the end of a tool call. `known` says that the tool is one of the platform's own.
    pub(crate) fn tool_call(&self, outcome: &ToolOutcome, known: bool, backend: BackendKind) {
        let tool = match known {
            true => KeyValue::new(label::TOOL, outcome.tool.clone()),
            false => self.labels.tool(&outcome.tool),
        };
        let status = KeyValue::new(label::STATUS, outcome.status.as_str());
        let backend = KeyValue::new(label::BACKEND, backend.as_str());
        let took = Duration::from_millis(outcome.duration_ms).as_secs_f64();
        self.steps.record(took, &[KeyValue::new(label::KIND, "tool_call"), status.clone()]);
        self.tool_durations.record(took, &[tool.clone(), backend.clone()]);
        self.tool_calls.add(1, &[tool, backend, status]);
    }
}

/// Records the duration of a model call when dropped.
struct ModelCallTimer<'a> {
    meters: &'a Meters,
    labels: [KeyValue; 2],
    begun: Instant,
    status: CallStatus,
}

impl Drop for ModelCallTimer<'_> {
    fn drop(&mut self) {
        let (took, status) = (self.begun.elapsed(), KeyValue::new(label::STATUS, self.status.as_str()));
        let took = took.as_secs_f64();
        self.meters.steps.record(took, &[KeyValue::new(label::KIND, "model_call"), status.clone()]);
        let [provider, model] = &self.labels;
        self.meters.model_calls.record(took, &[provider.clone(), model.clone(), status]);
    }
}
