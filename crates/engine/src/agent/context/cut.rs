//! What is summed up, and what stays.

use remuda_domain::{
    MessageId,
    message::{Part, text_of},
};

use super::{excerpt::within, groups::groups, room::Gauge};
use crate::agent::transcript::Outgoing;

/// Groups that stay, if they are not too long.
const KEEP_GROUPS: usize = 3;
/// They are too long if they leave less than this share of the room for what comes.
const ROOM_TO_WORK: f64 = 0.5;
/// What surrounds a summary and what goes along with it, in estimated tokens.
const AROUND: u64 = 96;
/// A summary may always have as much, in estimated tokens.
const LEAST: u64 = 64;
/// What goes along of the user's words, in tokens.
const CARRIED: u64 = 1000;

/// What is to be replaced by its summary.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::agent) struct Cut {
    /// The last message that is summed up.
    pub(in crate::agent) through: MessageId,
    /// What is summed up, with the summary before it.
    pub(in crate::agent) to_sum_up: Vec<Outgoing>,
    /// What the user said last, if that is summed up too.
    pub(super) carried: Option<String>,
    /// How long the summary may be, in estimated tokens.
    pub(super) allowed: u64,
}

/// Decides what has to be summed up before these messages are sent; `None` if they fit, or if there is nothing that could be. With
/// `forced` they do not fit, whatever was estimated.
pub(in crate::agent) fn cut(outgoing: &[Outgoing], gauge: &Gauge, forced: bool) -> Option<Cut> {
    let each = gauge.each(outgoing);
    let total: u64 = each.iter().sum();
    let threshold = gauge.share(gauge.settings.summarize_at);
    if total <= threshold && !forced {
        return None;
    }
    let limit = if forced { threshold.min(total / 2) } else { threshold };
    // A summary of nothing but a summary would gain nothing.
    let starts: Vec<usize> = groups(outgoing).into_iter().map(|group| group.start).collect();
    let starts: Vec<usize> =
        starts.into_iter().filter(|start| !outgoing[*start].is_summary()).skip(1).collect();
    let allowed = gauge.estimated(gauge.room.summary()).max(LEAST);
    let words = gauge.estimated(CARRIED).min(gauge.share(1.0) / 8).max(LEAST);
    let fits = |start: usize, limit: u64| {
        each[start..].iter().sum::<u64>().saturating_add(allowed + words + AROUND) <= limit
    };
    let newest = *starts.last()?;
    let short = limit.min(gauge.share(ROOM_TO_WORK));
    let some = starts.iter().rev().take(KEEP_GROUPS).copied().take_while(|start| fits(*start, short)).last();
    let mut start = some.unwrap_or(newest);
    // What is not in the transcript was not said by the user.
    let asked = outgoing.iter().rposition(|message| message.is_from_user() && message.form.id().is_some());
    if let Some(asked) = asked
        && starts.contains(&asked)
        && fits(asked, limit)
    {
        start = start.min(asked);
    }
    let to_sum_up = &outgoing[..start];
    let through = to_sum_up.iter().rev().filter(|message| !message.is_summary());
    let through = through.filter_map(|message| message.form.id()).next()?;
    let carried = match asked {
        Some(asked) if asked >= start => None,
        Some(asked) => Some(text_of(&outgoing[asked].parts)),
        None => outgoing.iter().find(|message| message.is_summary()).and_then(carried),
    };
    let carried = carried.filter(|text| !text.is_empty()).map(|text| within(&text, words));
    Some(Cut { through, to_sum_up: to_sum_up.to_vec(), carried, allowed })
}

/// The user's words that go along with a summary.
fn carried(summary: &Outgoing) -> Option<String> {
    summary.parts.iter().find_map(|part| match part {
        Part::Text { text } => Some(super::summary::words(text).to_owned()),
        _ => None,
    })
}

#[cfg(test)]
mod unit {
    use remuda_domain::{message::Role, tool::CallStatus};
    use serde_json::json;

    use super::*;
    use crate::agent::context::tests::{Talk, gauge, talk};

