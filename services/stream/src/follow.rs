//! Following a session's events.
//!
//! Live events are only a hint that there is more: they may come twice, out of order, or not at all. A [`Follower`] takes its
//! place in the session's [hub](crate::hub) first, replays from the store up to there, and then takes what comes next. One that is
//! too slow loses its place, replays what it missed, and takes a place again.

use std::collections::VecDeque;

use remuda_domain::{Code, Cursor, Error, EventBody, SessionId, TenantId, error::Result, event::DeltaOf};

use crate::{
    hub::{History, Hub, Item, Membership, Read, Seat},
    shared::{SharedDelta, SharedEvent},
};

/// One reader's way through a session.
pub(crate) struct Follower {
    hub: Hub,
    tenant: TenantId,
    session: SessionId,
    membership: Membership,
    seat: Option<Seat>,
    /// The last cursor handed out.
    cursor: Cursor,
    /// The store has events up to here: they are read before anything is taken from the hub.
    goal: Cursor,
    /// What is being read.
    read: Option<Read>,
    /// The last read gave nothing.
    stale: bool,
    /// What was taken from the hub and not handed out.
    taken: VecDeque<Item>,
    /// That everything was handed out is still to be said.
    unsaid: bool,
    deltas: bool,
    /// Messages whose end was read, of which pieces may still come from the hub.
    overtaken: Vec<DeltaOf>,
}

/// What following gives.
#[derive(Debug, PartialEq)]
pub(crate) enum Followed {
    /// The next events, contiguous with those before.
    Events(Vec<SharedEvent>),
    Deltas(Vec<SharedDelta>),
    /// What comes next is no longer kept. Events go on from `first`.
    Trimmed(Gap),
    /// Everything that is in the store has been handed out.
    CaughtUp,
}

/// History that is no longer kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// The oldest event that is kept; one more than `last` when none is.
    pub(crate) first: Cursor,
    /// The newest event.
    pub(crate) last: Cursor,
}

impl Follower {
    /// Starts after `after`. Fails with `session_not_found`, and with `cursor_out_of_range` for a cursor from the future.
    pub(crate) async fn start(
        hub: Hub,
        tenant: TenantId,
        session: SessionId,
        after: Cursor,
        deltas: bool,
    ) -> Result<Self> {
        if after < 0 {
            return Err(Error::invalid("after_cursor", "expected 0 or more"));
        }
        let membership = hub.join(tenant, session, deltas);
        let seat = membership.sit().await?;
        if after > seat.base {
            // It may be known elsewhere before it is heard here.
            let end = hub.end_of(tenant, session).await?;
            let last = end.map_or(0, |end| end.last_cursor);
            if after > last {
                let message = format!("the newest event has cursor {last}");
                return Err(Error::new(Code::CursorOutOfRange, message).at("after_cursor"));
            }
            end.into_iter().for_each(|end| membership.hint(end));
        }
        Ok(Self {
            hub,
            tenant,
            session,
            membership,
            goal: seat.base,
            seat: Some(seat),
            cursor: after,
            read: None,
            stale: false,
            taken: VecDeque::new(),
            unsaid: true,
            deltas,
            overtaken: Vec::new(),
        })
    }

