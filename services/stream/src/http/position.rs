//! A reader's position in a stream, encoded as an event id.
//!
//! `12` in a session's stream. In a stream with descendant sessions, `12;ses_…=4;ses_…=9`: a client that sends back
//! the last id it received resumes in all of them.

use std::{collections::BTreeMap, fmt};

use remuda_domain::{Code, Cursor, Error, SessionId, error::Result};

/// More would not fit into the header in which clients send the id back.
const MAX_DESCENDANTS: usize = 200;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EventPosition {
    pub(super) cursor: Cursor,
    /// Positions in the descendant sessions.
    pub(super) descendants: BTreeMap<SessionId, Cursor>,
}

impl EventPosition {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split(';');
        let cursor = parts.next()?.parse().ok()?;
        let read = |part: &str| {
            let (session, cursor) = part.split_once('=')?;
            Some((session.parse().ok()?, cursor.parse().ok()?))
        };
        let descendants = parts.map(read).collect::<Option<BTreeMap<_, _>>>()?;
        (descendants.len() <= MAX_DESCENDANTS).then_some(Self { cursor, descendants })
    }

    /// Moves on to an event of a session.
    pub(super) fn advance(&mut self, root: SessionId, session: SessionId, cursor: Cursor) -> Result<()> {
        if session == root {
            self.cursor = cursor;
            return Ok(());
        }
        self.descendants.insert(session, cursor);
        if self.descendants.len() > MAX_DESCENDANTS {
            let message = format!(
                "more than {MAX_DESCENDANTS} descendant sessions: follow them over gRPC, or one by one"
            );
            return Err(Error::new(Code::TooLarge, message).at("tree"));
        }
        Ok(())
    }
}

impl fmt::Display for EventPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.cursor)?;
        self.descendants.iter().try_for_each(|(session, cursor)| write!(f, ";{session}={cursor}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_parses_back_from_its_text() {
        let (root, descendants, other) = (SessionId::new(), SessionId::new(), SessionId::new());
        let mut position = EventPosition { cursor: 3, ..EventPosition::default() };
        assert_eq!(position.to_string(), "3");
        for (session, cursor) in [(descendants, 1), (root, 4), (other, 1), (descendants, 2)] {
            position.advance(root, session, cursor).unwrap();
        }
        assert_eq!(
            position,
            EventPosition { cursor: 4, descendants: BTreeMap::from([(descendants, 2), (other, 1)]) }
        );
        assert_eq!(EventPosition::parse(&position.to_string()), Some(position));
        for bad in [
            "",
            "x",
            "1;",
            "1;x=1",
            &format!("1;{descendants}"),
            &format!("1;{descendants}=x"),
            &format!("{descendants}=1"),
        ] {
            assert_eq!(EventPosition::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn largest_id_fits_into_a_header() {
        let (root, mut position) = (SessionId::new(), EventPosition::default());
        for _ in 0..MAX_DESCENDANTS {
            position.advance(root, SessionId::new(), 1_000_000).unwrap();
        }
        assert!(position.to_string().len() < 12 * 1024);
        assert_eq!(position.advance(root, SessionId::new(), 1).unwrap_err().field(), Some("tree"));
    }
}
