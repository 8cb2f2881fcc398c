//! Every metric there is: its name, its kind, its unit, its labels, and what it means.
//!
//! Names are written as OpenTelemetry does; Prometheus sees `remuda.task.rounds` as `remuda_task_rounds_total`
//! ([`Metric::prometheus_name`]). Dashboards and alarms depend on them: a name never changes its meaning. Values of labels are
//! few by nature, or are kept few by [`Capped`](super::Capped).

/// What is measured. Names in braces are counted things, which have no unit of their own.
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
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// How many of what was measured were how large.
    Histogram,
}

impl Metric {
    /// What Prometheus calls it. A histogram's series have `_bucket`, `_sum` and `_count` behind that.
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

        /// All of them.
        pub const ALL: &[Metric] = &[$($name),*];
    };
}

metrics! {
    RUNS_SUBMITTED = "remuda.runs.submitted", Counter, "{run}", [KIND, POOL, TENANT],
        "Runs that were accepted";
    RUNS_STARTED = "remuda.runs.started", Counter, "{run}", [KIND, POOL],
        "Times that a worker took up a run; more often than once after a wait, a hand-over or a crash";
    RUNS_ENDED = "remuda.runs.ended", Counter, "{run}", [KIND, STATE, TENANT],
        "Runs that came to an end, by their last state";
    RUN_DURATION = "remuda.run.duration", Histogram, "s", [KIND, STATE],
        "From the start of a run to its end, waits included";
    QUEUE_WAIT = "remuda.queue.wait", Histogram, "s", [POOL],
        "From the submission of a run to its first start";
    SESSIONS_RUNNABLE = "remuda.sessions.runnable", Gauge, "{session}", [POOL],
        "Sessions with a run that could start now: what autoscaling should look at";
    SESSIONS_RUNNING = "remuda.sessions.running", Gauge, "{session}", [POOL],
        "Sessions that a worker owns";
    RUNS_QUEUED = "remuda.runs.queued", Gauge, "{run}", [POOL],
        "Runs that wait for their turn";
    RUNS_PARKED = "remuda.runs.parked", Gauge, "{run}", [REASON],
        "Runs that wait for something else than a worker: approval, children, budget, external";
    QUEUE_OLDEST_AGE = "remuda.queue.oldest_age", Gauge, "s", [POOL],
        "How long the oldest run has waited that could start now; 0 when there is none";
    STEP_DURATION = "remuda.step.duration", Histogram, "s", [KIND, STATUS],
        "Steps of runs: model_call, tool_call";
    MODEL_DURATION = "remuda.model.duration", Histogram, "s", [PROVIDER, MODEL, STATUS],
        "Calls of models, with all their attempts";
    MODEL_FIRST_TOKEN = "remuda.model.first_token", Histogram, "s", [PROVIDER, MODEL],
        "From a question to the first piece of its answer";
    MODEL_TOKENS = "remuda.model.tokens", Counter, "{token}", [PROVIDER, MODEL, DIRECTION, TENANT],
        "Tokens as providers count them: input, output, cached";
    MODEL_COST = "remuda.model.cost_usd", Counter, "{dollar}", [PROVIDER, MODEL, TENANT],
        "What model calls cost, where models have a price";
    MODEL_RETRIES = "remuda.model.retries", Counter, "{request}", [PROVIDER, MODEL],
        "Requests that were made again after a fault of the provider";
    TOOL_CALLS = "remuda.tool.calls", Counter, "{call}", [TOOL, BACKEND, STATUS],
        "Calls of tools, by how they ended";
    TOOL_DURATION = "remuda.tool.duration", Histogram, "s", [TOOL, BACKEND],
        "How long calls of tools took";
    SANDBOXES = "remuda.sandboxes", Gauge, "{sandbox}", [BACKEND, STATE],
        "Sandboxes on record, by state";
    SANDBOX_LEAKS = "remuda.sandbox.leaks", Counter, "{sandbox}", [],
        "Containers of lost workers that had to be removed, because they did not end by themselves";
    WORKER_SLOTS = "remuda.worker.slots", Gauge, "{slot}", [POOL],
        "Sessions that this worker can have in hand at once";
    WORKER_BUSY = "remuda.worker.busy", Gauge, "{slot}", [POOL],
        "Sessions that this worker has in hand";
    WORKER_LIVES_LOST = "remuda.worker.lives_lost", Counter, "{life}", [],
        "Times that this worker lost its lease and killed what it had in hand";
    TOKENS_PUBLISHED = "remuda.tokens.published", Counter, "{token}", [RESULT],
        "Wake-ups sent: stored, already_scheduled, error";
    TOKENS_DELIVERED = "remuda.tokens.delivered", Counter, "{token}", [POOL],
        "Wake-ups that reached a worker";
    TOKENS_REDELIVERED = "remuda.tokens.redelivered", Counter, "{token}", [POOL],
        "Those among them that came again";
    CLAIMS = "remuda.claims", Counter, "{claim}", [RESULT],
        "Claims of sessions: granted, refused, nothing_to_do, taken_back, error";
    FENCED_WRITES = "remuda.fenced_writes", Counter, "{write}", [],
        "Writes that the store refused because the session was no longer the worker's";
    STORE_BATCH_SIZE = "remuda.store.batch_size", Histogram, "{request}", [OPERATION],
        "Requests that were served together: submit, claim, commit, look_at_run, look_at_session; all of them on SQLite";
    STORE_FLUSH_DURATION = "remuda.store.flush_duration", Histogram, "s", [OPERATION],
        "How long it took to commit a batch";
    STORE_CONNECTIONS = "remuda.store.connections", Gauge, "{connection}", [STATE],
        "Connections to the database: idle, used";
    REQUEST_DURATION = "remuda.request.duration", Histogram, "s", [PROTOCOL, METHOD, CODE],
        "Calls of the API until their answer, or its first part, was ready";
    STREAM_READERS = "remuda.stream.readers", Gauge, "{reader}", [],
        "Readers of event streams";
    STREAM_SESSIONS = "remuda.stream.sessions", Gauge, "{session}", [],
        "Sessions that this process follows for its readers";
    STREAM_EVENTS = "remuda.stream.events", Counter, "{event}", [],
        "Events given to readers";
    STREAM_LAG = "remuda.stream.lag", Histogram, "s", [],
        "From the commit of events to their arrival at this process, for those that came live";
    STREAM_SLOW_READERS = "remuda.stream.slow_readers", Counter, "{reader}", [],
        "Times that a reader was too slow for live events and went back to the store";
    CANCEL_RECEIPT = "remuda.cancel.receipt", Histogram, "s", [RECEIPT],
        "From the request to stop a run to each part of that: delivered, stopped, ended";
    TASK_ROUNDS = "remuda.task.rounds", Counter, "{round}", [TASK, RESULT],
        "Rounds of background tasks, by task and result (ok, error)";
    TASK_ITEMS = "remuda.task.items", Counter, "{item}", [TASK, ITEM],
        "What background tasks did, by task and item";
    TASK_LAST_SUCCESS = "remuda.task.last_success_timestamp", Gauge, "s", [TASK],
        "When a round of the background task last succeeded, in seconds since 1970";
    SESSIONS_TAKEN_BACK = "remuda.sessions.taken_back", Counter, "{session}", [],
        "Sessions taken back from workers whose lease ended";
    ORPHANED_TOKENS_HEALED = "remuda.orphaned_tokens.healed", Counter, "{token}", [],
        "Tokens replaced that no worker would ever have been given";
    WEBHOOK_DELIVERIES = "remuda.webhook.deliveries", Counter, "{delivery}", [RESULT],
        "Attempts to deliver to webhooks, by result (delivered, failed, dead, gone)";
    SPANS = "remuda.telemetry.spans", Counter, "{span}", [RESULT],
        "Spans of traces: exported, failed (the collector did not take them), dropped (there was no room)";
}

/// Names of the labels.
pub mod label {
    pub const BACKEND: &str = "backend";
    /// The stable code of the answer, or `ok`.
    pub const CODE: &str = "code";
    pub const DIRECTION: &str = "direction";
    pub const ITEM: &str = "item";
    /// Of runs `message` or `tools`, of steps `model_call` or `tool_call`.
    pub const KIND: &str = "kind";
    pub const METHOD: &str = "method";
    pub const MODEL: &str = "model";
    pub const OPERATION: &str = "operation";
    pub const POOL: &str = "pool";
    pub const PROTOCOL: &str = "protocol";
    pub const PROVIDER: &str = "provider";
    pub const REASON: &str = "reason";
    pub const RECEIPT: &str = "receipt";
    /// `ok` or `error`, or what the metric says.
    pub const RESULT: &str = "result";
    pub const STATE: &str = "state";
    pub const STATUS: &str = "status";
    pub const TASK: &str = "task";
    /// Left out unless the configuration asks for it.
    pub const TENANT: &str = "tenant";
    pub const TOOL: &str = "tool";
}
