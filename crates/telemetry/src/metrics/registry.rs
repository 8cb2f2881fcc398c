//! All metrics with their name, kind, unit, labels and description.
//!
//! Names follow OpenTelemetry; Prometheus has `remuda.task.rounds` as `remuda_task_rounds_total`
//! ([`Metric::prometheus_name`]). Dashboards and alerts depend on them: a name never changes its meaning. The number of label
//! values is small by nature, or limited by [`LabelLimiter`](super::LabelLimiter).

/// A metric. A unit in braces is the name of a counted thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    pub unit: &'static str,
    pub labels: &'static [&'static str],
    pub description: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only increases.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution of values.
    Histogram,
}

impl Metric {
    /// The name in Prometheus. The series of a histogram have the suffixes `_bucket`, `_sum` and `_count`.
    #[must_use]
    pub fn prometheus_name(&self) -> String {
        let unit = match self.unit {
            "s" => "_seconds",
            "By" => "_bytes",
            _ => "",
        };
        let total = if self.kind == Kind::Counter { "_total" } else { "" };
        format!("{}{unit}{total}", self.name.replace('.', "_"))
    }
}

macro_rules! metrics {
    ($($name:ident = $text:literal, $kind:ident, $unit:literal, [$($label:ident),*], $description:literal;)*) => {
        $(
            #[doc = $description]
            pub const $name: Metric = Metric {
                name: $text,
                kind: Kind::$kind,
                unit: $unit,
                labels: &[$(label::$label),*],
                description: $description,
            };
        )*

        /// All metrics.
        pub const ALL: &[Metric] = &[$($name),*];
    };
}

