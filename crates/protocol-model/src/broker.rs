//! The broker: one token per session; a second one is rejected as a duplicate.

use crate::state::{SessionIndex, State, Token};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Published {
    Stored,
    AlreadyScheduled,
}

pub(crate) fn publish(state: &mut State, session: SessionIndex) -> Published {
    let token = &mut state.session_mut(session).token;
    if *token == Token::Absent {
        *token = Token::Present;
        return Published::Stored;
    }
    Published::AlreadyScheduled
}

/// Removes the session's token, if any. Later acks of that token have no effect.
pub(crate) fn remove(state: &mut State, session: SessionIndex) {
    let stored = state.session_mut(session);
    stored.token = Token::Absent;
    stored.late_ack = false;
    for incarnation in state.incarnations_mut() {
        for task in incarnation.tasks.iter_mut().filter(|task| task.session == session) {
            task.token_is_current = false;
        }
    }
}
