//! How much fits into a question.

use remuda_domain::model::{ModelDefinition, ModelParameters, ModelRef};

use super::tokens::{self, Lesson};
use crate::agent::{settings::ContextSettings, transcript::Outgoing};

/// Answers of models that say nothing about them.
const ANSWER: u64 = 8192;
const LEAST_ANSWER: u64 = 1024;
/// Tokens of a summary, for small and for large windows.
const SUMMARY: (u64, u64) = (1200, 2000);

/// What a model has room for, in its own tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) struct Room {
    pub(in crate::agent) window: u64,
    /// Kept free for the answer.
    pub(in crate::agent) reserve: u64,
    /// Taken by what goes with every question.
    pub(in crate::agent) fixed: u64,
}

impl Room {
    pub(in crate::agent) fn of(
        model: &ModelDefinition,
        parameters: &ModelParameters,
        settings: &ContextSettings,
        fixed: u64,
    ) -> Self {
        let window = model.context_window.unwrap_or(settings.window);
        let answer = parameters.max_tokens.map(u64::from).or(model.max_output_tokens);
        let answer = answer.unwrap_or_else(|| ANSWER.min(window / 8));
        Self { window, reserve: answer.max(LEAST_ANSWER).min(window / 2), fixed }
    }

    /// What is left for messages.
    pub(in crate::agent) const fn usable(&self) -> u64 {
        self.window.saturating_sub(self.reserve).saturating_sub(self.fixed)
    }

    /// What a summary may have at most.
    pub(in crate::agent) fn summary(&self) -> u64 {
        (self.window / 64).clamp(SUMMARY.0, SUMMARY.1).min(self.usable() / 4)
    }
}

/// Measures what is sent to one model. Estimates stay as they are; it is the room that is measured in them.
#[derive(Clone, Debug)]
pub(in crate::agent) struct Gauge {
    pub(in crate::agent) room: Room,
    pub(super) settings: ContextSettings,
    model: ModelRef,
    /// Real tokens of an estimated one.
    ratio: f64,
    /// What goes with every question, as estimated.
    fixed: u64,
}

impl Gauge {
    /// `fixed` is estimated ([`tokens::fixed`]); `last` is of the last question to the same model.
    pub(in crate::agent) fn new(
        model: &ModelDefinition,
        parameters: &ModelParameters,
        settings: &ContextSettings,
        fixed: u64,
        last: Option<Lesson>,
    ) -> Self {
        Self {
            room: Room::of(model, parameters, settings, tokens::correct(fixed, last)),
            settings: *settings,
            model: model.reference.clone(),
            ratio: tokens::ratio(last),
            fixed,
        }
    }

    /// Of each message, as estimated.
    pub(super) fn each(&self, outgoing: &[Outgoing]) -> Vec<u64> {
        tokens::each(outgoing, &self.model)
    }

    /// Of all messages, as estimated.
    pub(super) fn messages(&self, outgoing: &[Outgoing]) -> u64 {
        self.each(outgoing).iter().sum()
    }

    /// Of the whole question, as estimated. The answer's usage makes a [`Lesson`] of it.
    pub(in crate::agent) fn estimate(&self, outgoing: &[Outgoing]) -> u64 {
        self.fixed + self.messages(outgoing)
    }

    /// Of the whole question, as far as is known really.
    pub(in crate::agent) fn expected(&self, outgoing: &[Outgoing]) -> u64 {
        self.really(self.estimate(outgoing))
    }

    /// So many estimated tokens, in the model's own.
    pub(in crate::agent) fn really(&self, estimated: u64) -> u64 {
        tokens::scale(estimated, self.ratio)
    }

    /// So many of the model's tokens, in estimated ones.
    pub(super) fn estimated(&self, tokens: u64) -> u64 {
        tokens::scale(tokens, 1.0 / self.ratio)
    }

    /// A share of the room for messages, in estimated tokens.
    pub(super) fn share(&self, share: f64) -> u64 {
        tokens::scale(self.estimated(self.room.usable()), share.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod unit {
    use remuda_domain::model::Usage;

    use super::*;
    use crate::agent::context::tests::model;

    #[test]
    fn there_is_always_room_for_an_answer() {
        let settings = ContextSettings::default();
        for (window, own, most, fixed, expected) in [
            // window, max_tokens, max_output_tokens, fixed → window, reserve, usable
            (None, None, None, 1000, (128_000, 8192, 118_808)),
            (Some(32_000), None, None, 0, (32_000, 4000, 28_000)),
            (Some(200_000), None, Some(64_000), 0, (200_000, 64_000, 136_000)),
            (Some(200_000), Some(4000), Some(64_000), 0, (200_000, 4000, 196_000)),
            (Some(200_000), Some(1), None, 0, (200_000, 1024, 198_976)),
            (Some(8000), None, Some(8000), 0, (8000, 4000, 4000)),
            (Some(1000), None, None, 0, (1000, 500, 500)),
            (Some(4000), None, None, 9000, (4000, 1024, 0)),
            (Some(0), None, None, 0, (0, 0, 0)),
        ] {
            let parameters = ModelParameters { max_tokens: own, ..ModelParameters::default() };
            let model = ModelDefinition { max_output_tokens: most, ..model(window) };
            let room = Room::of(&model, &parameters, &settings, fixed);
            assert_eq!((room.window, room.reserve, room.usable()), expected);
        }
    }

    #[test]
    fn summaries_are_as_long_as_the_room_allows() {
        let room = |window| Room { window, reserve: 0, fixed: 0 };
        for (window, expected) in [(2000, 500), (8000, 1200), (100_000, 1562), (1_000_000, 2000)] {
            assert_eq!(room(window).summary(), expected, "{window}");
        }
    }

    #[test]
    fn a_provider_that_counts_more_leaves_less_room() {
        let settings = ContextSettings::default();
        let gauge = |last| {
            let model = model(Some(100_000));
            Gauge::new(&model, &ModelParameters::default(), &settings, 1000, last)
        };
        let double = Lesson::of(5000, &Usage { input_tokens: 10_000, ..Usage::default() });
        assert_eq!(gauge(None).room.usable(), 90_808);
        assert_eq!(gauge(double).room.usable(), 89_808, "what goes with it is larger too");
        assert_eq!(gauge(double).share(0.5), 22_452);
        assert_eq!((gauge(double).estimate(&[]), gauge(double).expected(&[])), (1000, 2000));
    }
}
