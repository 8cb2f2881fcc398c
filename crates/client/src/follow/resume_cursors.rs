//! The cursors from which a follower resumes, in every session.

use std::collections::BTreeMap;

use remuda_domain::{Cursor, SessionId};
use remuda_proto::v1;

use super::{FollowOptions, Target};

/// The last cursors handed out.
#[derive(Debug)]
pub(super) struct ResumeCursors {
    root: Root,
    cursor: Cursor,
    /// By session id. Bounded, as the server includes a limited number of descendants.
    descendants: BTreeMap<String, Cursor>,
}

/// How events of the target are distinguished from those of descendant sessions.
#[derive(Debug)]
enum Root {
    /// There are no descendants.
    Alone,
    Run(String),
    Session(String),
    /// A session of which only the name is known.
    Named(String),
}

impl ResumeCursors {
    pub(super) fn new(target: &Target, options: FollowOptions) -> Self {
        let root = match target {
            _ if !options.tree => Root::Alone,
            Target::Run(run) => Root::Run(run.clone()),
            Target::Session(session) if session.parse::<SessionId>().is_ok() => {
                Root::Session(session.clone())
            }
            Target::Session(name) => Root::Named(name.clone()),
        };
        Self { root, cursor: options.after_cursor, descendants: BTreeMap::new() }
    }

    /// The name of the session whose id has to be looked up.
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

    pub(super) fn descendants(&self) -> &BTreeMap<String, Cursor> {
        &self.descendants
    }

    /// Records an event. `false` if it was handed out before.
    pub(super) fn record(&mut self, event: &v1::Event) -> bool {
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
        match self.descendants.get_mut(&event.session_id) {
            Some(cursor) if event.cursor <= *cursor => false,
            Some(cursor) => {
                *cursor = event.cursor;
                true
            }
            None => {
                self.descendants.insert(event.session_id.clone(), event.cursor);
                true
            }
        }
    }
}