    /// Each letter is a message, or an answer with a call and its result: `u` and `c` are of about 500 tokens, `U` and `C` of 5000.
    fn said(shape: &str) -> Talk {
        let mut talk = talk();
        for letter in shape.chars() {
            let long = "x".repeat(if letter.is_uppercase() { 20_000 } else { 2000 });
            match letter {
                'u' | 'U' => talk.user(&long),
                'a' => talk.assistant(vec![Part::text(long)]),
                _ => talk.call("Read", json!({}), CallStatus::Completed, json!(long)),
            };
        }
        talk
    }

    #[test]
    fn groups_stay_whole_and_the_newest_stay() {
        // Talk, size of the room, how many messages are summed up.
        for (shape, usable, summed) in [
            // It fits.
            ("ucccc", 20_000, None),
            // The newest three groups stay.
            ("ucccccccccccc", 8_000, Some(19)),
            // There is room for one of them only, if something is to be done in what is left.
            ("ucccccccccc", 5_500, Some(19)),
            // The newest message of the user, and what follows, fits: all of it stays.
            ("uCcccuccccccc", 10_000, Some(9)),
            // It does not.
            ("uCcccuccccccccccccccccc", 10_000, Some(38)),
            // It is the last one.
            ("ucccccccu", 5_000, Some(15)),
            // The newest are too long: fewer stay.
            ("ucccCCc", 10_000, Some(11)),
            ("ucccCCC", 10_000, Some(11)),
            // The newest alone is too long.
            ("uccC", 5_000, Some(5)),
            // Nothing else is there.
            ("C", 2_000, None),
            ("U", 2_000, None),
            ("UC", 5_000, Some(1)),
        ] {
            let outgoing = said(shape).outgoing();
            let found = cut(&outgoing, &gauge(usable), false).map(|cut| cut.to_sum_up.len());
            assert_eq!(found, summed, "{shape} {usable}");
        }
    }

    #[test]
    fn the_users_words_go_along() {
        let mut talk = talk();
        talk.user("old").user("build a boat");
        for _ in 0..10 {
            talk.call("Read", json!({}), CallStatus::Completed, json!("x".repeat(2000)));
        }
        let gauge = gauge(5000);
        let first = cut(&talk.outgoing(), &gauge, false).unwrap();
        assert_eq!(first.carried.as_deref(), Some("build a boat"));
        talk.apply(&first, "so far");
        assert!(!talk.said.iter().any(|message| message.role == Role::User));
        assert_eq!(cut(&talk.outgoing(), &gauge, false), None);
        for _ in 0..10 {
            talk.call("Read", json!({}), CallStatus::Completed, json!("x".repeat(2000)));
        }
        let second = cut(&talk.outgoing(), &gauge, false).unwrap();
        assert_eq!(second.carried.as_deref(), Some("build a boat"), "again and again");
        assert!(second.to_sum_up[0].is_summary());
        talk.apply(&second, "farther").user("thanks");
        let third = cut(&talk.outgoing(), &gauge, true).unwrap();
        assert_eq!(third.carried, None, "there is a newer one, which stays");
    }

    #[test]
    fn a_provider_that_finds_it_too_long_is_believed() {
        let outgoing = said("ucccccc").outgoing();
        let gauge = gauge(100_000);
        assert_eq!(cut(&outgoing, &gauge, false), None);
        let forced = cut(&outgoing, &gauge, true).unwrap();
        assert_eq!(forced.through, outgoing[10].form.id().unwrap(), "less than half of it stays");
        assert_eq!(cut(&said("C").outgoing(), &gauge, true), None);
    }

    #[test]
    fn what_is_not_in_the_transcript_is_no_place_to_cut() {
        let mut talk = said("ucccccc");
        let mut outgoing = talk.outgoing();
        outgoing.push(Outgoing::given(Role::User, vec![Part::text("conclude")]));
        let found = cut(&outgoing, &gauge(2000), false).unwrap();
        assert_eq!(found.through, outgoing[10].form.id().unwrap());
        // The results of the newest group stay with their calls, and with what was added.
        assert_eq!(outgoing.len() - found.to_sum_up.len(), 3);
        talk.apply(&found, "so far");
        assert_eq!(cut(&talk.outgoing(), &gauge(2000), false), None, "a summary alone is not summed up");
    }
}
