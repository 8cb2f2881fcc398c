//! Follows events across broken connections.

mod resume_cursors;

use std::{error::Error as _, time::Duration};

use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use remuda_domain::{Code, Cursor, Error, RunState, error::Result};
use remuda_proto::v1;
use tokio::time::{Instant, timeout};
use tonic::{Code as StatusCode, Status, Streaming};

use self::resume_cursors::ResumeCursors;
use crate::{Client, client::Peer, retry::Retry};

/// A subscription that lasted this long counts as progress, even without events.
const GOOD_SUBSCRIPTION: Duration = Duration::from_secs(10);

/// Events in order, each once. See [`Client::follow`].
pub type EventStream = BoxStream<'static, Result<v1::Event>>;

/// Events in order, each once, interleaved with deltas. See [`Client::follow_with_deltas`].
pub type FollowStream = BoxStream<'static, Result<FollowItem>>;

/// Item of a [`FollowStream`].
#[derive(Clone, Debug, PartialEq)]
pub enum FollowItem {
    Event(v1::Event),
    /// A piece of a message under way. Deltas may be missing; the complete message follows as `message.completed`.
    Delta(v1::Delta),
}

/// What to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// All events of a session, by id or name. Never ends by itself.
    Session(String),
    /// The events of one run, by id. Ends after its terminal event.
    Run(String),
}

/// How to follow. The default is the whole history, and only events of the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowOptions {
    /// The last cursor seen; 0 for the whole history.
    pub after_cursor: Cursor,
    /// Also deltas of messages under way. Deltas sent while disconnected are not repeated.
    pub deltas: bool,
    /// Also events of descendant sessions; for a run, of those that work for it. Their events have their own
    /// `session_id`, and are in order within each session.
    pub tree: bool,
}

/// The terminal state that an event reports, if any.
#[must_use]
pub fn terminal_state(event: &v1::Event) -> Option<RunState> {
    match event.r#type.as_str() {
        "run.completed" => Some(RunState::Completed),
        "run.failed" => Some(RunState::Failed),
        "run.cancelled" => Some(RunState::Cancelled),
        "run.timed_out" => Some(RunState::TimedOut),
        _ => None,
    }
}

impl Client {
    /// Follows events after `after_cursor` (0 for the whole history).
    ///
    /// Every event comes once and in order. After a broken connection it resumes from the last cursor. After
    /// [`give_up_after`](crate::ClientOptions::give_up_after) without progress the last error ends the stream.
    #[must_use]
    pub fn follow(&self, target: Target, after_cursor: Cursor) -> EventStream {
        let options = FollowOptions { after_cursor, ..FollowOptions::default() };
        let events = self.follow_with(target, options).filter_map(|item| async {
            match item {
                Ok(FollowItem::Event(event)) => Some(Ok(event)),
                Ok(FollowItem::Delta(_)) => None,
                Err(error) => Some(Err(error)),
            }
        });
        events.boxed()
    }

    /// Like [`follow`](Self::follow), with deltas of messages under way. Deltas sent while disconnected are not
    /// repeated.
    #[must_use]
    pub fn follow_with_deltas(&self, target: Target, after_cursor: Cursor) -> FollowStream {
        self.follow_with(target, FollowOptions { after_cursor, deltas: true, tree: false })
    }

    /// Follows with these options: with deltas, with descendant sessions.
    ///
    /// Every event comes once. After a broken connection it resumes in every session from the last cursor seen there.
    #[must_use]
    pub fn follow_with(&self, target: Target, options: FollowOptions) -> FollowStream {
        let follow = Follow {
            client: self.clone(),
            resume_cursors: ResumeCursors::new(&target, options),
            target,
            options,
            retry: self.retry(),
            open: None,
            known_finished: false,
            done: false,
        };
        stream::unfold(follow, Follow::step).fuse().boxed()
    }
}

struct Follow {
    client: Client,
    target: Target,
    options: FollowOptions,
    resume_cursors: ResumeCursors,
    retry: Retry,
    open: Option<Open>,
    /// The run was finished before the current subscription began.
    known_finished: bool,
    done: bool,
}

/// A subscription that the server accepted.
struct Open {
    peer: Peer,
    events: Streaming<v1::SubscribeResponse>,
    since: Instant,
}

/// Why a subscription ended.
enum SubscriptionEnd {
    /// The server ended it without an error.
    Ended,
    Failed(Error),
}

