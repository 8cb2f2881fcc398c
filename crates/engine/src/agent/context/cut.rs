//! Decides which part of the transcript is summarized.

use remuda_domain::{
    MessageId,
    message::{Part, text_of},
};

use super::{excerpt::within_tokens, groups::groups, window::TokenEstimator};
use crate::agent::transcript::Outgoing;

/// Newest groups that are kept, if they are not too long.
const KEEP_GROUPS: usize = 3;
/// The kept groups are too long if they leave less than this share of the window free.
const MAX_KEPT_SHARE: f64 = 0.5;
/// Estimated tokens around a summary and the carried user message.
const OVERHEAD: u64 = 96;
/// Minimum length of a summary, in estimated tokens.
const MIN_SUMMARY: u64 = 64;
/// Maximum tokens of the carried user message.
const MAX_CARRIED: u64 = 1000;

/// The part of the transcript that a summary replaces.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::agent) struct Cut {
    /// The last message that is summarized.
    pub(in crate::agent) through: MessageId,
    /// The messages to summarize, including an earlier summary.
    pub(in crate::agent) to_summarize: Vec<Outgoing>,
    /// The user's last message, if it is among them.
    pub(super) carried_message: Option<String>,
    /// Maximum length of the summary, in estimated tokens.
    pub(super) summary_limit: u64,
}

/// Decides what has to be summarized before these messages are sent. `None` if they fit, or if nothing can be
/// summarized. With `forced` they do not fit, whatever the estimate was.
pub(in crate::agent) fn cut(outgoing: &[Outgoing], estimator: &TokenEstimator, forced: bool) -> Option<Cut> {
    let each = estimator.per_message(outgoing);
    let total: u64 = each.iter().sum();
    let threshold = estimator.share_of_window(estimator.settings.summarize_at);
    if total <= threshold && !forced {
        return None;
    }
    let limit = if forced { threshold.min(total / 2) } else { threshold };
    // A summary of only a summary gains nothing.
    let starts: Vec<usize> = groups(outgoing).into_iter().map(|group| group.start).collect();
    let starts: Vec<usize> =
        starts.into_iter().filter(|start| !outgoing[*start].is_summary()).skip(1).collect();
    let summary_limit = estimator.to_estimated_tokens(estimator.window.summary()).max(MIN_SUMMARY);
    let carried_limit =
        estimator.to_estimated_tokens(MAX_CARRIED).min(estimator.share_of_window(1.0) / 8).max(MIN_SUMMARY);
    let fits = |start: usize, limit: u64| {
        each[start..].iter().sum::<u64>().saturating_add(summary_limit + carried_limit + OVERHEAD) <= limit
    };
    let newest = *starts.last()?;
    let kept_limit = limit.min(estimator.share_of_window(MAX_KEPT_SHARE));
    let kept =
        starts.iter().rev().take(KEEP_GROUPS).copied().take_while(|start| fits(*start, kept_limit)).last();
    let mut start = kept.unwrap_or(newest);
    // Messages that are not in the transcript are not the user's.
    let user_message =
        outgoing.iter().rposition(|message| message.is_from_user() && message.origin.id().is_some());
    if let Some(user_message) = user_message
        && starts.contains(&user_message)
        && fits(user_message, limit)
    {
        start = start.min(user_message);
    }
    let to_summarize = &outgoing[..start];
    let through = to_summarize.iter().rev().filter(|message| !message.is_summary());
    let through = through.filter_map(|message| message.origin.id()).next()?;
    let carried_message = match user_message {
        Some(user_message) if user_message >= start => None,
        Some(user_message) => Some(text_of(&outgoing[user_message].parts)),
        None => outgoing.iter().find(|message| message.is_summary()).and_then(carried_message),
    };
    let carried_message =
        carried_message.filter(|text| !text.is_empty()).map(|text| within_tokens(&text, carried_limit));
    Some(Cut { through, to_summarize: to_summarize.to_vec(), carried_message, summary_limit })
}

/// The user message that is carried along with a summary.
fn carried_message(summary: &Outgoing) -> Option<String> {
    summary.parts.iter().find_map(|part| match part {
        Part::Text { text } => Some(super::summary::unwrap_user_message(text).to_owned()),
        _ => None,
    })
}

#[cfg(test)]
mod unit {
    use remuda_domain::{message::Role, tool::CallStatus};
    use serde_json::json;

    use super::*;
    use crate::agent::context::tests::{Conversation, conversation, estimator};

