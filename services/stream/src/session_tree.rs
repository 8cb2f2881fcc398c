//! The descendant sessions of a stream.
//!
//! They are found by the events that announce them (`subagent.started`) and, for what lies before a reader's cursors,
//! in the store. Events of a child are read as soon as it is found, before its ancestors continue. So history reads
//! in the order in which it happened, as far as that is known.

use std::collections::{HashMap, VecDeque};

use futures::{FutureExt as _, future::select_all};
use remuda_domain::{Code, Cursor, Event, EventBody, RunId, SessionId, error::Result, page::PageRequest};

use crate::{
    event_source::Source, follow::FollowItem, followed_session::FollowedSession, reader::Batch,
    shared_event::SharedEvent,
};

/// Sessions followed concurrently; more have to wait until others end.
const MAX_FOLLOWED: usize = 64;
/// Descendant sessions per stream in total.
pub(crate) const MAX_SESSIONS: usize = 4096;

/// A descendant session, and its run that works for an ancestor. Any of its runs if `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChildRef {
    session: SessionId,
    run: Option<RunId>,
}

/// Result of a step.
pub(crate) enum Progress {
    /// To be sent.
    Batch(Batch),
    /// There may be more to do immediately.
    More,
    /// Nothing to do until something happens.
    Idle,
}

pub(crate) struct Tree {
    source: Source,
    root: SessionId,
    /// The run whose children are followed; all descendants of the session if `None`.
    run: Option<RunId>,
    deltas: bool,
    /// Oldest first.
    followed_sessions: Vec<FollowedSession>,
    waiting: VecDeque<ChildRef>,
    /// The reader's position in each session that was found.
    cursors: HashMap<SessionId, Cursor>,
    /// Which session is polled first.
    rotation: usize,
}

impl Tree {
    pub(crate) fn new(
        source: Source,
        (root, run): (SessionId, Option<RunId>),
        cursors: HashMap<SessionId, Cursor>,
        deltas: bool,
    ) -> Self {
        Self {
            source,
            root,
            run,
            deltas,
            followed_sessions: Vec::new(),
            waiting: VecDeque::new(),
            cursors,
            rotation: 0,
        }
    }

    /// Follows the session that an event announces, if any.
    pub(crate) fn on_event(&mut self, event: &Event) {
        if let EventBody::SubagentStarted { session, run, .. } = &event.body {
            self.enqueue(ChildRef { session: *session, run: Some(*run) });
        }
    }

    fn enqueue(&mut self, child_ref: ChildRef) {
        if child_ref.session == self.root || self.waiting.contains(&child_ref) {
            return;
        }
        let new = !self.cursors.contains_key(&child_ref.session);
        if (new && self.cursors.len() >= MAX_SESSIONS) || self.waiting.len() >= MAX_SESSIONS {
            tracing::warn!(session = %child_ref.session, root = %self.root, "too many descendant sessions to follow");
            return;
        }
        self.cursors.entry(child_ref.session).or_default();
        self.waiting.push_back(child_ref);
    }

    /// Finds descendants that started before the reader's cursors.
    pub(crate) async fn discover(&mut self) -> Result<()> {
        match self.run {
            Some(run) => self.discover_runs(run).await,
            None => self.discover_sessions().await,
        }
    }

    /// The children of a run are in its steps.
    async fn discover_runs(&mut self, run: RunId) -> Result<()> {
        let (mut unvisited, mut seen) = (VecDeque::from([run]), 0);
        while let Some(run) = unvisited.pop_front() {
            let steps = self.source.store().list_steps(self.source.tenant, run).await?;
            let children = steps.iter().filter_map(|step| step.links()?.child.as_ref());
            for child in children {
                seen += 1;
                if seen > MAX_SESSIONS {
                    return Ok(());
                }
                self.enqueue(ChildRef { session: child.session, run: Some(child.run) });
                unvisited.push_back(child.run);
            }
        }
        Ok(())
    }

    async fn discover_sessions(&mut self) -> Result<()> {
        let (mut unvisited, mut seen) = (VecDeque::from([self.root]), 0);
        while let Some(session) = unvisited.pop_front() {
            let mut page = PageRequest { size: PageRequest::MAX_SIZE, token: None };
            loop {
                let (store, tenant) = (self.source.store(), self.source.tenant);
                let child_ref = store.list_child_sessions(tenant, session, &page).await?;
                for child in child_ref.items {
                    seen += 1;
                    if seen > MAX_SESSIONS {
                        return Ok(());
                    }
                    unvisited.push_back(child.id);
                    if self.followed_sessions.iter().all(|followed| followed.session() != child.id) {
                        self.enqueue(ChildRef { session: child.id, run: None });
                    }
                }
                match child_ref.next {
                    Some(token) => page.token = Some(token),
                    None => break,
                }
            }
        }
        Ok(())
    }

