//! What models see of a transcript.

use remuda_domain::message::{Part, Role};

use crate::agent::transcript::Said;

/// The newest summary, and what was said after the message it goes through. Without a summary, everything. A summary stands at the
/// end of what was said when it was made; here it stands where it belongs.
pub(in crate::agent) fn view(mut said: Vec<Said>) -> Vec<Said> {
    let Some(newest) = said.iter().rposition(Said::is_summary) else { return said };
    let through = said[newest].parts.iter().find_map(|part| match part {
        Part::Summary { through, .. } => Some(*through),
        _ => None,
    });
    // What it goes through is gone if this was done before.
    let last = said[..newest].iter().position(|message| Some(message.id) == through).unwrap_or(newest);
    let mut rest = said.split_off(last + 1);
    let summary = if last == newest { said.pop() } else { Some(rest.remove(newest - last - 1)) };
    // Older summaries are part of the newest.
    rest.retain(|message| !message.is_summary());
    // Providers refuse results without their calls.
    let orphans = rest.iter().take_while(|it| it.role == Role::Tool && it.uses().next().is_none()).count();
    summary.into_iter().chain(rest.into_iter().skip(orphans)).collect()
}

#[cfg(test)]
mod unit {
    use remuda_domain::{MessageId, tool::CallStatus};
    use serde_json::json;

    use super::*;
    use crate::agent::context::tests::{Talk, talk};

    fn ids(said: &[Said]) -> Vec<MessageId> {
        said.iter().map(|message| message.id).collect()
    }

    fn long_talk() -> Talk {
        let mut talk = talk();
        talk.user("one").assistant(vec![Part::text("first")]);
        talk.call("Read", json!({}), CallStatus::Completed, json!("text")).user("two");
        talk
    }

    #[test]
    fn without_a_summary_everything_is_seen() {
        let talk = long_talk();
        assert_eq!(view(talk.said.clone()), talk.said);
    }

    #[test]
    fn a_summary_comes_first_and_older_ones_are_gone() {
        let mut talk = long_talk();
        let through = talk.said[1].id;
        talk.summary("so far", through);
        talk.user("three");
        let all = ids(&talk.said);
        // user, assistant | call, result, user, SUMMARY, user
        let seen = view(talk.said.clone());
        assert_eq!(ids(&seen), [all[5], all[2], all[3], all[4], all[6]]);
        assert_eq!(view(seen.clone()), seen, "seen once more, it is the same");
        // A second one, whether the first was already put in its place or not.
        let through = talk.said[3].id;
        talk.summary("farther", through);
        let expected = [all[4], all[6]];
        assert_eq!(ids(&view(talk.said.clone()))[1..], expected);
        let again = seen.into_iter().chain(talk.said.last().cloned()).collect();
        assert_eq!(ids(&view(again))[1..], expected);
    }

    #[test]
    fn a_summary_of_something_unknown_stands_for_all_before_it() {
        let mut talk = long_talk();
        talk.summary("so far", MessageId::new());
        talk.user("three");
        assert_eq!(ids(&view(talk.said.clone())), ids(&talk.said[5..]));
    }

    #[test]
    fn results_without_their_calls_are_not_seen() {
        let mut talk = long_talk();
        let call = talk.said[2].id;
        talk.summary("so far", call);
        let seen = view(talk.said.clone());
        assert_eq!(ids(&seen), [talk.said[5].id, talk.said[4].id]);
    }
}
