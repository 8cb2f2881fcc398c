//! Follows the events of one session.
//!
//! Live events are only a hint that there is more: they may come twice, out of order, or not at all. A [`Follower`]
//! first attaches to the session's [hub](crate::hub) channel, replays from the store up to there, and then takes live
//! events. A follower that is too slow is detached, replays what it missed, and attaches again.

use std::collections::VecDeque;

use remuda_domain::{Code, Cursor, Error, EventBody, SessionId, TenantId, error::Result, event::DeltaOf};

use crate::{
    hub::{ChannelReader, History, Hub, Item, Membership, SharedRead},
    shared_event::{SharedDelta, SharedEvent},
};

/// One reader's progress through a session.
pub(crate) struct Follower {
    hub: Hub,
    tenant: TenantId,
    session: SessionId,
    membership: Membership,
    channel_reader: Option<ChannelReader>,
    /// The last cursor handed out.
    cursor: Cursor,
    /// The store has events up to here. They are replayed before anything is taken from the hub.
    replay_to: Cursor,
    /// The read under way.
    read: Option<SharedRead>,
    /// The last read returned nothing.
    last_read_empty: bool,
    /// Items taken from the hub and not handed out yet.
    buffered: VecDeque<Item>,
    /// `CaughtUp` is still to be returned.
    caught_up_pending: bool,
    deltas: bool,
    /// Completed messages and calls of which the hub may still have deltas.
    completed_deltas: Vec<DeltaOf>,
}

/// Next item of a followed session.
#[derive(Debug, PartialEq)]
pub(crate) enum FollowItem {
    /// The next events, contiguous with those before.
    Events(Vec<SharedEvent>),
    Deltas(Vec<SharedDelta>),
    /// The next events have been trimmed. Events continue from `first`.
    Trimmed(TrimmedRange),
    /// Everything in the store has been handed out.
    CaughtUp,
}

/// State of a session whose requested history has been trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrimmedRange {
    /// The oldest retained event; `last + 1` if there is none.
    pub(crate) first: Cursor,
    /// The newest event.
    pub(crate) last: Cursor,
}

