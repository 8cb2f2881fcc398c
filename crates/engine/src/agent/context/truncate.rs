//! Truncates tool results that do not fit even when nothing else is sent.
//!
//! The results of the newest response are never cleared or summarized, because the model asked for them. But several
//! long results can exceed the whole window. Then the longest are reduced to their two ends.

use remuda_domain::{message::Part, tool::ToolOutcome};

use super::{excerpt::within_tokens, tokens, window::TokenEstimator};
use crate::agent::{
    render,
    transcript::{Origin, Outgoing},
};

/// Share of the window that results are fitted into. The rest covers errors of the estimate.
const WINDOW_SHARE: f64 = 0.9;
/// Minimum tokens that are kept of a result.
const MIN_TOKENS: u64 = 64;

/// Truncates results until everything fits, if possible. With `forced` it does not fit, whatever the estimate was.
/// Returns whether anything was truncated.
pub(in crate::agent) fn truncate_results(
    outgoing: &mut [Outgoing],
    estimator: &TokenEstimator,
    forced: bool,
) -> bool {
    let total = estimator.total(outgoing);
    if total <= estimator.share_of_window(1.0) && !forced {
        return false;
    }
    let limit = if forced {
        estimator.share_of_window(WINDOW_SHARE).min(total / 2)
    } else {
        estimator.share_of_window(WINDOW_SHARE)
    };
    let lengths: Vec<u64> = results(outgoing).map(length).collect();
    let Some(max_length) = cap(&lengths, total.saturating_sub(limit)) else { return false };
    for message in outgoing {
        let mut changed = false;
        for part in &mut message.parts {
            if let Part::ToolResult { outcome } = part
                && length(outcome) > max_length
            {
                shorten(outcome, max_length);
                changed = true;
            }
        }
        if changed && let Some(id) = message.origin.id() {
            message.origin = Origin::Changed(id);
        }
    }
    true
}

fn results(outgoing: &[Outgoing]) -> impl Iterator<Item = &ToolOutcome> {
    outgoing.iter().flat_map(|message| &message.parts).filter_map(|part| match part {
        Part::ToolResult { outcome } => Some(outcome),
        _ => None,
    })
}

fn length(outcome: &ToolOutcome) -> u64 {
    tokens::text(&render::result_text(outcome))
}

/// The length to which the longest results are cut to gain `excess`, or as much as possible.
fn cap(lengths: &[u64], excess: u64) -> Option<u64> {
    let longest = lengths.iter().copied().max().filter(|longest| *longest > MIN_TOKENS)?;
    let gain = |cap: u64| lengths.iter().map(|length| length.saturating_sub(cap)).sum::<u64>();
    // Binary search for the largest cap that gains enough.
    let (mut low, mut high) = (MIN_TOKENS, longest);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if gain(middle) >= excess { low = middle } else { high = middle - 1 }
    }
    Some(low)
}

fn shorten(outcome: &mut ToolOutcome, max_length: u64) {
    if render::result_image(outcome).is_some() {
        return;
    }
    let text = within_tokens(&render::result_text(outcome), max_length);
    outcome.output = format!("{text}\n[there is no room for all of it: ask for less at once]").into();
    // The failure's message is in the text.
    if let Some(failure) = &mut outcome.failure {
        failure.message = within_tokens(&failure.message, MIN_TOKENS);
    }
}

#[cfg(test)]
mod unit {
    use remuda_domain::tool::CallStatus;
    use serde_json::json;

    use super::*;
    use crate::agent::context::tests::{conversation, estimator};

    #[test]
    fn cap_truncates_only_the_longest_and_no_more_than_needed() {
        for (lengths, excess, expected) in [
            (vec![100, 1000, 3000], 500, Some(2500)),
            (vec![100, 1000, 3000], 2400, Some(800)),
            (vec![100, 1000, 3000], 99_999, Some(MIN_TOKENS)),
            (vec![1000, 1000], 1, Some(999)),
            (vec![10, MIN_TOKENS], 1, None),
            (vec![], 1, None),
        ] {
            assert_eq!(cap(&lengths, excess), expected, "{lengths:?} {excess}");
        }
    }

    #[test]
    fn long_results_are_truncated_until_the_request_fits() {
        let mut conversation = conversation();
        conversation.user("read everything");
        conversation.call("Read", json!({}), CallStatus::Completed, json!("x".repeat(400)));
        conversation.call("Read", json!({}), CallStatus::Completed, json!("y".repeat(80_000)));
        let estimator = estimator(4000);
        let mut outgoing = conversation.outgoing();
        let before = outgoing.clone();
        assert!(truncate_results(&mut outgoing, &estimator, false));
        assert!(
            estimator.total(&outgoing) <= estimator.share_of_window(1.0),
            "{}",
            estimator.total(&outgoing)
        );
        assert_eq!(outgoing[..4], before[..4], "short results are unchanged");
        let Part::ToolResult { outcome } = &outgoing[4].parts[0] else { panic!("not a result") };
        let text = render::result_text(outcome);
        assert!(text.starts_with("yyy") && text.contains("left out") && text.contains("no room"), "{text}");
        assert_eq!(
            outgoing[4].origin,
            Origin::Changed(before[4].origin.id().unwrap()),
            "it is recorded verbatim"
        );

        let mut again = conversation.outgoing();
        let wide = crate::agent::context::tests::estimator(100_000);
        assert!(!truncate_results(&mut again, &wide, false));
        assert_eq!(again, before, "everything fits");
        assert!(truncate_results(&mut again, &wide, true), "the provider rejected it as too long");
        assert!(wide.total(&again) <= wide.total(&before) / 2 + MIN_TOKENS);
    }
}
