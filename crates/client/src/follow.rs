//! Following events across broken connections.

mod places;

use std::{error::Error as _, time::Duration};

use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use remuda_domain::{Code, Cursor, Error, RunState, error::Result};
use remuda_proto::v1;
use tokio::time::{Instant, timeout};
use tonic::{Code as StatusCode, Status, Streaming};

use self::places::Places;
use crate::{Client, client::Peer, retry::Retry};

/// A subscription that lasted this long was a good one, even if nothing happened in the session.
const GOOD_SUBSCRIPTION: Duration = Duration::from_secs(10);

/// Events in order, each once. See [`Client::follow`].
pub type EventStream = BoxStream<'static, Result<v1::Event>>;

/// Events in order, each once, and between them pieces of messages. See [`Client::follow_with_deltas`].
pub type FollowStream = BoxStream<'static, Result<Followed>>;

/// What following gives.
#[derive(Clone, Debug, PartialEq)]
pub enum Followed {
    Event(v1::Event),
    /// A piece of a message that is being said. Pieces may be missing; the message follows whole, as `message.completed`.
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

/// How to follow. The default is all of history, and events of the target alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Following {
    /// The last cursor seen; 0 for all of history.
    pub after_cursor: Cursor,
    /// Also the pieces of messages that are being said. Those of a time without a connection do not come again.
    pub deltas: bool,
    /// Also what happens in the sessions below: of a run, in those that work for it. Their events have their own `session_id`,
    /// and are in order within each session.
    pub tree: bool,
}

