//! Where the time of a run goes, told by Remuda's own traces.
//!
//! One of many runs is submitted with a `traceparent` that wants to be collected, and the servers send what they know of it to a collector
//! of ours. All clocks are that of this machine, so the moments of client and servers can be put in one line.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use hdrhistogram::Histogram;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message as _;
use remuda_domain::trace::{SpanId, TraceContext};
use uuid::Uuid;

use crate::{history::Micros, raw_grpc::Answers};

/// One run in so many is traced: enough for percentiles, too few to be felt.
const ONE_IN: u64 = 50;

/// The moments of a run, in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Moments {
    sent: Option<Micros>,
    committed: Option<Micros>,
    published: Option<Micros>,
    delivered: Option<Micros>,
    started: Option<Micros>,
    finished: Option<Micros>,
    answered: Option<Micros>,
}

/// What is between two of them.
pub(crate) const STAGES: [&str; 6] =
    ["committed", "published", "delivered", "started", "finished", "at_client"];

impl Moments {
    /// How long each stage took. A run whose session was in hand already had no token, and lacks some.
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

/// Collects traces, and remembers of each what matters here.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stages {
    runs: Arc<Mutex<HashMap<u128, Moments>>>,
}

impl Stages {
    fn runs(&self) -> MutexGuard<'_, HashMap<u128, Moments>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The context for a run that is to be traced, once in a while.
    pub(super) fn chosen(&self, random: u64) -> Option<TraceContext> {
        if !random.is_multiple_of(ONE_IN) {
            return None;
        }
        let trace = Uuid::now_v7().as_u128();
        format!("00-{trace:032x}-{}-01", SpanId::random()).parse().ok()
    }

    /// Notes what the client saw of it.
    pub(super) fn seen(&self, context: TraceContext, sent: Micros, answered: Micros) {
        let mut runs = self.runs();
        let moments = runs.entry(context.trace.bits()).or_default();
        (moments.sent, moments.answered) = (Some(sent), Some(answered));
    }

    /// Forgets what came before: what servers still tell of it is not counted, as its clients are forgotten, too.
    pub(super) fn forget(&self) {
        self.runs().clear();
    }

    /// Percentiles of each stage in milliseconds, and of how many runs.
    pub(crate) fn summary(&self) -> anyhow::Result<(usize, Vec<Stage>)> {
        let whole: Vec<[Option<Micros>; 6]> = self.runs().values().filter_map(Moments::stages).collect();
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

/// What came of one stage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    /// Of all that were looked at, those that came through it: not every run needs a token.
    pub(crate) share: f64,
}

impl Stage {
    /// One that all come through.
    pub(crate) const fn of_all(name: &'static str, p50_ms: f64, p99_ms: f64) -> Self {
        Self { name, p50_ms, p99_ms, share: 1.0 }
    }
}

impl Answers for Stages {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";

    fn answer(&self, message: Bytes) -> Bytes {
        let Ok(request) = ExportTraceServiceRequest::decode(message) else { return Bytes::new() };
        let mut runs = self.runs();
        let spans = request.resource_spans.into_iter().flat_map(|it| it.scope_spans).flat_map(|it| it.spans);
        for span in spans {
            let Ok(trace) = span.trace_id.as_slice().try_into().map(u128::from_be_bytes) else { continue };
            let moments = runs.entry(trace).or_default();
            let micros = |nanos: u64| Micros::try_from(nanos / 1000).ok();
            match span.name.as_str() {
                "commit run" => moments.committed = micros(span.end_time_unix_nano),
                "publish token" => moments.published = micros(span.end_time_unix_nano),
                "receive token" => moments.delivered = micros(span.start_time_unix_nano),
                "attempt" => {
                    moments.started = micros(span.start_time_unix_nano);
                    moments.finished = micros(span.end_time_unix_nano);
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
    fn stages_follow_each_other() {
        let whole = Moments {
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
        let in_hand = Moments { published: None, delivered: None, ..whole };
        assert_eq!(in_hand.stages(), Some([Some(20), None, None, Some(30), Some(10), Some(30)]));
        assert_eq!(Moments { answered: None, ..whole }.stages(), None);
    }

    #[test]
    fn what_was_forgotten_is_not_counted() {
        let stages = Stages::default();
        let context = stages.chosen(0).unwrap();
        stages.seen(context, 1, 2);
        stages.forget();
        stages.runs().entry(context.trace.bits()).or_default().committed = Some(2);
        assert_eq!(stages.summary().unwrap().0, 0);
    }

    #[test]
    fn one_in_many_is_traced() {
        let stages = Stages::default();
        assert_eq!((0..500).filter(|number| stages.chosen(*number).is_some()).count(), 10);
    }
}
