//! The sessions below the one that a stream is about.
//!
//! They are found by the events that tell of them (`subagent.started`) and, for what lies before a reader's cursors, in the
//! store. What a session below has to say is read as soon as it is found, before the ones above go on: so history reads in
//! the order in which it happened, as far as that can be told.

use std::collections::{HashMap, VecDeque};

use futures::{FutureExt as _, future::select_all};
use remuda_domain::{Code, Cursor, Event, EventBody, RunId, SessionId, error::Result, page::PageRequest};

use crate::{follow::Followed, lane::Lane, reader::Said, shared::SharedEvent, source::Source};

/// Sessions followed at once; further ones have to wait until others are over.
const MAX_LANES: usize = 64;
/// Sessions below that one stream tells of in all.
pub(crate) const MAX_SESSIONS: usize = 4096;

/// A session below, and the run in it that works for one above. Any of its runs when missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    session: SessionId,
    run: Option<RunId>,
}

/// What came of a bit of work.
pub(crate) enum Work {
    /// To be sent.
    Said(Said),
    /// There may be more to do at once.
    Done,
    /// Only time brings more.
    Nothing,
}

pub(crate) struct Tree {
    source: Source,
    root: SessionId,
    /// The run whose helpers are followed; everything below the session when missing.
    run: Option<RunId>,
    deltas: bool,
    /// Oldest first.
    lanes: Vec<Lane>,
    waiting: VecDeque<Found>,
    /// Where the reader stands in each session that it was told of.
    cursors: HashMap<SessionId, Cursor>,
    /// Whose turn to be heard first it is.
    turn: usize,
}

impl Tree {
    pub(crate) fn new(
        source: Source,
        (root, run): (SessionId, Option<RunId>),
        cursors: HashMap<SessionId, Cursor>,
        deltas: bool,
    ) -> Self {
        Self { source, root, run, deltas, lanes: Vec::new(), waiting: VecDeque::new(), cursors, turn: 0 }
    }

    /// Follows the session that an event tells of, if it does.
    pub(crate) fn hear(&mut self, event: &Event) {
        if let EventBody::SubagentStarted { session, run, .. } = &event.body {
            self.find(Found { session: *session, run: Some(*run) });
        }
    }

    fn find(&mut self, found: Found) {
        if found.session == self.root || self.waiting.contains(&found) {
            return;
        }
        let new = !self.cursors.contains_key(&found.session);
        if (new && self.cursors.len() >= MAX_SESSIONS) || self.waiting.len() >= MAX_SESSIONS {
            tracing::warn!(session = %found.session, root = %self.root, "too many sessions below to follow");
            return;
        }
        self.cursors.entry(found.session).or_default();
        self.waiting.push_back(found);
    }

    /// Finds what began before the reader's cursors.
    pub(crate) async fn discover(&mut self) -> Result<()> {
        match self.run {
            Some(run) => self.discover_runs(run).await,
            None => self.discover_sessions().await,
        }
    }

    /// The runs that work for a run stand in its steps.
    async fn discover_runs(&mut self, run: RunId) -> Result<()> {
        let (mut above, mut seen) = (VecDeque::from([run]), 0);
        while let Some(run) = above.pop_front() {
            let steps = self.source.store().list_steps(self.source.tenant, run).await?;
            let children = steps.iter().filter_map(|step| step.links()?.child.as_ref());
            for child in children {
                seen += 1;
                if seen > MAX_SESSIONS {
                    return Ok(());
                }
                self.find(Found { session: child.session, run: Some(child.run) });
                above.push_back(child.run);
            }
        }
        Ok(())
    }

    async fn discover_sessions(&mut self) -> Result<()> {
        let (mut above, mut seen) = (VecDeque::from([self.root]), 0);
        while let Some(session) = above.pop_front() {
            let mut page = PageRequest { size: PageRequest::MAX_SIZE, token: None };
            loop {
                let (store, tenant) = (self.source.store(), self.source.tenant);
                let found = store.list_child_sessions(tenant, session, &page).await?;
                for child in found.items {
                    seen += 1;
                    if seen > MAX_SESSIONS {
                        return Ok(());
                    }
                    above.push_back(child.id);
                    if self.lanes.iter().all(|lane| lane.session() != child.id) {
                        self.find(Found { session: child.id, run: None });
                    }
                }
                match found.next {
                    Some(token) => page.token = Some(token),
                    None => break,
                }
            }
        }
        Ok(())
    }

