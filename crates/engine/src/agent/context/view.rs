//! The part of a transcript that models see.

use remuda_domain::message::{Part, Role};

use crate::agent::transcript::TranscriptMessage;

/// The newest summary, followed by the messages after the last one that it covers. Everything, if there is no
/// summary. A summary is stored at the end of the transcript of its time; the view moves it to the front.
pub(in crate::agent) fn view(mut transcript: Vec<TranscriptMessage>) -> Vec<TranscriptMessage> {
    let Some(newest) = transcript.iter().rposition(TranscriptMessage::is_summary) else { return transcript };
    let through = transcript[newest].parts.iter().find_map(|part| match part {
        Part::Summary { through, .. } => Some(*through),
        _ => None,
    });
    // The covered messages are gone if the view was applied before.
    let last = transcript[..newest].iter().position(|message| Some(message.id) == through).unwrap_or(newest);
    let mut rest = transcript.split_off(last + 1);
    let summary = if last == newest { transcript.pop() } else { Some(rest.remove(newest - last - 1)) };
    // The newest summary includes older ones.
    rest.retain(|message| !message.is_summary());
    // Providers reject results without their calls.
    let orphans =
        rest.iter().take_while(|it| it.role == Role::Tool && it.tool_calls().next().is_none()).count();
    summary.into_iter().chain(rest.into_iter().skip(orphans)).collect()
}

#[cfg(test)]
mod unit {
    use remuda_domain::{MessageId, tool::CallStatus};
    use serde_json::json;

    use super::*;
    use crate::agent::context::tests::{Conversation, conversation};

    fn ids(transcript: &[TranscriptMessage]) -> Vec<MessageId> {
        transcript.iter().map(|message| message.id).collect()
    }

    fn long_conversation() -> Conversation {
        let mut conversation = conversation();
        conversation.user("one").assistant(vec![Part::text("first")]);
        conversation.call("Read", json!({}), CallStatus::Completed, json!("text")).user("two");
        conversation
    }

    #[test]
    fn view_without_a_summary_is_the_whole_transcript() {
        let conversation = long_conversation();
        assert_eq!(view(conversation.transcript.clone()), conversation.transcript);
    }

    #[test]
    fn newest_summary_comes_first_and_replaces_older_ones() {
        let mut conversation = long_conversation();
        let through = conversation.transcript[1].id;
        conversation.summary("so far", through);
        conversation.user("three");
        let all = ids(&conversation.transcript);
        // user, assistant | call, result, user, SUMMARY, user
        let seen = view(conversation.transcript.clone());
        assert_eq!(ids(&seen), [all[5], all[2], all[3], all[4], all[6]]);
        assert_eq!(view(seen.clone()), seen, "idempotent");
        // A second summary, with or without the view of the first one applied.
        let through = conversation.transcript[3].id;
        conversation.summary("farther", through);
        let expected = [all[4], all[6]];
        assert_eq!(ids(&view(conversation.transcript.clone()))[1..], expected);
        let again = seen.into_iter().chain(conversation.transcript.last().cloned()).collect();
        assert_eq!(ids(&view(again))[1..], expected);
    }

    #[test]
    fn summary_through_an_unknown_message_covers_everything_before_it() {
        let mut conversation = long_conversation();
        conversation.summary("so far", MessageId::new());
        conversation.user("three");
        assert_eq!(ids(&view(conversation.transcript.clone())), ids(&conversation.transcript[5..]));
    }

    #[test]
    fn results_without_their_calls_are_left_out() {
        let mut conversation = long_conversation();
        let call = conversation.transcript[2].id;
        conversation.summary("so far", call);
        let seen = view(conversation.transcript.clone());
        assert_eq!(ids(&seen), [conversation.transcript[5].id, conversation.transcript[4].id]);
    }
}
