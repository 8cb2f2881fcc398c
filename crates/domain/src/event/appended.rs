//! Events that were appended to a session.

use std::{ops::Deref, sync::Arc};

use super::Event;

/// Events of one session in order, together with the JSON they are stored as. Publishing reuses that JSON.
#[derive(Clone, Debug, Default)]
pub struct Appended {
    events: Vec<Event>,
    json: Option<Arc<str>>,
}

impl Appended {
    /// Events that are stored together as this JSON array.
    #[must_use]
    pub fn stored(events: Vec<Event>, json: Arc<str>) -> Self {
        Self { events, json: Some(json) }
    }

    /// The JSON array of the events, if they were stored together.
    #[must_use]
    pub fn json(&self) -> Option<&Arc<str>> {
        self.json.as_ref()
    }

    /// Adds events that were appended after these.
    pub fn extend(&mut self, later: Self) {
        if self.events.is_empty() {
            *self = later;
        } else if !later.events.is_empty() {
            self.events.extend(later.events);
            self.json = None;
        }
    }
}

impl Deref for Appended {
    type Target = [Event];

    fn deref(&self) -> &[Event] {
        &self.events
    }
}

impl From<Vec<Event>> for Appended {
    fn from(events: Vec<Event>) -> Self {
        Self { events, json: None }
    }
}

impl From<Event> for Appended {
    fn from(event: Event) -> Self {
        vec![event].into()
    }
}

impl IntoIterator for Appended {
    type Item = Event;
    type IntoIter = std::vec::IntoIter<Event>;

    fn into_iter(self) -> Self::IntoIter {
        self.events.into_iter()
    }
}

impl<'a> IntoIterator for &'a Appended {
    type Item = &'a Event;
    type IntoIter = std::slice::Iter<'a, Event>;

    fn into_iter(self) -> Self::IntoIter {
        self.events.iter()
    }
}

#[cfg(test)]
mod tests {
    use chrono::Utc;

    use super::*;
    use crate::{EventBody, EventId, SessionId};

    fn stored(cursor: i64) -> Appended {
        let body = EventBody::SessionUpdated;
        let event =
            Event { id: EventId::new(), cursor, session: SessionId::new(), run: None, at: Utc::now(), body };
        let json = serde_json::to_string(&[&event]).unwrap();
        Appended::stored(vec![event], json.into())
    }

    /// JSON of only some of the events would be published for all of them.
    #[test]
    fn json_covers_all_events_or_is_none() {
        let (first, second) = (stored(1), stored(2));
        let mut all = Appended::default();
        all.extend(first.clone());
        assert_eq!(all.json(), first.json());
        all.extend(Appended::default());
        assert_eq!(all.json(), first.json());
        all.extend(second);
        assert_eq!((all.len(), all.json()), (2, None));
        assert_eq!(Appended::from(first[0].clone()).json(), None);
    }
}