    /// Does what need not wait, the newest session first.
    pub(crate) async fn work(&mut self) -> Result<Progress> {
        if let Some(child_ref) = self.waiting.front().copied()
            && (self.followed_sessions.len() < MAX_FOLLOWED
                || self.followed_sessions.iter().any(|followed| followed.session() == child_ref.session))
        {
            self.open(child_ref).await?;
            self.waiting.pop_front();
            return Ok(Progress::More);
        }
        if let Some(over) = self.followed_sessions.iter().position(FollowedSession::is_over) {
            let followed = &mut self.followed_sessions[over];
            match followed.trimmed() {
                // All its events have been trimmed.
                Some(trimmed) => {
                    followed.report_trim(self.source.snapshot(followed.session(), None, trimmed).await?)
                }
                None => self.close(over),
            }
            return Ok(Progress::More);
        }
        if let Some(followed) = self.followed_sessions.iter_mut().find(|followed| followed.needs_end_check())
        {
            followed.check_ended_runs(self.source.store(), self.source.tenant).await?;
            return Ok(Progress::More);
        }
        let Some(followed) = self.followed_sessions.iter_mut().rfind(|followed| followed.is_busy()) else {
            return Ok(Progress::Idle);
        };
        if let Some(trimmed) = followed.unreported_trim() {
            followed.report_trim(self.source.snapshot(followed.session(), None, trimmed).await?);
        }
        if !followed.has_pending() {
            let item = followed.next().await?;
            return Ok(on_event(followed, item).map_or(Progress::More, Progress::Batch));
        }
        let events = take_until_child_start(followed, |_| true);
        if let Some(event) = events.last() {
            self.on_event(event);
        }
        Ok(Progress::Batch(Batch::Events(events)))
    }

    /// Whether the descendants' events before the end were all sent. If not, there is more to do.
    pub(crate) async fn is_drained(&mut self) -> Result<bool> {
        let Some(followed) = self.followed_sessions.last_mut() else {
            return Ok(self.waiting.is_empty());
        };
        if followed.is_drained().await? {
            self.close(self.followed_sessions.len() - 1);
        }
        Ok(false)
    }

    /// Waits for new events of descendants. Cancel-safe.
    pub(crate) async fn wait(&mut self) -> Result<Option<Batch>> {
        if self.followed_sessions.is_empty() {
            return std::future::pending().await;
        }
        // Round robin, so that a busy session does not starve others.
        self.rotation = (self.rotation + 1) % self.followed_sessions.len();
        let mut pending: Vec<_> =
            self.followed_sessions.iter_mut().map(|followed| next_from(followed).boxed()).collect();
        pending.rotate_left(self.rotation);
        let (batch, _, _) = select_all(pending).await;
        let (session, item) = batch?;
        let followed = self.followed_sessions.iter_mut().find(|followed| followed.session() == session);
        Ok(followed.and_then(|followed| on_event(followed, item)))
    }

    async fn open(&mut self, child_ref: ChildRef) -> Result<()> {
        let ChildRef { session, run } = child_ref;
        if let Some(followed) =
            self.followed_sessions.iter_mut().find(|followed| followed.session() == session)
        {
            if let Some(run) = run {
                followed.follow_run(run);
            }
            return Ok(());
        }
        let after = self.cursors.get(&session).copied().unwrap_or_default();
        let follower = match self.source.follow(session, after, self.deltas).await {
            Ok(follower) => follower,
            Err(error) if error.code() == Code::SessionNotFound => {
                tracing::warn!(%session, root = %self.root, "a descendant session does not exist");
                return Ok(());
            }
            Err(error) if error.field() == Some("after_cursor") => return Err(error.at("tree_cursors")),
            Err(error) => return Err(error),
        };
        let only = self.run.is_some().then(Vec::new);
        let mut followed = FollowedSession::new(follower, only);
        match run {
            Some(run) => followed.follow_run(run),
            None => {
                for run in self.source.unfinished(session).await? {
                    followed.follow_run(run);
                }
            }
        }
        self.followed_sessions.push(followed);
        Ok(())
    }

    fn close(&mut self, index: usize) {
        let followed = self.followed_sessions.remove(index);
        self.cursors.insert(followed.session(), followed.sent());
    }
}

async fn next_from(followed: &mut FollowedSession) -> Result<(SessionId, FollowItem)> {
    let session = followed.session();
    Ok((session, followed.next().await?))
}

/// Accepts the next item of a session: events are queued in order, deltas are sent directly.
fn on_event(followed: &mut FollowedSession, item: FollowItem) -> Option<Batch> {
    match item {
        FollowItem::Events(events) => followed.queue_events(events),
        FollowItem::Trimmed(trimmed) => followed.set_trimmed(trimmed),
        FollowItem::CaughtUp => {}
        FollowItem::Deltas(deltas) => {
            let wanted = followed.filter_deltas(deltas);
            return (!wanted.is_empty()).then_some(Batch::Deltas(wanted));
        }
    }
    None
}

/// Takes events while `allowed`, up to and including one that announces a child session.
pub(crate) fn take_until_child_start(
    followed: &mut FollowedSession,
    allowed: impl Fn(&SharedEvent) -> bool,
) -> Vec<SharedEvent> {
    let mut events = Vec::new();
    while followed.peek().is_some_and(&allowed)
        && let Some(event) = followed.pop()
    {
        let starts = matches!(event.body, EventBody::SubagentStarted { .. });
        events.push(event);
        if starts {
            break;
        }
    }
    events
}