impl Follow {
    async fn step(mut self) -> Option<(Result<FollowItem>, Self)> {
        if self.done {
            return None;
        }
        loop {
            let end = match self.next_item().await {
                Ok(FollowItem::Event(event)) if !self.resume_cursors.record(&event) => continue,
                Ok(item) => {
                    self.retry.progress();
                    if let FollowItem::Event(event) = &item {
                        self.done = self.ends_with(event);
                    }
                    return Some((Ok(item), self));
                }
                Err(end) => end,
            };
            match self.recover(end).await {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    self.done = true;
                    return Some((Err(error), self));
                }
            }
        }
    }

    fn ends_with(&self, event: &v1::Event) -> bool {
        matches!(&self.target, Target::Run(run) if *run == event.run_id) && terminal_state(event).is_some()
    }

    async fn next_item(&mut self) -> Result<FollowItem, SubscriptionEnd> {
        if self.open.is_none() {
            self.open = Some(self.subscribe().await.map_err(SubscriptionEnd::Failed)?);
        }
        let Some(open) = &mut self.open else { return Err(SubscriptionEnd::Ended) };
        loop {
            match open.events.message().await {
                Ok(Some(v1::SubscribeResponse { event: Some(event), .. })) => {
                    return Ok(FollowItem::Event(event));
                }
                Ok(Some(v1::SubscribeResponse { delta: Some(delta), .. })) if self.options.deltas => {
                    return Ok(FollowItem::Delta(delta));
                }
                // From a newer server.
                Ok(Some(_)) => {}
                Ok(None) => return Err(SubscriptionEnd::Ended),
                Err(status) => {
                    let failed = self.client.convert::<()>(&open.peer, Err(broken(status)));
                    return Err(failed.err().map_or(SubscriptionEnd::Ended, SubscriptionEnd::Failed));
                }
            }
        }
    }

    async fn subscribe(&mut self) -> Result<Open> {
        let peer = self.client.stream_peer().await?;
        if let Some(name) = self.resume_cursors.unknown_root() {
            let request = v1::GetSessionRequest { session: name.to_owned() };
            let session = self.client.get_session(request).await?.session;
            let session = session.ok_or_else(|| Error::internal("the server sent no session"))?;
            self.resume_cursors.root_is(session.id);
        }
        let target = match &self.target {
            Target::Session(session) => v1::subscribe_request::Target::Session(session.clone()),
            Target::Run(run) => v1::subscribe_request::Target::RunId(run.clone()),
        };
        let request = v1::SubscribeRequest {
            target: Some(target),
            after_cursor: self.resume_cursors.root_cursor(),
            deltas: self.options.deltas,
            tree: self.options.tree,
            tree_cursors: self.resume_cursors.descendants().clone(),
            typed: false,
        };
        let mut service = self.client.stream_client(&peer);
        // A deadline in the request would end the stream itself: only its opening is bounded.
        let response = timeout(self.client.options().request_timeout, service.subscribe(request)).await;
        let Ok(response) = response else {
            let message = format!("the server at {} did not respond in time", peer.endpoint);
            return Err(Error::new(Code::DeadlineExceeded, message));
        };
        let events = self.client.convert(&peer, response)?.into_inner();
        Ok(Open { peer, events, since: Instant::now() })
    }

    /// Prepares the next subscription. `false` if no more events follow.
    async fn recover(&mut self, end: SubscriptionEnd) -> Result<bool> {
        if self.open.take().is_some_and(|open| open.since.elapsed() >= GOOD_SUBSCRIPTION) {
            self.retry.progress();
        }
        let error = match end {
            SubscriptionEnd::Failed(error) if !self.client.was_reached() => return Err(error),
            SubscriptionEnd::Failed(error) => error,
            // The run had ended before the subscription, and the stream still ended without its terminal event: the
            // caller's cursor lies behind it.
            SubscriptionEnd::Ended if self.known_finished => return Ok(false),
            SubscriptionEnd::Ended => {
                self.known_finished = self.run_is_finished().await;
                Error::unavailable("the server ended the stream of events")
            }
        };
        self.retry.after(error).await?;
        Ok(true)
    }

    async fn run_is_finished(&self) -> bool {
        let Target::Run(run_id) = &self.target else { return false };
        let response = self.client.get_run(v1::GetRunRequest { run_id: run_id.clone() }).await;
        response.is_ok_and(|response| response.run.is_some_and(|run| is_finished(run.state)))
    }
}

fn is_finished(state: i32) -> bool {
    remuda_proto::convert::run_state("state", state).is_ok_and(RunState::is_terminal)
}

/// Converts the status of a stream that broke off: servers that go down reset it (`cancelled`), proxies lose the
/// trailers (`unknown`). Both mean "retry", unlike the same status as the response to a call.
fn broken(status: Status) -> Status {
    match status.code() {
        // With a source it is a local connection failure, which is recognized as one.
        StatusCode::Cancelled | StatusCode::Unknown
            if status.details().is_empty() && status.source().is_none() =>
        {
            Status::unavailable(status.message().to_owned())
        }
        _ => status,
    }
}

#[cfg(test)]
mod tests {
    use remuda_domain::EventBody;

    use super::*;

    #[test]
    fn every_terminal_event_is_recognized() {
        for state in RunState::ALL {
            let Some(body) = EventBody::for_end(state, None) else { continue };
            let event = v1::Event { r#type: body.name().to_owned(), ..Default::default() };
            assert_eq!(terminal_state(&event), Some(state));
        }
        assert_eq!(terminal_state(&v1::Event { r#type: "run.queued".into(), ..Default::default() }), None);
    }
}
