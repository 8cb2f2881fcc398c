//! Groups of messages that must stay together.

use std::ops::Range;

use remuda_domain::message::{Part, Role};

use crate::agent::transcript::{Origin, Outgoing};

/// Splits messages into indivisible groups: a response with the results of its calls, or a single message of another
/// role. A message that is not in the transcript belongs to the group before it. A summary is a group of its own.
pub(super) fn groups(outgoing: &[Outgoing]) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut after_summary = true;
    for (index, message) in outgoing.iter().enumerate() {
        let follows = message.origin == Origin::Inserted || is_results(message);
        match groups.last_mut().filter(|_| follows && !after_summary && !message.is_summary()) {
            Some(group) => group.end = index + 1,
            None => groups.push(index..index + 1),
        }
        after_summary = message.is_summary();
    }
    groups
}

/// Results of calls in the message before, as opposed to results that come with their calls.
fn is_results(message: &Outgoing) -> bool {
    message.role == Role::Tool && !message.parts.iter().any(|part| matches!(part, Part::ToolUse { .. }))
}
