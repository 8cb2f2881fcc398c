//! Old results of tools are left out.
//!
//! What is sent stays the same from question to question, so that the caches of providers work: everything up to a boundary is
//! cleared, and the boundary moves seldom, but then as far as it may.

use remuda_domain::{
    MessageId,
    message::{Part, Role},
    tool::ToolOutcome,
};
use serde_json::Value;

use super::{excerpt::excerpt, room::Gauge};
use crate::agent::{
    render, skill,
    transcript::{Form, Outgoing},
};

/// Results with fewer characters are not worth it.
const SHORT: usize = 400;
/// Of a failure's message.
const REASON: usize = 100;
/// Of the paths of files that hold a result.
const PATHS: usize = 160;
/// A boundary that gains less than this share of the room stays where it is, unless it is needed.
const WORTH: f64 = 0.05;

/// Leaves out what is old, and says up to which message. `cleared` is that message of the question before.
pub(in crate::agent) fn clear(
    outgoing: &mut [Outgoing],
    cleared: Option<MessageId>,
    gauge: &Gauge,
    forced: bool,
) -> Option<MessageId> {
    let old = cleared.and_then(|id| position(outgoing, id).map(|at| (id, at)));
    if let Some((_, at)) = old {
        clear_through(outgoing, at);
    }
    let cleared = old.map(|(id, _)| id);
    let tokens = gauge.messages(outgoing);
    if tokens <= gauge.share(gauge.settings.clear_at) && !forced {
        return cleared;
    }
    let Some((id, at)) = boundary(outgoing, gauge.settings.keep_results) else { return cleared };
    if old.is_some_and(|(_, old)| at <= old) {
        return cleared;
    }
    let mut farther = outgoing.to_vec();
    clear_through(&mut farther, at);
    let gain = tokens.saturating_sub(gauge.messages(&farther));
    let needed = forced || tokens > gauge.share(gauge.settings.summarize_at);
    if gain == 0 || (gain < gauge.share(WORTH) && !needed) {
        return cleared;
    }
    outgoing.clone_from_slice(&farther);
    Some(id)
}

fn position(outgoing: &[Outgoing], id: MessageId) -> Option<usize> {
    outgoing.iter().position(|message| message.form.id() == Some(id))
}

/// The farthest message that may be cleared: after it come enough results, and the newest answer.
fn boundary(outgoing: &[Outgoing], keep: usize) -> Option<(MessageId, usize)> {
    let answer = outgoing.iter().rposition(|message| message.role == Role::Assistant);
    let mut kept = 0;
    for (at, message) in outgoing.iter().enumerate().rev() {
        let results = message.parts.iter().filter(|part| matches!(part, Part::ToolResult { .. })).count();
        let allowed = kept >= keep && answer.is_none_or(|answer| at < answer);
        if let Some(id) = message.form.id()
            && results > 0
            && allowed
        {
            return Some((id, at));
        }
        kept += results;
    }
    None
}

fn clear_through(outgoing: &mut [Outgoing], last: usize) {
    for message in &mut outgoing[..=last] {
        for part in &mut message.parts {
            if let Part::ToolResult { outcome } = part
                && is_clearable(outcome)
            {
                leave_out(outcome);
            }
        }
        // Of a range it is said that it was cleared, not of each message: so records stay short.
        if let (Form::Stored(id), false) = (message.form, message.is_summary()) {
            message.form = Form::Cleared(id);
        }
    }
}

fn is_clearable(outcome: &ToolOutcome) -> bool {
    outcome.tool != skill::NAME
        && (render::result_image(outcome).is_some() || render::result_text(outcome).chars().count() >= SHORT)
}

