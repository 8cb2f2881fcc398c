//! Clears old tool results.
//!
//! Everything up to a boundary is cleared. The boundary moves rarely, and then as far as possible: sent messages stay
//! the same from call to call, so that the providers' prompt caches work.

use remuda_domain::{
    MessageId,
    message::{Part, Role},
    tool::{LongResults, ToolCatalog, ToolOutcome},
};
use serde_json::Value;

use super::{excerpt::excerpt, window::TokenEstimator};
use crate::agent::{
    render,
    transcript::{Origin, Outgoing},
};

/// Results with fewer characters are not cleared.
const MIN_CLEARED_CHARS: usize = 400;
/// Maximum characters of a failure's message.
const MAX_REASON: usize = 100;
/// Maximum characters of the paths of artifacts.
const MAX_PATHS: usize = 160;
/// If a new boundary gains less than this share of the window, the old one stays, unless the gain is needed.
const MIN_GAIN: f64 = 0.05;

/// Clears old results and returns the boundary, the last cleared message. `cleared` is the previous call's boundary.
pub(in crate::agent) fn clear(
    outgoing: &mut [Outgoing],
    cleared: Option<MessageId>,
    estimator: &TokenEstimator,
    forced: bool,
) -> Option<MessageId> {
    let previous = cleared.and_then(|id| position(outgoing, id).map(|at| (id, at)));
    if let Some((_, at)) = previous {
        clear_through(outgoing, at, &estimator.tools);
    }
    let cleared = previous.map(|(id, _)| id);
    let tokens = estimator.total(outgoing);
    if tokens <= estimator.share_of_window(estimator.settings.clear_at) && !forced {
        return cleared;
    }
    let Some((id, at)) = boundary(outgoing, estimator.settings.keep_results) else { return cleared };
    if previous.is_some_and(|(_, previous)| at <= previous) {
        return cleared;
    }
    let mut candidate = outgoing.to_vec();
    clear_through(&mut candidate, at, &estimator.tools);
    let gain = tokens.saturating_sub(estimator.total(&candidate));
    let needed = forced || tokens > estimator.share_of_window(estimator.settings.summarize_at);
    if gain == 0 || (gain < estimator.share_of_window(MIN_GAIN) && !needed) {
        return cleared;
    }
    outgoing.clone_from_slice(&candidate);
    Some(id)
}

fn position(outgoing: &[Outgoing], id: MessageId) -> Option<usize> {
    outgoing.iter().position(|message| message.origin.id() == Some(id))
}

/// The latest possible boundary: enough results, and the newest response, come after it.
fn boundary(outgoing: &[Outgoing], keep: usize) -> Option<(MessageId, usize)> {
    let newest_response = outgoing.iter().rposition(|message| message.role == Role::Assistant);
    let mut kept = 0;
    for (at, message) in outgoing.iter().enumerate().rev() {
        let results = message.parts.iter().filter(|part| matches!(part, Part::ToolResult { .. })).count();
        let allowed = kept >= keep && newest_response.is_none_or(|newest_response| at < newest_response);
        if let Some(id) = message.origin.id()
            && results > 0
            && allowed
        {
            return Some((id, at));
        }
        kept += results;
    }
    None
}

fn clear_through(outgoing: &mut [Outgoing], last: usize, tools: &ToolCatalog) {
    for message in &mut outgoing[..=last] {
        for part in &mut message.parts {
            if let Part::ToolResult { outcome } = part
                && is_clearable(outcome, tools)
            {
                clear_result(outcome);
            }
        }
        // Whole ranges are marked as cleared, not single messages, so that records stay short.
        if let (Origin::Stored(id), false) = (message.origin, message.is_summary()) {
            message.origin = Origin::Cleared(id);
        }
    }
}

fn is_clearable(outcome: &ToolOutcome, tools: &ToolCatalog) -> bool {
    tools.describe(&outcome.tool).long_results != LongResults::Keep
        && (render::result_image(outcome).is_some()
            || render::result_text(outcome).chars().count() >= MIN_CLEARED_CHARS)
}

fn clear_result(outcome: &mut ToolOutcome) {
    let what = match render::result_image(outcome) {
        Some(_) => "a picture".to_owned(),
        None => format!("{} characters", render::result_text(outcome).chars().count()),
    };
    let paths = artifacts(&outcome.output);
    let again = if paths.is_empty() {
        "call the tool again if you need it".to_owned()
    } else {
        format!("it is in {}", excerpt(&paths.join(", "), MAX_PATHS))
    };
    outcome.output = format!("[left out to save room: {what}; {again}]").into();
    if let Some(failure) = &mut outcome.failure {
        failure.message = excerpt(&failure.message, MAX_REASON);
    }
}

fn artifacts(output: &Value) -> Vec<&str> {
    let artifacts = output.get("artifacts").and_then(Value::as_object);
    artifacts.into_iter().flat_map(serde_json::Map::values).filter_map(Value::as_str).collect()
}

#[cfg(test)]
mod unit {
    use remuda_domain::{Code, run::Failure, tool::CallStatus};
    use serde_json::json;

    use super::*;
    use crate::agent::context::tests::{Conversation, conversation, estimator, tools};

    fn shown(outgoing: &[Outgoing]) -> Vec<bool> {
        let outcomes = outgoing.iter().flat_map(|message| &message.parts).filter_map(|part| match part {
            Part::ToolResult { outcome } => Some(outcome),
            _ => None,
        });
        outcomes.map(|outcome| !render::result_text(outcome).contains("left out")).collect()
    }

    /// `count` responses, each with a result of about 1000 tokens.
    fn reads(count: usize) -> Conversation {
        let mut conversation = conversation();
        conversation.user("read everything");
        for _ in 0..count {
            conversation.call("Read", json!({}), CallStatus::Completed, json!("x".repeat(4000)));
        }
        conversation
    }