    /// Each letter is a message, or a response with a call and its result: `u` and `c` have about 500 tokens, `U` and
    /// `C` 5000.
    fn shaped(shape: &str) -> Conversation {
        let mut conversation = conversation();
        for letter in shape.chars() {
            let long = "x".repeat(if letter.is_uppercase() { 20_000 } else { 2000 });
            match letter {
                'u' | 'U' => conversation.user(&long),
                'a' => conversation.assistant(vec![Part::text(long)]),
                _ => conversation.call("Read", json!({}), CallStatus::Completed, json!(long)),
            };
        }
        conversation
    }

    #[test]
    fn newest_whole_groups_are_kept() {
        // Conversation, window size, number of summarized messages.
        for (shape, usable, summed) in [
            // Everything fits.
            ("ucccc", 20_000, None),
            // The newest three groups are kept.
            ("ucccccccccccc", 8_000, Some(19)),
            // Only one of them fits, because part of the window has to stay free.
            ("ucccccccccc", 5_500, Some(19)),
            // The newest user message and what follows fit: all of it is kept.
            ("uCcccuccccccc", 10_000, Some(9)),
            // They do not fit.
            ("uCcccuccccccccccccccccc", 10_000, Some(38)),
            // The user message is the last one.
            ("ucccccccu", 5_000, Some(15)),
            // The newest groups are too long: fewer are kept.
            ("ucccCCc", 10_000, Some(11)),
            ("ucccCCC", 10_000, Some(11)),
            // The newest group alone is too long.
            ("uccC", 5_000, Some(5)),
            // There is nothing else to summarize.
            ("C", 2_000, None),
            ("U", 2_000, None),
            ("UC", 5_000, Some(1)),
        ] {
            let outgoing = shaped(shape).outgoing();
            let found = cut(&outgoing, &estimator(usable), false).map(|cut| cut.to_summarize.len());
            assert_eq!(found, summed, "{shape} {usable}");
        }
    }

    #[test]
    fn last_user_message_is_carried_along() {
        let mut conversation = conversation();
        conversation.user("old").user("build a boat");
        for _ in 0..10 {
            conversation.call("Read", json!({}), CallStatus::Completed, json!("x".repeat(2000)));
        }
        let estimator = estimator(5000);
        let first = cut(&conversation.outgoing(), &estimator, false).unwrap();
        assert_eq!(first.carried_message.as_deref(), Some("build a boat"));
        conversation.apply(&first, "so far");
        assert!(!conversation.transcript.iter().any(|message| message.role == Role::User));
        assert_eq!(cut(&conversation.outgoing(), &estimator, false), None);
        for _ in 0..10 {
            conversation.call("Read", json!({}), CallStatus::Completed, json!("x".repeat(2000)));
        }
        let second = cut(&conversation.outgoing(), &estimator, false).unwrap();
        assert_eq!(
            second.carried_message.as_deref(),
            Some("build a boat"),
            "carried from summary to summary"
        );
        assert!(second.to_summarize[0].is_summary());
        conversation.apply(&second, "farther").user("thanks");
        let third = cut(&conversation.outgoing(), &estimator, true).unwrap();
        assert_eq!(third.carried_message, None, "a newer user message is kept");
    }

    #[test]
    fn forced_cut_ignores_the_estimate() {
        let outgoing = shaped("ucccccc").outgoing();
        let estimator = estimator(100_000);
        assert_eq!(cut(&outgoing, &estimator, false), None);
        let forced = cut(&outgoing, &estimator, true).unwrap();
        assert_eq!(forced.through, outgoing[10].origin.id().unwrap(), "less than half is kept");
        assert_eq!(cut(&shaped("C").outgoing(), &estimator, true), None);
    }

    #[test]
    fn cut_never_ends_at_a_message_outside_the_transcript() {
        let mut conversation = shaped("ucccccc");
        let mut outgoing = conversation.outgoing();
        outgoing.push(Outgoing::inserted(Role::User, vec![Part::text("conclude")]));
        let found = cut(&outgoing, &estimator(2000), false).unwrap();
        assert_eq!(found.through, outgoing[10].origin.id().unwrap());
        // The results of the newest group stay with their calls, and with the added message.
        assert_eq!(outgoing.len() - found.to_summarize.len(), 3);
        conversation.apply(&found, "so far");
        assert_eq!(
            cut(&conversation.outgoing(), &estimator(2000), false),
            None,
            "a summary alone is not summed up"
        );
    }
}
