//! Where a follower stands, in every session.

use std::collections::BTreeMap;

use remuda_domain::{Cursor, SessionId};
use remuda_proto::v1;

use super::{Following, Target};

/// The last cursors given out.
#[derive(Debug)]
pub(super) struct Places {
    root: Root,
    cursor: Cursor,
    /// By session id. As long as the server tells of sessions below, which it does of a limited number.
    below: BTreeMap<String, Cursor>,
}

/// How the events of the target itself are told from those of sessions below.
#[derive(Debug)]
enum Root {
    /// There are no others.
    Alone,
    Run(String),
    Session(String),
    /// A session of which only the name is known.
    Named(String),
}

impl Places {
    pub(super) fn new(target: &Target, following: Following) -> Self {
        let root = match target {
            _ if !following.tree => Root::Alone,
            Target::Run(run) => Root::Run(run.clone()),
            Target::Session(session) if session.parse::<SessionId>().is_ok() => {
                Root::Session(session.clone())
            }
            Target::Session(name) => Root::Named(name.clone()),
        };
        Self { root, cursor: following.after_cursor, below: BTreeMap::new() }
    }

    /// The name of the session whose id has to be asked for.
    pub(super) fn unknown_root(&self) -> Option<&str> {
        match &self.root {
            Root::Named(name) => Some(name),
            Root::Alone | Root::Run(_) | Root::Session(_) => None,
        }
    }

    pub(super) fn root_is(&mut self, session: String) {
        self.root = Root::Session(session);
    }

    pub(super) fn root_cursor(&self) -> Cursor {
        self.cursor
    }

    pub(super) fn below(&self) -> &BTreeMap<String, Cursor> {
        &self.below
    }

    /// Notes an event. False if it was given out before.
    pub(super) fn pass(&mut self, event: &v1::Event) -> bool {
        let is_root = match &self.root {
            Root::Alone | Root::Named(_) => true,
            Root::Run(run) => event.run_id == *run,
            Root::Session(session) => event.session_id == *session,
        };
        if is_root {
            let is_new = event.cursor > self.cursor;
            self.cursor = self.cursor.max(event.cursor);
            return is_new;
        }
        match self.below.get_mut(&event.session_id) {
            Some(cursor) if event.cursor <= *cursor => false,
            Some(cursor) => {
                *cursor = event.cursor;
                true
            }
            None => {
                self.below.insert(event.session_id.clone(), event.cursor);
                true
            }
        }
    }
}