    #[test]
    fn nothing_is_cleared_below_the_threshold() {
        let conversation = reads(8);
        let mut outgoing = conversation.outgoing();
        // Half of 18,000 is more than 8 results.
        assert_eq!(clear(&mut outgoing, None, &estimator(18_000), false), None);
        assert_eq!(outgoing, conversation.outgoing());
    }

    #[test]
    fn boundary_moves_as_far_as_possible_and_then_stays() {
        let mut conversation = reads(10);
        let estimator = estimator(18_000);
        let mut outgoing = conversation.outgoing();
        let first = clear(&mut outgoing, None, &estimator, false);
        assert_eq!(shown(&outgoing), [vec![false; 5], vec![true; 5]].concat());
        assert_eq!(first, Some(conversation.transcript[10].id));
        // Records store ranges, so both parts have to be contiguous.
        assert!(outgoing[..=10].iter().all(|it| matches!(it.origin, Origin::Cleared(_))));
        assert!(outgoing[11..].iter().all(|it| matches!(it.origin, Origin::Stored(_))));
        // Three more fit: the boundary stays, and the sent prefix is unchanged.
        for _ in 0..3 {
            conversation.call("Read", json!({}), CallStatus::Completed, json!("x".repeat(4000)));
        }
        let mut later = conversation.outgoing();
        assert_eq!(clear(&mut later, first, &estimator, false), first);
        assert_eq!(later[..outgoing.len()], outgoing);
        // One more does not fit.
        conversation.call("Read", json!({}), CallStatus::Completed, json!("x".repeat(4000)));
        let mut later = conversation.outgoing();
        assert_eq!(clear(&mut later, first, &estimator, false), Some(conversation.transcript[18].id));
        assert_eq!(shown(&later), [vec![false; 9], vec![true; 5]].concat());
    }

    #[test]
    fn boundary_stays_if_the_gain_is_small() {
        let mut conversation = conversation();
        conversation.user(&"x".repeat(4 * 10_000));
        for length in [600, 100, 100] {
            conversation.call("Read", json!({}), CallStatus::Completed, json!("x".repeat(length)));
        }
        let clear_keeping_one = |window, forced| {
            let mut estimator = estimator(window);
            estimator.settings.keep_results = 1;
            clear(&mut conversation.outgoing(), None, &estimator, forced)
        };
        let boundary = Some(conversation.transcript[4].id);
        assert_eq!(clear_keeping_one(18_000, false), None);
        assert_eq!(clear_keeping_one(18_000, true), boundary, "the provider rejected it as too long");
        assert_eq!(clear_keeping_one(12_000, false), boundary, "a summary would be needed otherwise");
    }

    #[test]
    fn skills_short_results_and_the_newest_are_never_cleared() {
        let long = json!("x".repeat(4000));
        let mut conversation = conversation();
        conversation.user("begin");
        conversation.call("Skill", json!({}), CallStatus::Completed, long.clone());
        conversation.call("Read", json!({}), CallStatus::Completed, json!("x".repeat(300)));
        conversation.call("Read", json!({}), CallStatus::Completed, long.clone());
        conversation.call("Read", json!({}), CallStatus::Completed, long);
        let mut estimator = estimator(4000);
        estimator.settings.keep_results = 0;
        let mut outgoing = conversation.outgoing();
        assert_eq!(clear(&mut outgoing, None, &estimator, false), Some(conversation.transcript[6].id));
        assert_eq!(shown(&outgoing), [true, true, false, true], "a skill, a short one, and the newest");
        let same = outgoing.clone();
        assert_eq!(clear(&mut outgoing, None, &estimator, true), None, "there is nothing more to gain");
        assert_eq!(outgoing, same);
    }

    #[test]
    fn unknown_boundary_clears_nothing() {
        let mut outgoing = reads(2).outgoing();
        assert_eq!(clear(&mut outgoing, Some(MessageId::new()), &estimator(100_000), false), None);
        assert!(shown(&outgoing).iter().all(|shown| *shown));
    }

    #[test]
    fn note_states_size_and_where_to_find_the_result() {
        let picture = json!({ "kind": "image", "media_type": "image/png", "data": "AAAA" });
        let spilled = json!({ "stdout": "x".repeat(900), "artifacts": { "stdout": "state/1/stdout" } });
        for (output, expected) in [
            (
                json!("x".repeat(900)),
                "[left out to save room: 900 characters; call the tool again if you need it]",
            ),
            (picture, "[left out to save room: a picture; call the tool again if you need it]"),
            (spilled, "[left out to save room: 947 characters; it is in state/1/stdout]"),
        ] {
            let mut conversation = conversation();
            conversation.call("Bash", json!({}), CallStatus::Completed, output);
            let mut outgoing = conversation.outgoing();
            clear_through(&mut outgoing, 1, &tools());
            let Part::ToolResult { outcome } = &outgoing[1].parts[0] else { panic!("not a result") };
            assert_eq!(render::result_text(outcome), expected);
            assert!(!is_clearable(outcome, &tools()));
        }
    }

    #[test]
    fn cleared_failures_keep_their_reason() {
        let mut conversation = conversation();
        conversation.call("Bash", json!({}), CallStatus::Failed, json!("x".repeat(900)));
        let mut outgoing = conversation.outgoing();
        let Part::ToolResult { outcome } = &mut outgoing[1].parts[0] else { panic!("not a result") };
        outcome.failure = Some(Failure::new(Code::ToolFailed, "y".repeat(900)));
        clear_result(outcome);
        assert!(!is_clearable(outcome, &tools()));
        let text = render::result_text(outcome);
        assert!(text.starts_with("error: yyy") && text.contains("tool_failed"), "{text}");
    }
}