impl Follower {
    /// Starts after `after`. Fails with `session_not_found`, and with `cursor_out_of_range` for a cursor in the
    /// future.
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
        let channel_reader = membership.attach().await?;
        if after > channel_reader.base {
            // Another process may know a newer cursor than this one.
            let end = hub.stream_end(tenant, session).await?;
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
            replay_to: channel_reader.base,
            channel_reader: Some(channel_reader),
            cursor: after,
            read: None,
            last_read_empty: false,
            buffered: VecDeque::new(),
            caught_up_pending: true,
            deltas,
            completed_deltas: Vec::new(),
        })
    }

    /// The next events or deltas. Waits until there are some. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<FollowItem> {
        loop {
            if self.cursor < self.replay_to {
                if let Some(item) = self.replay().await? {
                    return Ok(item);
                }
                continue;
            }
            let Some(channel_reader) = self.channel_reader.as_mut() else {
                let channel_reader = self.membership.attach().await?;
                self.replay_to = self.replay_to.max(channel_reader.base);
                self.channel_reader = Some(channel_reader);
                continue;
            };
            if std::mem::take(&mut self.caught_up_pending) {
                return Ok(FollowItem::CaughtUp);
            }
            let partial_text = std::mem::take(&mut channel_reader.partial_text);
            if !partial_text.is_empty() {
                self.buffered.push_front(Item::Deltas(partial_text));
            }
            match self.buffered.pop_front() {
                Some(Item::Events(events)) => {
                    if let Some(next) = self.contiguous(&events) {
                        return Ok(FollowItem::Events(next));
                    }
                }
                Some(Item::Deltas(deltas)) => {
                    if let Some(wanted) = self.filter_deltas(&deltas) {
                        return Ok(FollowItem::Deltas(wanted));
                    }
                }
                None => match channel_reader.next().await? {
                    Some(items) => self.buffered.extend(items),
                    // The follower was too slow; the store has what it missed.
                    None => {
                        self.hub.meters().too_slow();
                        self.channel_reader = None;
                        self.caught_up_pending = true;
                    }
                },
            }
        }
    }

    /// Whether it only waits for new events.
    pub(crate) fn is_live(&self) -> bool {
        let no_partial_text = |channel_reader: &ChannelReader| channel_reader.partial_text.is_empty();
        let attached = self.channel_reader.as_ref().is_some_and(no_partial_text);
        attached && self.cursor >= self.replay_to && self.buffered.is_empty() && !self.caught_up_pending
    }

    pub(crate) fn session(&self) -> SessionId {
        self.session
    }

    /// The last cursor handed out.
    pub(crate) fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// The current end of the session's stream. Events up to there come next.
    pub(crate) async fn end(&mut self) -> Result<Cursor> {
        let end = self.hub.stream_end(self.tenant, self.session).await?;
        let last = end.map_or(self.cursor, |end| end.last_cursor);
        self.replay_to = self.replay_to.max(last);
        Ok(last)
    }

    /// Whether the store has events that were not handed out. If so, they come next.
    pub(crate) async fn has_more(&mut self) -> Result<bool> {
        Ok(self.end().await? > self.cursor)
    }

    /// Goes back to an earlier cursor: the events after it are handed out again.
    pub(crate) fn rewind(&mut self, cursor: Cursor) {
        if cursor < self.cursor {
            self.replay_to = self.replay_to.max(self.cursor);
            self.cursor = cursor;
            self.read = None;
        }
    }

    /// Reads the next events from the store. `None` if only the replay target has changed.
    async fn replay(&mut self) -> Result<Option<FollowItem>> {
        let (hub, membership, cursor) = (&self.hub, &self.membership, self.cursor);
        let read = self.read.get_or_insert_with(|| hub.read(membership, cursor));
        let history = read.clone().await;
        self.read = None;
        let history = history.map_err(|error| error.duplicate())?;
        let History { events, last_cursor } = &*history;
        let first = events.first().map_or(last_cursor + 1, |event| event.cursor);
        if first > self.cursor + 1 {
            self.cursor = first - 1;
            self.caught_up_pending = true;
            return Ok(Some(FollowItem::Trimmed(TrimmedRange { first, last: *last_cursor })));
        }
        let Some(last) = events.last() else {
            // A shared read may have started before the wanted event was written. A second one cannot have.
            if std::mem::replace(&mut self.last_read_empty, true) {
                self.replay_to = self.cursor;
            }
            return Ok(None);
        };
        self.last_read_empty = false;
        self.cursor = last.cursor;
        self.caught_up_pending = true;
        self.note_completed_deltas(events);
        Ok(Some(FollowItem::Events(events.clone())))
    }

    /// The new part of live events, if it starts right after the last cursor handed out.
    fn contiguous(&mut self, events: &[SharedEvent]) -> Option<Vec<SharedEvent>> {
        let first_new = events.iter().position(|event| event.cursor > self.cursor)?;
        let new = &events[first_new..];
        let (first, last) = (new.first()?.cursor, new.last()?.cursor);
        // From here on the hub has no deltas of messages that were completed in the replay.
        self.completed_deltas.clear();
        if first != self.cursor + 1 {
            self.replay_to = last;
            return None;
        }
        self.cursor = last;
        Some(new.to_vec())
    }

    fn filter_deltas(&self, deltas: &[SharedDelta]) -> Option<Vec<SharedDelta>> {
        if !self.deltas {
            return None;
        }
        let wanted = deltas.iter().filter(|delta| !self.completed_deltas.contains(&delta.of));
        let wanted: Vec<SharedDelta> = wanted.cloned().collect();
        (!wanted.is_empty()).then_some(wanted)
    }

    /// Records completed messages of which the hub may still have deltas.
    fn note_completed_deltas(&mut self, events: &[SharedEvent]) {
        let base = self.channel_reader.as_ref().map_or(Cursor::MAX, |channel_reader| channel_reader.base);
        if self.deltas && self.cursor > base {
            let ends = events.iter().filter(|event| event.cursor > base);
            self.completed_deltas.extend(ends.filter_map(|event| match &event.body {
                EventBody::MessageCompleted { message, .. } => Some(DeltaOf::Message(*message)),
                EventBody::ToolCompleted(outcome) | EventBody::ToolFailed(outcome) => {
                    Some(DeltaOf::Call(outcome.id))
                }
                _ => None,
            }));
        }
    }
}
