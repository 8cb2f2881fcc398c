//! Where a reader stands, as the id of an event.
//!
//! `12` in a session's stream. In one that also tells of the sessions below, `12;ses_…=4;ses_…=9`: a client that sends back the last
//! id that it has got goes on in all of them.

use std::{collections::BTreeMap, fmt};

use remuda_domain::{Code, Cursor, Error, SessionId, error::Result};

/// More would be too long for a header, which is where an id comes back.
const MAX_BELOW: usize = 200;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) cursor: Cursor,
    /// In the sessions below.
    pub(super) below: BTreeMap<SessionId, Cursor>,
}

impl Place {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split(';');
        let cursor = parts.next()?.parse().ok()?;
        let read = |part: &str| {
            let (session, cursor) = part.split_once('=')?;
            Some((session.parse().ok()?, cursor.parse().ok()?))
        };
        let below = parts.map(read).collect::<Option<BTreeMap<_, _>>>()?;
        (below.len() <= MAX_BELOW).then_some(Self { cursor, below })
    }

    /// Moves on to an event of a session.
    pub(super) fn pass(&mut self, root: SessionId, session: SessionId, cursor: Cursor) -> Result<()> {
        if session == root {
            self.cursor = cursor;
            return Ok(());
        }
        self.below.insert(session, cursor);
        if self.below.len() > MAX_BELOW {
            let message =
                format!("more than {MAX_BELOW} sessions are below: follow them over gRPC, or one by one");
            return Err(Error::new(Code::TooLarge, message).at("tree"));
        }
        Ok(())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.cursor)?;
        self.below.iter().try_for_each(|(session, cursor)| write!(f, ";{session}={cursor}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_was_written() {
        let (root, below, other) = (SessionId::new(), SessionId::new(), SessionId::new());
        let mut place = Place { cursor: 3, ..Place::default() };
        assert_eq!(place.to_string(), "3");
        for (session, cursor) in [(below, 1), (root, 4), (other, 1), (below, 2)] {
            place.pass(root, session, cursor).unwrap();
        }
        assert_eq!(place, Place { cursor: 4, below: BTreeMap::from([(below, 2), (other, 1)]) });
        assert_eq!(Place::parse(&place.to_string()), Some(place));
        for bad in
            ["", "x", "1;", "1;x=1", &format!("1;{below}"), &format!("1;{below}=x"), &format!("{below}=1")]
        {
            assert_eq!(Place::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_id_fits_into_a_header() {
        let (root, mut place) = (SessionId::new(), Place::default());
        for _ in 0..MAX_BELOW {
            place.pass(root, SessionId::new(), 1_000_000).unwrap();
        }
        assert!(place.to_string().len() < 12 * 1024);
        assert_eq!(place.pass(root, SessionId::new(), 1).unwrap_err().field(), Some("tree"));
    }
}
