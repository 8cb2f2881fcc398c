//! Results that do not fit even when nothing else is sent.
//!
//! What an agent has just found out is never left out or summed up: it was asked for. But several long results of one answer can
//! be more than the whole window. Then the longest are shown with their two ends, as far as there is room.

use remuda_domain::{message::Part, tool::ToolOutcome};

use super::{excerpt::within, room::Gauge, tokens};
use crate::agent::{
    render,
    transcript::{Form, Outgoing},
};

/// Of the room that results are fitted into; the rest is for what the estimate overlooks.
const SHARE: f64 = 0.9;
/// Tokens that stay of a result in any case.
const LEAST: u64 = 64;

/// Shortens results until everything fits, if it can be made to. With `forced` it does not fit, whatever was estimated. Whether
/// anything was shortened.
pub(in crate::agent) fn squeeze(outgoing: &mut [Outgoing], gauge: &Gauge, forced: bool) -> bool {
    let total = gauge.messages(outgoing);
    if total <= gauge.share(1.0) && !forced {
        return false;
    }
    let room = if forced { gauge.share(SHARE).min(total / 2) } else { gauge.share(SHARE) };
    let lengths: Vec<u64> = results(outgoing).map(length).collect();
    let Some(most) = cap(&lengths, total.saturating_sub(room)) else { return false };
    for message in outgoing {
        let mut changed = false;
        for part in &mut message.parts {
            if let Part::ToolResult { outcome } = part
                && length(outcome) > most
            {
                shorten(outcome, most);
                changed = true;
            }
        }
        if changed && let Some(id) = message.form.id() {
            message.form = Form::Changed(id);
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

/// The length to which the longest have to be cut so that so much is gained, or as much as possible.
fn cap(lengths: &[u64], excess: u64) -> Option<u64> {
    let longest = lengths.iter().copied().max().filter(|longest| *longest > LEAST)?;
    let gain = |cap: u64| lengths.iter().map(|length| length.saturating_sub(cap)).sum::<u64>();
    // The largest that gains enough.
    let (mut low, mut high) = (LEAST, longest);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if gain(middle) >= excess { low = middle } else { high = middle - 1 }
    }
    Some(low)
}

fn shorten(outcome: &mut ToolOutcome, most: u64) {
    if render::result_image(outcome).is_some() {
        return;
    }
    let text = within(&render::result_text(outcome), most);
    outcome.output = format!("{text}\n[there is no room for all of it: ask for less at once]").into();
    // The reason of a failure is in the text.
    if let Some(failure) = &mut outcome.failure {
        failure.message = within(&failure.message, LEAST);
    }
}

#[cfg(test)]
mod unit {
    use remuda_domain::tool::CallStatus;
    use serde_json::json;

    use super::*;
    use crate::agent::context::tests::{gauge, talk};

    #[test]
    fn the_longest_are_cut_and_no_more_than_needed() {
        for (lengths, excess, expected) in [
            (vec![100, 1000, 3000], 500, Some(2500)),
            (vec![100, 1000, 3000], 2400, Some(800)),
            (vec![100, 1000, 3000], 99_999, Some(LEAST)),
            (vec![1000, 1000], 1, Some(999)),
            (vec![10, LEAST], 1, None),
            (vec![], 1, None),
        ] {
            assert_eq!(cap(&lengths, excess), expected, "{lengths:?} {excess}");
        }
    }

    #[test]
    fn an_answer_with_long_results_fits() {
        let mut talk = talk();
        talk.user("read everything");
        talk.call("Read", json!({}), CallStatus::Completed, json!("x".repeat(400)));
        talk.call("Read", json!({}), CallStatus::Completed, json!("y".repeat(80_000)));
        let gauge = gauge(4000);
        let mut outgoing = talk.outgoing();
        let before = outgoing.clone();
        assert!(squeeze(&mut outgoing, &gauge, false));
        assert!(gauge.messages(&outgoing) <= gauge.share(1.0), "{}", gauge.messages(&outgoing));
        assert_eq!(outgoing[..4], before[..4], "what is short stays as it is");
        let Part::ToolResult { outcome } = &outgoing[4].parts[0] else { panic!("not a result") };
        let text = render::result_text(outcome);
        assert!(text.starts_with("yyy") && text.contains("left out") && text.contains("no room"), "{text}");
        assert_eq!(
            outgoing[4].form,
            Form::Changed(before[4].form.id().unwrap()),
            "it is recorded word for word"
        );

        let mut again = talk.outgoing();
        let wide = crate::agent::context::tests::gauge(100_000);
        assert!(!squeeze(&mut again, &wide, false));
        assert_eq!(again, before, "there is room");
        assert!(squeeze(&mut again, &wide, true), "the provider says otherwise");
        assert!(wide.messages(&again) <= wide.messages(&before) / 2 + LEAST);
    }
}
