//! Time spent in each stage of a run, from Remuda's own traces.
//!
//! A sample of the runs is submitted with a sampled `traceparent`, and the servers export their spans to a collector in this
//! process. All processes share this machine's clock, so the timestamps of client and servers are comparable.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use hdrhistogram::Histogram;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use parking_lot::{Mutex, MutexGuard};
use prost::Message as _;
use remuda_domain::trace::{SpanId, TraceContext};
use uuid::Uuid;

use crate::{observed_history::Micros, raw_grpc::RawHandler};

/// One run in this many is traced: enough for percentiles, too few to affect the result.
const SAMPLE_INTERVAL: u64 = 50;

/// The timestamps of a run, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RunTimestamps {
    sent: Option<Micros>,
    committed: Option<Micros>,
    published: Option<Micros>,
    delivered: Option<Micros>,
    started: Option<Micros>,
    finished: Option<Micros>,
    answered: Option<Micros>,
}

/// The stages between two timestamps, each named after its end.
pub(crate) const STAGES: [&str; 6] =
    ["committed", "published", "delivered", "started", "finished", "at_client"];

impl RunTimestamps {
    /// The duration of each stage. A run that was granted without a token lacks some stages.
    fn stages(&self) -> Option<[Option<Micros>; 6]> {
        let (sent, committed, answered) = (self.sent?, self.committed?, self.answered?);
        let (started, finished) = (self.started?, self.finished?);
        let after = |then: Option<Micros>, now: Option<Micros>| Some((now? - then?).max(0));
        Some([
            Some((committed - sent).max(0)),
            after(Some(committed), self.published),
            after(self.published, self.delivered),
            Some((started - self.delivered.unwrap_or(committed)).max(0)),
            Some((finished - started).max(0)),
            Some((answered - finished).max(0)),
        ])
    }
}

/// A trace collector that keeps the timestamps of the traced runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct StageTimings {
    runs: Arc<Mutex<HashMap<u128, RunTimestamps>>>,
}

impl StageTimings {
    fn runs(&self) -> MutexGuard<'_, HashMap<u128, RunTimestamps>> {
        self.runs.lock()
    }

    /// Returns a trace context for one run in [`SAMPLE_INTERVAL`].
    pub(super) fn sample(&self, random: u64) -> Option<TraceContext> {
        if !random.is_multiple_of(SAMPLE_INTERVAL) {
            return None;
        }
        let trace = Uuid::now_v7().as_u128();
        format!("00-{trace:032x}-{}-01", SpanId::random()).parse().ok()
    }

    /// Records the client's timestamps of a run.
    pub(super) fn record_client(&self, context: TraceContext, sent: Micros, answered: Micros) {
        let mut runs = self.runs();
        let timestamps = runs.entry(context.trace.bits()).or_default();
        (timestamps.sent, timestamps.answered) = (Some(sent), Some(answered));
    }

    /// Clears all timestamps. Spans of earlier runs that arrive later are not counted, as their client timestamps are gone.
    pub(super) fn clear(&self) {
        self.runs().clear();
    }

    /// The number of complete runs, and the percentiles of each stage in milliseconds.
    pub(crate) fn summary(&self) -> anyhow::Result<(usize, Vec<Stage>)> {
        let whole: Vec<[Option<Micros>; 6]> =
            self.runs().values().filter_map(RunTimestamps::stages).collect();
        let mut stages = Vec::new();
        for (place, name) in STAGES.into_iter().enumerate() {
            let mut times = Histogram::<u64>::new(3)?;
            for run in &whole {
                if let Some(took) = run[place] {
                    times.record(u64::try_from(took)?)?;
                }
            }
            let millis = |quantile: f64| times.value_at_quantile(quantile) as f64 / 1000.0;
            let share = times.len() as f64 / whole.len().max(1) as f64;
            stages.push(Stage { name, p50_ms: millis(0.5), p99_ms: millis(0.99), share });
        }
        Ok((whole.len(), stages))
    }
}

/// The percentiles of one stage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    /// The share of traced runs that had this stage: not every run needs a token.
    pub(crate) share: f64,
}

impl Stage {
    /// A stage that all runs have.
    pub(crate) const fn of_all_runs(name: &'static str, p50_ms: f64, p99_ms: f64) -> Self {
        Self { name, p50_ms, p99_ms, share: 1.0 }
    }
}

impl RawHandler for StageTimings {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";

    fn handle(&self, message: Bytes) -> Bytes {
        let Ok(request) = ExportTraceServiceRequest::decode(message) else { return Bytes::new() };
        let mut runs = self.runs();
        let spans = request.resource_spans.into_iter().flat_map(|it| it.scope_spans).flat_map(|it| it.spans);
        for span in spans {
            let Ok(trace) = span.trace_id.as_slice().try_into().map(u128::from_be_bytes) else { continue };
            let timestamps = runs.entry(trace).or_default();
            let micros = |nanos: u64| Micros::try_from(nanos / 1000).ok();
            match span.name.as_str() {
                "commit run" => timestamps.committed = micros(span.end_time_unix_nano),
                "publish token" => timestamps.published = micros(span.end_time_unix_nano),
                "receive token" => timestamps.delivered = micros(span.start_time_unix_nano),
                "attempt" => {
                    timestamps.started = micros(span.start_time_unix_nano);
                    timestamps.finished = micros(span.end_time_unix_nano);
                }
                _ => {}
            }
        }
        Bytes::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stage_durations_are_differences_of_timestamps() {
        let whole = RunTimestamps {
            sent: Some(10),
            committed: Some(30),
            published: Some(35),
            delivered: Some(34),
            started: Some(60),
            finished: Some(70),
            answered: Some(100),
        };
        let stages = [Some(20), Some(5), Some(0), Some(26), Some(10), Some(30)];
        assert_eq!(whole.stages(), Some(stages));
        let in_hand = RunTimestamps { published: None, delivered: None, ..whole };
        assert_eq!(in_hand.stages(), Some([Some(20), None, None, Some(30), Some(10), Some(30)]));
        assert_eq!(RunTimestamps { answered: None, ..whole }.stages(), None);
    }

    #[test]
    fn cleared_runs_are_not_counted() {
        let stages = StageTimings::default();
        let context = stages.sample(0).unwrap();
        stages.record_client(context, 1, 2);
        stages.clear();
        stages.runs().entry(context.trace.bits()).or_default().committed = Some(2);
        assert_eq!(stages.summary().unwrap().0, 0);
    }

    #[test]
    fn one_run_in_fifty_is_traced() {
        let stages = StageTimings::default();
        assert_eq!((0..500).filter(|number| stages.sample(*number).is_some()).count(), 10);
    }
}