    /// The next events or pieces, as soon as there are some. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Followed> {
        loop {
            if self.cursor < self.goal {
                if let Some(followed) = self.replay().await? {
                    return Ok(followed);
                }
                continue;
            }
            let Some(seat) = self.seat.as_mut() else {
                let seat = self.membership.sit().await?;
                self.goal = self.goal.max(seat.base);
                self.seat = Some(seat);
                continue;
            };
            if std::mem::take(&mut self.unsaid) {
                return Ok(Followed::CaughtUp);
            }
            let so_far = std::mem::take(&mut seat.so_far);
            if !so_far.is_empty() {
                self.taken.push_front(Item::Deltas(so_far));
            }
            match self.taken.pop_front() {
                Some(Item::Events(events)) => {
                    if let Some(next) = self.contiguous(&events) {
                        return Ok(Followed::Events(next));
                    }
                }
                Some(Item::Deltas(deltas)) => {
                    if let Some(wanted) = self.wanted(&deltas) {
                        return Ok(Followed::Deltas(wanted));
                    }
                }
                None => match seat.next().await? {
                    Some(items) => self.taken.extend(items),
                    // It was too slow: what it missed is in the store.
                    None => {
                        self.hub.meters().too_slow();
                        self.seat = None;
                        self.unsaid = true;
                    }
                },
            }
        }
    }

    /// Whether it only waits for what happens next.
    pub(crate) fn is_live(&self) -> bool {
        let nothing_said = |seat: &Seat| seat.so_far.is_empty();
        let is_seated = self.seat.as_ref().is_some_and(nothing_said);
        is_seated && self.cursor >= self.goal && self.taken.is_empty() && !self.unsaid
    }

    pub(crate) fn session(&self) -> SessionId {
        self.session
    }

    /// The last cursor handed out.
    pub(crate) fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Where the session's stream ends now. What was not handed out of it comes next.
    pub(crate) async fn end(&mut self) -> Result<Cursor> {
        let end = self.hub.end_of(self.tenant, self.session).await?;
        let last = end.map_or(self.cursor, |end| end.last_cursor);
        self.goal = self.goal.max(last);
        Ok(last)
    }

    /// Whether the store has events that were not handed out. If so, they come next.
    pub(crate) async fn has_more(&mut self) -> Result<bool> {
        Ok(self.end().await? > self.cursor)
    }

    /// Goes back to a cursor that was handed out before: what came after it comes again.
    pub(crate) fn rewind(&mut self, cursor: Cursor) {
        if cursor < self.cursor {
            self.goal = self.goal.max(self.cursor);
            self.cursor = cursor;
            self.read = None;
        }
    }

    /// Reads on. Nothing if that changed only where it is to go.
    async fn replay(&mut self) -> Result<Option<Followed>> {
        let (hub, membership, cursor) = (&self.hub, &self.membership, self.cursor);
        let read = self.read.get_or_insert_with(|| hub.read(membership, cursor));
        let history = read.clone().await;
        self.read = None;
        let history = history.map_err(|error| error.duplicate())?;
        let History { events, last_cursor } = &*history;
        let first = events.first().map_or(last_cursor + 1, |event| event.cursor);
        if first > self.cursor + 1 {
            self.cursor = first - 1;
            self.unsaid = true;
            return Ok(Some(Followed::Trimmed(Gap { first, last: *last_cursor })));
        }
        let Some(last) = events.last() else {
            // Others may have begun this read before it happened what is looked for; no second one can.
            if std::mem::replace(&mut self.stale, true) {
                self.goal = self.cursor;
            }
            return Ok(None);
        };
        self.stale = false;
        self.cursor = last.cursor;
        self.unsaid = true;
        self.note_overtaken(events);
        Ok(Some(Followed::Events(events.clone())))
    }

    /// The part of what the hub tells that comes next, if it starts right after what was handed out.
    fn contiguous(&mut self, events: &[SharedEvent]) -> Option<Vec<SharedEvent>> {
        let first_new = events.iter().position(|event| event.cursor > self.cursor)?;
        let new = &events[first_new..];
        let (first, last) = (new.first()?.cursor, new.last()?.cursor);
        // Here the hub tells of nothing any more that was read before.
        self.overtaken.clear();
        if first != self.cursor + 1 {
            self.goal = last;
            return None;
        }
        self.cursor = last;
        Some(new.to_vec())
    }

    fn wanted(&self, deltas: &[SharedDelta]) -> Option<Vec<SharedDelta>> {
        if !self.deltas {
            return None;
        }
        let wanted = deltas.iter().filter(|delta| !self.overtaken.contains(&delta.of));
        let wanted: Vec<SharedDelta> = wanted.cloned().collect();
        (!wanted.is_empty()).then_some(wanted)
    }

    /// Notes which messages are complete whose pieces the hub may still tell of.
    fn note_overtaken(&mut self, events: &[SharedEvent]) {
        let base = self.seat.as_ref().map_or(Cursor::MAX, |seat| seat.base);
        if self.deltas && self.cursor > base {
            let ends = events.iter().filter(|event| event.cursor > base);
            self.overtaken.extend(ends.filter_map(|event| match &event.body {
                EventBody::MessageCompleted { message, .. } => Some(DeltaOf::Message(*message)),
                EventBody::ToolCompleted(outcome) | EventBody::ToolFailed(outcome) => {
                    Some(DeltaOf::Call(outcome.id))
                }
                _ => None,
            }));
        }
    }
}
