//! Trace ids, span ids and W3C trace contexts.
//!
//! Spans that outlive the process that started them (a run, an attempt, a step) derive their ids from the ids of
//! their subjects. So a process that takes a run over, ends it or renders its trace from the store can compute them,
//! and can emit a span that a lost worker never sent.

use std::{fmt, str::FromStr};

use uuid::Uuid;

use crate::{
    error::Error,
    ids::{RunId, StepId},
    run::Run,
    session::Epoch,
};

/// Identifies a trace. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TraceId(u128);

/// Identifies a span within its trace. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpanId(u64);

impl TraceId {
    #[must_use]
    pub fn new(bits: u128) -> Option<Self> {
        (bits != 0).then_some(Self(bits))
    }

    /// The trace of a run that was submitted without one.
    #[must_use]
    pub fn of_run(run: RunId) -> Self {
        Self(run.as_uuid().as_u128().max(1))
    }

    #[must_use]
    pub const fn bits(self) -> u128 {
        self.0
    }
}

/// What a span of a run covers.
#[derive(Clone, Copy, Debug)]
enum SpanSubject {
    Run,
    /// An attempt: the work of one owner of the session.
    Attempt(Epoch),
    /// The wait before an attempt, in the queue or for something else.
    Wait(Epoch),
    Step,
}

impl SpanSubject {
    const fn salt(self) -> u64 {
        match self {
            Self::Run => 1 << 56,
            Self::Attempt(epoch) => (2 << 56) ^ epoch.cast_unsigned(),
            Self::Wait(epoch) => (3 << 56) ^ epoch.cast_unsigned(),
            Self::Step => 4 << 56,
        }
    }
}

impl SpanId {
    #[must_use]
    pub fn new(bits: u64) -> Option<Self> {
        (bits != 0).then_some(Self(bits))
    }

    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    fn of(uuid: Uuid, subject: SpanSubject) -> Self {
        let (high, low) = uuid.as_u64_pair();
        Self(mix(low ^ mix(high ^ subject.salt())).max(1))
    }

    /// The whole run, from its submission to its end.
    #[must_use]
    pub fn of_run(run: RunId) -> Self {
        Self::of(run.as_uuid(), SpanSubject::Run)
    }

    /// The attempt of a worker under one epoch of the session.
    #[must_use]
    pub fn of_attempt(run: RunId, epoch: Epoch) -> Self {
        Self::of(run.as_uuid(), SpanSubject::Attempt(epoch))
    }

    /// The wait before the attempt.
    #[must_use]
    pub fn of_wait(run: RunId, epoch: Epoch) -> Self {
        Self::of(run.as_uuid(), SpanSubject::Wait(epoch))
    }

    /// A random id, for spans that only the process that did the work emits.
    #[must_use]
    pub fn random() -> Self {
        let (high, low) = Uuid::now_v7().as_u64_pair();
        Self(mix(low ^ mix(high)).max(1))
    }

    #[must_use]
    pub fn of_step(step: StepId) -> Self {
        Self::of(step.as_uuid(), SpanSubject::Step)
    }
}

/// The finalizer of SplitMix64: every bit of the result depends on every bit of the input.
const fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

macro_rules! hexadecimal {
    ($($name:ident, $width:literal;)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{:0", $width, "x}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}

hexadecimal! {
    TraceId, 32;
    SpanId, 16;
}

/// Reference to a span, as in a W3C `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext {
    pub trace: TraceId,
    pub span: SpanId,
    /// Whether the trace is collected. Decided once, at its start.
    pub sampled: bool,
}

impl TraceContext {
    /// Another span of the same trace.
    #[must_use]
    pub const fn with_span(self, span: SpanId) -> Self {
        Self { span, ..self }
    }

    /// The trace context that caused a run, as recorded with it.
    #[must_use]
    pub fn cause_of(run: &Run) -> Option<Self> {
        run.traceparent.as_deref()?.parse().ok()
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

impl FromStr for TraceContext {
    type Err = Error;

    /// Parses a `traceparent`. Fields appended by later versions are ignored, as the specification requires.
    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).ok_or_else(|| {
            Error::invalid(
                "traceparent",
                "expected a W3C traceparent: 00-<32 hex digits>-<16 hex digits>-<2 hex digits>",
            )
        })
    }
}

fn parse(text: &str) -> Option<TraceContext> {
    let number = |digits: &str, width: usize| {
        let plain = digits.len() == width && digits.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'));
        plain.then(|| u128::from_str_radix(digits, 16).ok()).flatten()
    };
    let mut fields = text.splitn(5, '-');
    let version = number(fields.next()?, 2)?;
    let trace = TraceId::new(number(fields.next()?, 32)?)?;
    let span = SpanId::new(u64::try_from(number(fields.next()?, 16)?).ok()?)?;
    let flags = number(fields.next()?, 2)?;
    let known = match version {
        0 => fields.next().is_none(),
        0xff => false,
        _ => true,
    };
    known.then_some(TraceContext { trace, span, sampled: flags & 1 == 1 })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const TEXT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn traceparent_parses_back_from_its_text() {
        let context: TraceContext = TEXT.parse().unwrap();
        assert_eq!(context.to_string(), TEXT);
        assert!(context.sampled);
        let unsampled: TraceContext = TEXT.replace("-01", "-00").parse().unwrap();
        assert!(!unsampled.sampled);
        let later: TraceContext = format!("cc{}-what-the-future-says", &TEXT[2..]).parse().unwrap();
        assert_eq!(later, context);
    }

    #[test]
    fn invalid_traceparents_are_rejected() {
        let zero_trace = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
        let zero_span = "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01";
        let (upper, longer, version) =
            (TEXT.to_uppercase(), format!("{TEXT}-00"), format!("ff{}", &TEXT[2..]));
        let signed = TEXT.replace("-b7", "-+7");
        for bad in
            ["", "00", &TEXT[..54], zero_trace, zero_span, &upper, &longer, &version, &signed, "00-é-é-01"]
        {
            assert!(bad.parse::<TraceContext>().is_err(), "{bad}");
        }
    }

    #[test]
    fn spans_of_a_run_have_distinct_stable_ids() {
        let (run, step) = (RunId::new(), StepId::new());
        let mut ids = vec![SpanId::of_run(run), SpanId::of_step(step), SpanId::of_step(StepId::new())];
        ids.extend((1..100).flat_map(|n| [SpanId::of_attempt(run, n), SpanId::of_wait(run, n)]));
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
        assert_eq!(SpanId::of_attempt(run, 7), SpanId::of_attempt(run, 7));
    }
}
