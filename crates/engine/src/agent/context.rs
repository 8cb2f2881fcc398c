//! Fits the transcript into a model's context window.
//!
//! The stored transcript keeps everything. This module decides which part of it a model sees, in four steps:
//!
//! 1. [`view`]: a summary replaces the messages that it summarizes.
//! 2. [`clear`]: above a share of the window, notes replace old tool results.
//! 3. [`cut`]: above a higher share, the older part is to be summarized: by a model ([`summary_request`]), or if that
//!    fails by a mechanical [`fallback`].
//! 4. [`truncate_results`]: if the newest response's tool results still do not fit, the longest are truncated.
//!
//! A call is never separated from its result. The user's last message is never lost: when it is summarized, its text
//! is carried along with the summary. The module does no I/O. [`fit`] does the steps 2 and 3.

mod clear;
mod cut;
mod excerpt;
mod fallback_summary;
mod groups;
mod offload;
mod summary;
#[cfg(test)]
mod tests;
pub(super) mod tokens;
mod truncate;
mod view;
mod window;

use remuda_domain::MessageId;

use super::transcript::Outgoing;

pub(crate) use self::offload::{OversizedResult, oversized};
pub(super) use self::{
    clear::clear,
    cut::{Cut, cut},
    fallback_summary::fallback,
    summary::{SummaryRequest, introduce, summary_message, summary_request},
    truncate::truncate_results,
    view::view,
    window::TokenEstimator,
};

/// The messages to send, and what has to be summarized before.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FittedMessages {
    pub(super) outgoing: Vec<Outgoing>,
    /// The last message whose tool results are cleared.
    pub(super) cleared: Option<MessageId>,
    /// What has to be summarized first, because the messages do not fit otherwise.
    pub(super) cut: Option<Cut>,
}

/// Does the steps 2 and 3. `cleared` is the boundary of the last model call. With `forced`, the provider rejected the
/// request as too long, whatever the estimate was.
pub(super) fn fit(
    mut outgoing: Vec<Outgoing>,
    cleared: Option<MessageId>,
    estimator: &TokenEstimator,
    forced: bool,
) -> FittedMessages {
    let cleared = clear(&mut outgoing, cleared, estimator, forced);
    let cut = cut(&outgoing, estimator, forced);
    FittedMessages { outgoing, cleared, cut }
}
