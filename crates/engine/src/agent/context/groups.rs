//! What belongs together.

use std::ops::Range;

use remuda_domain::message::{Part, Role};

use crate::agent::transcript::{Form, Outgoing};

/// Parts messages into groups that nothing may split: an answer with the results of its calls, or one message of anybody else.
/// What is not in the transcript goes with what it follows. Summaries are groups by themselves.
pub(super) fn groups(outgoing: &[Outgoing]) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut after_summary = true;
    for (index, message) in outgoing.iter().enumerate() {
        let follows = message.form == Form::Given || is_results(message);
        match groups.last_mut().filter(|_| follows && !after_summary && !message.is_summary()) {
            Some(group) => group.end = index + 1,
            None => groups.push(index..index + 1),
        }
        after_summary = message.is_summary();
    }
    groups
}

/// Results of calls in the message before, rather than of calls that come with them.
fn is_results(message: &Outgoing) -> bool {
    message.role == Role::Tool && !message.parts.iter().any(|part| matches!(part, Part::ToolUse { .. }))
}