metrics! {
    RUNS_SUBMITTED = "remuda.runs.submitted", Counter, "{run}", [KIND, POOL, TENANT],
        "Accepted runs";
    RUNS_STARTED = "remuda.runs.started", Counter, "{run}", [KIND, POOL],
        "Starts of runs on a worker; a run starts again after a wait, a hand-over or a crash";
    RUNS_ENDED = "remuda.runs.ended", Counter, "{run}", [KIND, STATE, TENANT],
        "Ended runs, by final state";
    RUN_DURATION = "remuda.run.duration", Histogram, "s", [KIND, STATE],
        "Time from the start of a run to its end, including waits";
    QUEUE_WAIT = "remuda.queue.wait", Histogram, "s", [POOL],
        "Time from the submission of a run to its first start";
    SESSIONS_RUNNABLE = "remuda.sessions.runnable", Gauge, "{session}", [POOL],
        "Sessions with a run that could start now; use it for autoscaling";
    SESSIONS_RUNNING = "remuda.sessions.running", Gauge, "{session}", [POOL],
        "Sessions owned by a worker";
    RUNS_QUEUED = "remuda.runs.queued", Gauge, "{run}", [POOL],
        "Queued runs";
    RUNS_PARKED = "remuda.runs.parked", Gauge, "{run}", [REASON],
        "Parked runs, by what they wait for: approval, children, budget, external";
    QUEUE_OLDEST_AGE = "remuda.queue.oldest_age", Gauge, "s", [POOL],
        "Waiting time of the oldest run that could start now; 0 if there is none";
    STEP_DURATION = "remuda.step.duration", Histogram, "s", [KIND, STATUS],
        "Duration of steps: model_call, tool_call";
    MODEL_DURATION = "remuda.model.duration", Histogram, "s", [PROVIDER, MODEL, STATUS],
        "Duration of model calls, including all attempts";
    MODEL_FIRST_TOKEN = "remuda.model.first_token", Histogram, "s", [PROVIDER, MODEL],
        "Time from a model call to the first part of its response";
    MODEL_TOKENS = "remuda.model.tokens", Counter, "{token}", [PROVIDER, MODEL, DIRECTION, TENANT],
        "Tokens as counted by providers: input, output, cached";
    MODEL_COST = "remuda.model.cost_usd", Counter, "{dollar}", [PROVIDER, MODEL, TENANT],
        "Cost of model calls, for models with a price";
    MODEL_RETRIES = "remuda.model.retries", Counter, "{request}", [PROVIDER, MODEL],
        "Requests retried after a provider error";
    TOOL_CALLS = "remuda.tool.calls", Counter, "{call}", [TOOL, BACKEND, STATUS],
        "Tool calls, by outcome";
    TOOL_DURATION = "remuda.tool.duration", Histogram, "s", [TOOL, BACKEND],
        "Duration of tool calls";
    SANDBOXES = "remuda.sandboxes", Gauge, "{sandbox}", [BACKEND, STATE],
        "Registered sandboxes, by state";
    SANDBOX_LEAKS = "remuda.sandbox.leaks", Counter, "{sandbox}", [],
        "Containers of lost workers that had to be removed because they did not exit by themselves";
    WORKER_SLOTS = "remuda.worker.slots", Gauge, "{slot}", [POOL],
        "Sessions that this worker can execute concurrently";
    WORKER_BUSY = "remuda.worker.busy", Gauge, "{slot}", [POOL],
        "Sessions that this worker is executing";
    WORKER_LIVES_LOST = "remuda.worker.lives_lost", Counter, "{life}", [],
        "Times that this worker lost its lease and killed its tools";
    TOKENS_PUBLISHED = "remuda.tokens.published", Counter, "{token}", [RESULT],
        "Session tokens published: stored, already_scheduled, error";
    TOKENS_DELIVERED = "remuda.tokens.delivered", Counter, "{token}", [POOL],
        "Session tokens delivered to workers";
    TOKENS_REDELIVERED = "remuda.tokens.redelivered", Counter, "{token}", [POOL],
        "Session tokens delivered again";
    BUS_REJECTED = "remuda.bus.rejected", Counter, "{message}", [KIND, REASON],
        "Messages on the bus that were not proven: unsigned, malformed, stale, unknown_key, altered, replayed, not_allowed";
    CLAIMS = "remuda.claims", Counter, "{claim}", [RESULT],
        "Session claims: granted, refused, nothing_to_do, taken_back, error";
    FENCED_WRITES = "remuda.fenced_writes", Counter, "{write}", [],
        "Writes rejected by the store because the worker no longer owned the session";
    STORE_BATCH_SIZE = "remuda.store.batch_size", Histogram, "{request}", [OPERATION],
        "Requests per batch: submit, claim, commit, look_at_run, look_at_session; on SQLite, `all` stands for submit, claim and commit";
    STORE_FLUSH_DURATION = "remuda.store.flush_duration", Histogram, "s", [OPERATION],
        "Time to commit a batch";
    STORE_CONNECTIONS = "remuda.store.connections", Gauge, "{connection}", [STATE],
        "Database connections: idle, used";
    REQUEST_DURATION = "remuda.request.duration", Histogram, "s", [PROTOCOL, METHOD, CODE],
        "Duration of API calls until the response, or its first part, was ready";
    REQUEST_BODY_MEMORY = "remuda.request.body_memory", Gauge, "By", [],
        "Memory reserved for bodies of requests in flight";
    TLS_CERTIFICATE_EXPIRY = "remuda.tls.certificate_expiry_timestamp", Gauge, "s", [],
        "When the TLS certificate of the process's ports expires, in seconds since 1970";
    AUTH_FAILURES = "remuda.auth.failures", Counter, "{request}", [REASON],
        "Requests without a valid API key: missing, malformed, unknown (also revoked or expired), limited (too many to look up)";
    STREAM_READERS = "remuda.stream.readers", Gauge, "{reader}", [],
        "Connected readers of event streams";
    STREAM_SESSIONS = "remuda.stream.sessions", Gauge, "{session}", [],
        "Sessions that this process follows for its readers";
    STREAM_EVENTS = "remuda.stream.events", Counter, "{event}", [],
        "Events sent to readers";
    STREAM_LAG = "remuda.stream.lag", Histogram, "s", [],
        "Time from the commit of live events to their arrival at this process";
    STREAM_SLOW_READERS = "remuda.stream.slow_readers", Counter, "{reader}", [],
        "Times that a reader was too slow for live events and fell back to the store";
    CANCEL_RECEIPT = "remuda.cancel.receipt", Histogram, "s", [RECEIPT],
        "Time from a cancellation request to each stage: delivered, stopped, ended";
    TASK_ROUNDS = "remuda.task.rounds", Counter, "{round}", [TASK, RESULT],
        "Rounds of background tasks, by task and result (ok, error)";
    TASK_ITEMS = "remuda.task.items", Counter, "{item}", [TASK, ITEM],
        "Items processed by background tasks, by task and item";
    TASK_LAST_SUCCESS = "remuda.task.last_success_timestamp", Gauge, "s", [TASK],
        "Time of the last successful round of the background task, in seconds since 1970";
    SESSIONS_TAKEN_BACK = "remuda.sessions.taken_back", Counter, "{session}", [],
        "Sessions reclaimed from workers whose lease expired";
    ORPHANED_TOKENS_HEALED = "remuda.orphaned_tokens.healed", Counter, "{token}", [],
        "Session tokens replaced because they could never have been delivered";
    WEBHOOK_DELIVERIES = "remuda.webhook.deliveries", Counter, "{delivery}", [RESULT],
        "Webhook delivery attempts, by result (delivered, failed, dead, gone)";
    SPANS = "remuda.telemetry.spans", Counter, "{span}", [RESULT],
        "Trace spans: exported, failed (the collector rejected them), dropped (the queue was full)";
}

/// Names of the labels.
pub mod label {
    pub const BACKEND: &str = "backend";
    /// The stable error code of the response, or `ok`.
    pub const CODE: &str = "code";
    pub const DIRECTION: &str = "direction";
    pub const ITEM: &str = "item";
    /// `message` or `tools` for runs, `model_call` or `tool_call` for steps.
    pub const KIND: &str = "kind";
    pub const METHOD: &str = "method";
    pub const MODEL: &str = "model";
    pub const OPERATION: &str = "operation";
    pub const POOL: &str = "pool";
    pub const PROTOCOL: &str = "protocol";
    pub const PROVIDER: &str = "provider";
    pub const REASON: &str = "reason";
    pub const RECEIPT: &str = "receipt";
    /// `ok` or `error`, or the values in the metric's description.
    pub const RESULT: &str = "result";
    pub const STATE: &str = "state";
    pub const STATUS: &str = "status";
    pub const TASK: &str = "task";
    /// Only if the configuration enables it.
    pub const TENANT: &str = "tenant";
    pub const TOOL: &str = "tool";
}