    /// Does what need not be waited for, the newest session first.
    pub(crate) async fn work(&mut self) -> Result<Work> {
        if let Some(found) = self.waiting.front().copied()
            && (self.lanes.len() < MAX_LANES || self.lanes.iter().any(|lane| lane.session() == found.session))
        {
            self.open(found).await?;
            self.waiting.pop_front();
            return Ok(Work::Done);
        }
        if let Some(over) = self.lanes.iter().position(Lane::is_over) {
            let lane = &mut self.lanes[over];
            match lane.gap() {
                // Nothing is kept of what it is followed for.
                Some(gap) => lane.close_gap(self.source.snapshot(lane.session(), None, gap).await?),
                None => self.close(over),
            }
            return Ok(Work::Done);
        }
        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.is_unsure()) {
            lane.look_at_runs(self.source.store(), self.source.tenant).await?;
            return Ok(Work::Done);
        }
        let Some(lane) = self.lanes.iter_mut().rfind(|lane| lane.is_busy()) else {
            return Ok(Work::Nothing);
        };
        if let Some(gap) = lane.open_gap() {
            lane.close_gap(self.source.snapshot(lane.session(), None, gap).await?);
        }
        if !lane.has_held() {
            let followed = lane.next().await?;
            return Ok(hear(lane, followed).map_or(Work::Done, Work::Said));
        }
        let events = up_to_a_start(lane, |_| true);
        if let Some(event) = events.last() {
            self.hear(event);
        }
        Ok(Work::Said(Said::Events(events)))
    }

    /// Whether the sessions below have said everything that they had to say before the end. If not, there is more to do.
    pub(crate) async fn has_said_all(&mut self) -> Result<bool> {
        let Some(lane) = self.lanes.last_mut() else { return Ok(self.waiting.is_empty()) };
        if lane.has_said_all().await? {
            self.close(self.lanes.len() - 1);
        }
        Ok(false)
    }

    /// Waits for what happens next below. Cancel-safe.
    pub(crate) async fn listen(&mut self) -> Result<Option<Said>> {
        if self.lanes.is_empty() {
            return std::future::pending().await;
        }
        // Who says most is not always heard first.
        self.turn = (self.turn + 1) % self.lanes.len();
        let mut heard: Vec<_> = self.lanes.iter_mut().map(|lane| heard_from(lane).boxed()).collect();
        heard.rotate_left(self.turn);
        let (said, _, _) = select_all(heard).await;
        let (session, followed) = said?;
        let lane = self.lanes.iter_mut().find(|lane| lane.session() == session);
        Ok(lane.and_then(|lane| hear(lane, followed)))
    }

    async fn open(&mut self, found: Found) -> Result<()> {
        let Found { session, run } = found;
        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.session() == session) {
            if let Some(run) = run {
                lane.follow_run(run);
            }
            return Ok(());
        }
        let after = self.cursors.get(&session).copied().unwrap_or_default();
        let follower = match self.source.follow(session, after, self.deltas).await {
            Ok(follower) => follower,
            Err(error) if error.code() == Code::SessionNotFound => {
                tracing::warn!(%session, root = %self.root, "a session below does not exist");
                return Ok(());
            }
            Err(error) if error.field() == Some("after_cursor") => return Err(error.at("tree_cursors")),
            Err(error) => return Err(error),
        };
        let only = self.run.is_some().then(Vec::new);
        let mut lane = Lane::new(follower, only);
        match run {
            Some(run) => lane.follow_run(run),
            None => {
                for run in self.source.unfinished(session).await? {
                    lane.follow_run(run);
                }
            }
        }
        self.lanes.push(lane);
        Ok(())
    }

    fn close(&mut self, index: usize) {
        let lane = self.lanes.remove(index);
        self.cursors.insert(lane.session(), lane.sent());
    }
}

async fn heard_from(lane: &mut Lane) -> Result<(SessionId, Followed)> {
    let session = lane.session();
    Ok((session, lane.next().await?))
}

/// Takes what a lane has to say: events are held until it is their turn, pieces are not.
fn hear(lane: &mut Lane, followed: Followed) -> Option<Said> {
    match followed {
        Followed::Events(events) => lane.accept(events),
        Followed::Trimmed(gap) => lane.note_gap(gap),
        Followed::CaughtUp => {}
        Followed::Deltas(deltas) => {
            let wanted = lane.wanted(deltas);
            return (!wanted.is_empty()).then_some(Said::Deltas(wanted));
        }
    }
    None
}

/// Takes events out for as long as `allowed`, and no further than to one that tells of a session below.
pub(crate) fn up_to_a_start(lane: &mut Lane, allowed: impl Fn(&SharedEvent) -> bool) -> Vec<SharedEvent> {
    let mut events = Vec::new();
    while lane.peek().is_some_and(&allowed)
        && let Some(event) = lane.pop()
    {
        let starts = matches!(event.body, EventBody::SubagentStarted { .. });
        events.push(event);
        if starts {
            break;
        }
    }
    events
}
