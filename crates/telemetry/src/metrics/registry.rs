//! Every metric there is: its name, its unit, and what it means.
//!
//! Names are written as OpenTelemetry does; Prometheus sees `remuda.task.rounds` as `remuda_task_rounds_total`. Dashboards
//! and alarms depend on them: a name never changes its meaning.

use opentelemetry::metrics::{Counter, Gauge, Meter};

/// What is measured. Names in braces are counted things, which have no unit of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    pub name: &'static str,
    pub unit: &'static str,
    pub description: &'static str,
}

impl Metric {
    pub(super) fn counter(&self, meter: &Meter) -> Counter<u64> {
        meter.u64_counter(self.name).with_unit(self.unit).with_description(self.description).build()
    }

    pub(super) fn gauge(&self, meter: &Meter) -> Gauge<f64> {
        meter.f64_gauge(self.name).with_unit(self.unit).with_description(self.description).build()
    }
}

macro_rules! metrics {
    ($($name:ident = $text:literal, $unit:literal, $description:literal;)*) => {
        $(
            #[doc = $description]
            pub const $name: Metric = Metric { name: $text, unit: $unit, description: $description };
        )*

        /// All of them.
        pub const ALL: &[Metric] = &[$($name),*];
    };
}

metrics! {
    TASK_ROUNDS = "remuda.task.rounds", "{round}",
        "Rounds of background tasks, by task and result (ok, error)";
    TASK_ITEMS = "remuda.task.items", "{item}",
        "What background tasks did, by task and item";
    TASK_LAST_SUCCESS = "remuda.task.last_success_timestamp", "s",
        "When a round of the background task last succeeded, in seconds since 1970";
    SESSIONS_TAKEN_BACK = "remuda.sessions.taken_back", "{session}",
        "Sessions taken back from workers whose lease ended";
    ORPHANED_TOKENS_HEALED = "remuda.orphaned_tokens.healed", "{token}",
        "Tokens replaced that no worker would ever have been given";
    WEBHOOK_DELIVERIES = "remuda.webhook.deliveries", "{delivery}",
        "Attempts to deliver to webhooks, by result (delivered, failed, dead, gone)";
    SANDBOX_LEAKS = "remuda.sandbox.leaks", "{sandbox}",
        "Containers of lost workers that had to be removed, because they did not end by themselves";
}

/// Names of the labels.
pub mod label {
    pub const TASK: &str = "task";
    /// `ok` or `error`, or what the metric says.
    pub const RESULT: &str = "result";
    pub const ITEM: &str = "item";
}