fn leave_out(outcome: &mut ToolOutcome) {
    let what = match render::result_image(outcome) {
        Some(_) => "a picture".to_owned(),
        None => format!("{} characters", render::result_text(outcome).chars().count()),
    };
    let paths = artifacts(&outcome.output);
    let again = if paths.is_empty() {
        "call the tool again if you need it".to_owned()
    } else {
        format!("it is in {}", excerpt(&paths.join(", "), PATHS))
    };
    outcome.output = format!("[left out to save room: {what}; {again}]").into();
    if let Some(failure) = &mut outcome.failure {
        failure.message = excerpt(&failure.message, REASON);
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
    use crate::agent::context::tests::{Talk, gauge, talk};

    fn shown(outgoing: &[Outgoing]) -> Vec<bool> {
        let outcomes = outgoing.iter().flat_map(|message| &message.parts).filter_map(|part| match part {
            Part::ToolResult { outcome } => Some(outcome),
            _ => None,
        });
        outcomes.map(|outcome| !render::result_text(outcome).contains("left out")).collect()
    }

    /// `count` answers, each with a result of about 1000 tokens.
    fn reading(count: usize) -> Talk {
        let mut talk = talk();
        talk.user("read everything");
        for _ in 0..count {
            talk.call("Read", json!({}), CallStatus::Completed, json!("x".repeat(4000)));
        }
        talk
    }

    #[test]
    fn nothing_is_left_out_while_there_is_room() {
        let talk = reading(8);
        let mut outgoing = talk.outgoing();
        // Half of 18 000 is more than 8 results.
        assert_eq!(clear(&mut outgoing, None, &gauge(18_000), false), None);
        assert_eq!(outgoing, talk.outgoing());
    }

    #[test]
    fn the_boundary_moves_far_and_then_stays() {
        let mut talk = reading(10);
        let gauge = gauge(18_000);
        let mut outgoing = talk.outgoing();
        let first = clear(&mut outgoing, None, &gauge, false);
        assert_eq!(shown(&outgoing), [vec![false; 5], vec![true; 5]].concat());
        assert_eq!(first, Some(talk.said[10].id));
        // Ranges for the record, and results that can be asked for again.
        assert!(outgoing[..=10].iter().all(|it| matches!(it.form, Form::Cleared(_))));
        assert!(outgoing[11..].iter().all(|it| matches!(it.form, Form::Stored(_))));
        // Three more fit: it stays, and what was sent is sent again.
        for _ in 0..3 {
            talk.call("Read", json!({}), CallStatus::Completed, json!("x".repeat(4000)));
        }
        let mut later = talk.outgoing();
        assert_eq!(clear(&mut later, first, &gauge, false), first);
        assert_eq!(later[..outgoing.len()], outgoing);
        // One more does not.
        talk.call("Read", json!({}), CallStatus::Completed, json!("x".repeat(4000)));
        let mut later = talk.outgoing();
        assert_eq!(clear(&mut later, first, &gauge, false), Some(talk.said[18].id));
        assert_eq!(shown(&later), [vec![false; 9], vec![true; 5]].concat());
    }

    #[test]
    fn a_small_gain_is_not_worth_another_prompt() {
        let mut talk = talk();
        talk.user(&"x".repeat(4 * 10_000));
        for length in [600, 100, 100] {
            talk.call("Read", json!({}), CallStatus::Completed, json!("x".repeat(length)));
        }
        let few = |window, forced| {
            let mut gauge = gauge(window);
            gauge.settings.keep_results = 1;
            clear(&mut talk.outgoing(), None, &gauge, forced)
        };
        let boundary = Some(talk.said[4].id);
        assert_eq!(few(18_000, false), None);
        assert_eq!(few(18_000, true), boundary, "the provider wants it shorter");
        assert_eq!(few(12_000, false), boundary, "or it would have to be summed up");
    }

    #[test]
    fn some_results_always_stay() {
        let long = json!("x".repeat(4000));
        let mut talk = talk();
        talk.user("begin");
        talk.call("Skill", json!({}), CallStatus::Completed, long.clone());
        talk.call("Read", json!({}), CallStatus::Completed, json!("x".repeat(300)));
        talk.call("Read", json!({}), CallStatus::Completed, long.clone());
        talk.call("Read", json!({}), CallStatus::Completed, long);
        let mut gauge = gauge(4000);
        gauge.settings.keep_results = 0;
        let mut outgoing = talk.outgoing();
        assert_eq!(clear(&mut outgoing, None, &gauge, false), Some(talk.said[6].id));
        assert_eq!(shown(&outgoing), [true, true, false, true], "a skill, a short one, and the newest");
        let same = outgoing.clone();
        assert_eq!(clear(&mut outgoing, None, &gauge, true), None, "there is nothing more to gain");
        assert_eq!(outgoing, same);
    }

    #[test]
    fn a_boundary_that_was_summed_up_is_none() {
        let mut outgoing = reading(2).outgoing();
        assert_eq!(clear(&mut outgoing, Some(MessageId::new()), &gauge(100_000), false), None);
        assert!(shown(&outgoing).iter().all(|shown| *shown));
    }

    #[test]
    fn notes_say_what_was_there() {
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
            let mut talk = talk();
            talk.call("Bash", json!({}), CallStatus::Completed, output);
            let mut outgoing = talk.outgoing();
            clear_through(&mut outgoing, 1);
            let Part::ToolResult { outcome } = &outgoing[1].parts[0] else { panic!("not a result") };
            assert_eq!(render::result_text(outcome), expected);
            assert!(!is_clearable(outcome));
        }
    }

    #[test]
    fn failures_stay_failures() {
        let mut talk = talk();
        talk.call("Bash", json!({}), CallStatus::Failed, json!("x".repeat(900)));
        let mut outgoing = talk.outgoing();
        let Part::ToolResult { outcome } = &mut outgoing[1].parts[0] else { panic!("not a result") };
        outcome.failure = Some(Failure::new(Code::ToolFailed, "y".repeat(900)));
        leave_out(outcome);
        assert!(!is_clearable(outcome));
        let text = render::result_text(outcome);
        assert!(text.starts_with("error: yyy") && text.contains("tool_failed"), "{text}");
    }
}
