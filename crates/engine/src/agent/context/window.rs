//! The context window of a model, and the estimate of what fits into it.

use remuda_domain::{
    model::{ModelDefinition, ModelParameters, ModelRef},
    tool::ToolCatalog,
};

use super::tokens::{self, TokenCalibration};
use crate::agent::{settings::ContextSettings, transcript::Outgoing};

/// Response length of models that declare none.
const DEFAULT_OUTPUT: u64 = 8192;
const MIN_OUTPUT: u64 = 1024;
/// Minimum and maximum tokens of a summary; larger windows allow longer ones.
const SUMMARY_RANGE: (u64, u64) = (1200, 2000);

/// How a model's context window is divided, in the model's own tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) struct ContextWindow {
    pub(in crate::agent) capacity: u64,
    /// Kept free for the response.
    pub(in crate::agent) reserve: u64,
    /// Taken by the system prompt and tool definitions, which every request carries.
    pub(in crate::agent) fixed: u64,
}

impl ContextWindow {
    pub(in crate::agent) fn of(
        model: &ModelDefinition,
        parameters: &ModelParameters,
        settings: &ContextSettings,
        fixed: u64,
    ) -> Self {
        let capacity = model.context_window.unwrap_or(settings.window);
        let output = parameters.max_tokens.map(u64::from).or(model.max_output_tokens);
        let output = output.unwrap_or_else(|| DEFAULT_OUTPUT.min(capacity / 8));
        Self { capacity, reserve: output.max(MIN_OUTPUT).min(capacity / 2), fixed }
    }

    /// Left for messages.
    pub(in crate::agent) const fn usable(&self) -> u64 {
        self.capacity.saturating_sub(self.reserve).saturating_sub(self.fixed)
    }

    /// Maximum length of a summary.
    pub(in crate::agent) fn summary(&self) -> u64 {
        (self.capacity / 64).clamp(SUMMARY_RANGE.0, SUMMARY_RANGE.1).min(self.usable() / 4)
    }
}

/// Estimates the size of requests to one model. Estimates are not calibrated themselves; the window is converted into
/// estimated tokens instead.
#[derive(Clone, Debug)]
pub(in crate::agent) struct TokenEstimator {
    pub(in crate::agent) window: ContextWindow,
    pub(super) settings: ContextSettings,
    /// Tells which results must not be cleared.
    pub(super) tools: ToolCatalog,
    model: ModelRef,
    /// Model tokens per estimated token.
    ratio: f64,
    /// Estimated tokens of the system prompt and tool definitions.
    fixed: u64,
}

impl TokenEstimator {
    /// `fixed` is an estimate ([`tokens::fixed`]); `calibration` is from the last call of the same model.
    pub(in crate::agent) fn new(
        model: &ModelDefinition,
        parameters: &ModelParameters,
        settings: &ContextSettings,
        fixed: u64,
        calibration: Option<TokenCalibration>,
    ) -> Self {
        Self {
            window: ContextWindow::of(model, parameters, settings, tokens::correct(fixed, calibration)),
            settings: *settings,
            tools: ToolCatalog::default(),
            model: model.reference.clone(),
            ratio: tokens::ratio(calibration),
            fixed,
        }
    }

    pub(in crate::agent) fn with_tools(self, tools: &ToolCatalog) -> Self {
        Self { tools: tools.clone(), ..self }
    }

    /// Estimated tokens of each message.
    pub(super) fn per_message(&self, outgoing: &[Outgoing]) -> Vec<u64> {
        tokens::per_message(outgoing, &self.model)
    }

    /// Estimated tokens of all messages.
    pub(super) fn total(&self, outgoing: &[Outgoing]) -> u64 {
        self.per_message(outgoing).iter().sum()
    }

    /// Estimated tokens of the whole request. The usage in the response makes a [`TokenCalibration`] of it.
    pub(in crate::agent) fn estimate(&self, outgoing: &[Outgoing]) -> u64 {
        self.fixed + self.total(outgoing)
    }

    /// Calibrated tokens of the whole request.
    pub(in crate::agent) fn expected_tokens(&self, outgoing: &[Outgoing]) -> u64 {
        self.to_model_tokens(self.estimate(outgoing))
    }

    /// Converts estimated tokens to model tokens.
    pub(in crate::agent) fn to_model_tokens(&self, estimated: u64) -> u64 {
        tokens::scale(estimated, self.ratio)
    }

    /// Converts model tokens to estimated tokens.
    pub(super) fn to_estimated_tokens(&self, tokens: u64) -> u64 {
        tokens::scale(tokens, 1.0 / self.ratio)
    }

    /// A share of the window for messages, in estimated tokens.
    pub(super) fn share_of_window(&self, share: f64) -> u64 {
        tokens::scale(self.to_estimated_tokens(self.window.usable()), share.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod unit {
    use remuda_domain::model::Usage;

    use super::*;
    use crate::agent::context::tests::model;

    #[test]
    fn window_always_reserves_space_for_the_response() {
        let settings = ContextSettings::default();
        for (capacity, own, most, fixed, expected) in [
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
            let model = ModelDefinition { max_output_tokens: most, ..model(capacity) };
            let window = ContextWindow::of(&model, &parameters, &settings, fixed);
            assert_eq!((window.capacity, window.reserve, window.usable()), expected);
        }
    }

    #[test]
    fn summary_length_scales_with_the_window() {
        let window = |capacity| ContextWindow { capacity, reserve: 0, fixed: 0 };
        for (capacity, expected) in [(2000, 500), (8000, 1200), (100_000, 1562), (1_000_000, 2000)] {
            assert_eq!(window(capacity).summary(), expected, "{capacity}");
        }
    }

    #[test]
    fn calibration_upwards_shrinks_the_usable_window() {
        let settings = ContextSettings::default();
        let estimator = |calibration| {
            let model = model(Some(100_000));
            TokenEstimator::new(&model, &ModelParameters::default(), &settings, 1000, calibration)
        };
        let double = TokenCalibration::of(5000, &Usage { input_tokens: 10_000, ..Usage::default() });
        assert_eq!(estimator(None).window.usable(), 90_808);
        assert_eq!(estimator(double).window.usable(), 89_808, "the fixed part grows as well");
        assert_eq!(estimator(double).share_of_window(0.5), 22_452);
        assert_eq!((estimator(double).estimate(&[]), estimator(double).expected_tokens(&[])), (1000, 2000));
    }
}