/// The terminal state that an event reports, if it does.
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
    /// Follows events after `after_cursor` (0 for all of history).
    ///
    /// Every event comes once and in order. A broken connection is resumed from the last cursor; after
    /// [`give_up_after`](crate::ClientOptions::give_up_after) without progress the last error ends the stream.
    #[must_use]
    pub fn follow(&self, target: Target, after_cursor: Cursor) -> EventStream {
        let following = Following { after_cursor, ..Following::default() };
        let events = self.follow_by(target, following).filter_map(|followed| async {
            match followed {
                Ok(Followed::Event(event)) => Some(Ok(event)),
                Ok(Followed::Delta(_)) => None,
                Err(error) => Some(Err(error)),
            }
        });
        events.boxed()
    }

    /// Follows events in the same way, and the pieces of messages that are being said. Those of a time without a connection
    /// do not come again.
    #[must_use]
    pub fn follow_with_deltas(&self, target: Target, after_cursor: Cursor) -> FollowStream {
        self.follow_by(target, Following { after_cursor, deltas: true, tree: false })
    }

    /// Follows as it is said: with pieces of messages, with the sessions below.
    ///
    /// Every event comes once. A broken connection is resumed in every session from the last cursor seen there.
    #[must_use]
    pub fn follow_by(&self, target: Target, following: Following) -> FollowStream {
        let follow = Follow {
            client: self.clone(),
            places: Places::new(&target, following),
            target,
            following,
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
    following: Following,
    places: Places,
    retry: Retry,
    open: Option<Open>,
    /// The run was finished before the current subscription began.
    known_finished: bool,
    done: bool,
}

/// A subscription the server accepted.
struct Open {
    peer: Peer,
    events: Streaming<v1::SubscribeResponse>,
    since: Instant,
}

/// Why a subscription gave nothing further.
enum Pause {
    /// The server ended it without an error.
    Ended,
    Failed(Error),
}

impl Follow {
    async fn step(mut self) -> Option<(Result<Followed>, Self)> {
        if self.done {
            return None;
        }
        loop {
            let pause = match self.next_item().await {
                Ok(Followed::Event(event)) if !self.places.pass(&event) => continue,
                Ok(followed) => {
                    self.retry.progress();
                    if let Followed::Event(event) = &followed {
                        self.done = self.ends_with(event);
                    }
                    return Some((Ok(followed), self));
                }
                Err(pause) => pause,
            };
            match self.recover(pause).await {
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

    async fn next_item(&mut self) -> Result<Followed, Pause> {
        if self.open.is_none() {
            self.open = Some(self.subscribe().await.map_err(Pause::Failed)?);
        }
        let Some(open) = &mut self.open else { return Err(Pause::Ended) };
        loop {
            match open.events.message().await {
                Ok(Some(v1::SubscribeResponse { event: Some(event), .. })) => {
                    return Ok(Followed::Event(event));
                }
                Ok(Some(v1::SubscribeResponse { delta: Some(delta), .. })) if self.following.deltas => {
                    return Ok(Followed::Delta(delta));
                }
                // From a newer server.
                Ok(Some(_)) => {}
                Ok(None) => return Err(Pause::Ended),
                Err(status) => {
                    let failed = self.client.answer::<()>(&open.peer, Err(broken(status)));
                    return Err(failed.err().map_or(Pause::Ended, Pause::Failed));
                }
            }
        }
    }

    async fn subscribe(&mut self) -> Result<Open> {
        let peer = self.client.stream_peer().await?;
        if let Some(name) = self.places.unknown_root() {
            let request = v1::GetSessionRequest { session: name.to_owned() };
            let session = self.client.get_session(request).await?.session;
            let session = session.ok_or_else(|| Error::internal("the server sent no session"))?;
            self.places.root_is(session.id);
        }
        let target = match &self.target {
            Target::Session(session) => v1::subscribe_request::Target::Session(session.clone()),
            Target::Run(run) => v1::subscribe_request::Target::RunId(run.clone()),
        };
        let request = v1::SubscribeRequest {
            target: Some(target),
            after_cursor: self.places.root_cursor(),
            deltas: self.following.deltas,
            tree: self.following.tree,
            tree_cursors: self.places.below().clone(),
            typed: false,
        };
        let mut service = self.client.stream_client(&peer);
        // A deadline in the request would end the stream itself: only its beginning is bounded.
        let answer = timeout(self.client.options().request_timeout, service.subscribe(request)).await;
        let Ok(answer) = answer else {
            let message = format!("the server at {} did not answer in time", peer.endpoint);
            return Err(Error::new(Code::DeadlineExceeded, message));
        };
        let events = self.client.answer(&peer, answer)?.into_inner();
        Ok(Open { peer, events, since: Instant::now() })
    }

    /// Prepares the next subscription. False when there is nothing more to come.
    async fn recover(&mut self, pause: Pause) -> Result<bool> {
        if self.open.take().is_some_and(|open| open.since.elapsed() >= GOOD_SUBSCRIPTION) {
            self.retry.progress();
        }
        let error = match pause {
            Pause::Failed(error) if !self.client.was_reached() => return Err(error),
            Pause::Failed(error) => error,
            // A run that was over before we asked, and a stream that still ended without its terminal event: the
            // caller's cursor lies behind it.
            Pause::Ended if self.known_finished => return Ok(false),
            Pause::Ended => {
                self.known_finished = self.run_is_finished().await;
                Error::unavailable("the server ended the stream of events")
            }
        };
        self.retry.after(error).await?;
        Ok(true)
    }

    async fn run_is_finished(&self) -> bool {
        let Target::Run(run_id) = &self.target else { return false };
        let answer = self.client.get_run(v1::GetRunRequest { run_id: run_id.clone() }).await;
        answer.is_ok_and(|answer| answer.run.is_some_and(|run| is_finished(run.state)))
    }
}

fn is_finished(state: i32) -> bool {
    remuda_proto::convert::run_state("state", state).is_ok_and(RunState::is_terminal)
}

/// A stream cut off in the middle: servers that go down reset it (`cancelled`), proxies lose the trailers (`unknown`).
/// Both mean "come again", whereas the same status as the answer to a call would not.
fn broken(status: Status) -> Status {
    match status.code() {
        // With a source it is a failed connection of our own, which is known to be one.
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
    fn knows_every_terminal_event() {
        for state in RunState::ALL {
            let Some(body) = EventBody::for_end(state, None) else { continue };
            let event = v1::Event { r#type: body.name().to_owned(), ..Default::default() };
            assert_eq!(terminal_state(&event), Some(state));
        }
        assert_eq!(terminal_state(&v1::Event { r#type: "run.queued".into(), ..Default::default() }), None);
    }
}
