//! Readers of trees.

use std::{collections::HashMap, time::Duration};

use remuda_domain::{
    Cursor, EventBody, MessageId, RunId, RunState, SessionId, StepId, Timestamp, ToolCallId,
    event::Delta,
    session::Epoch,
    step::{CallLinks, Child, Step, StepWork},
    tool::ToolCall,
};
use remuda_store::{Commit, Then};
use remuda_transport::Transport as _;
use tokio::time::timeout;

use super::{
    Reader, Said, Wish,
    lab::{Lab, NEVER, PATIENCE, Place, next, pieces},
};

type Cursors = HashMap<SessionId, Cursor>;
type Seen = Vec<(SessionId, Cursor, &'static str)>;

/// Of a run, or of the session, with everything below.
fn tree(lab: &Lab, run: Option<RunId>) -> Wish {
    Wish { tree: Some(Cursors::new()), ..lab.wish(run, false) }
}

fn seen(said: Said) -> Seen {
    let Said::Events(events) = said else { panic!("{said:?}") };
    events.iter().map(|event| (event.session, event.cursor, event.body.name())).collect()
}

/// Everything up to the end of the stream.
async fn read_all(reader: &mut Reader) -> Seen {
    let mut all = Seen::new();
    while let Some(said) = timeout(PATIENCE, reader.next()).await.unwrap() {
        all.extend(seen(said.unwrap()));
    }
    all
}

/// Everything up to, and with, some number of events.
async fn read(reader: &mut Reader, count: usize) -> Seen {
    let mut all = Seen::new();
    while all.len() < count {
        all.extend(seen(next(reader).await));
    }
    assert_eq!(all.len(), count, "{all:?}");
    all
}

fn ended(place: &Place) -> EventBody {
    EventBody::SubagentEnded {
        call: ToolCallId::new(),
        session: place.session,
        run: place.run(),
        agent: "helper".to_owned(),
        state: RunState::Completed,
    }
}

/// What a run and its session say, when a run is the session's first.
fn story<'a>(place: &Place, said: impl IntoIterator<Item = &'a &'static str>) -> Seen {
    let said = said.into_iter().zip(2..);
    said.map(|(name, cursor)| (place.session, cursor, *name)).collect()
}

#[tokio::test]
async fn history_is_told_where_it_belongs() {
    let lab = Lab::new().await;
    let helper = lab.below(&lab.root).await;
    let deep = lab.below(&helper).await;
    lab.write(&lab.root, helper.started()).await;
    lab.write(&helper, deep.started()).await;
    lab.write(&deep, EventBody::RunStopped).await;
    lab.end_silently(&deep).await;
    lab.write(&helper, ended(&deep)).await;
    lab.end_silently(&helper).await;
    lab.write(&lab.root, ended(&helper)).await;
    lab.end_silently(&lab.root).await;

    let mut reader = lab.reader(tree(&lab, Some(lab.root.run())), NEVER).await;
    let root = story(&lab.root, &["run.queued", "subagent.started", "subagent.ended", "run.completed"]);
    let above = story(&helper, &["run.queued", "subagent.started", "subagent.ended", "run.completed"]);
    let below = story(&deep, &["run.queued", "run.stopped", "run.completed"]);
    let expected = [&root[..2], &above[..2], &below, &above[2..], &root[2..]].concat();
    assert_eq!(read_all(&mut reader).await, expected);

    // Who has seen all of it gets nothing more, and an end.
    let after = root.last().unwrap().1;
    let cursors = Cursors::from([(helper.session, 5), (deep.session, 4)]);
    let wish = Wish { after, tree: Some(cursors), ..tree(&lab, Some(lab.root.run())) };
    assert_eq!(read_all(&mut lab.reader(wish, NEVER).await).await, []);
    // Who did not ask for what is below does not get it.
    let wish = lab.wish(Some(lab.root.run()), false);
    assert_eq!(read_all(&mut lab.reader(wish, NEVER).await).await, root);
}

#[tokio::test]
async fn what_happens_below_comes_live_and_before_the_end() {
    let lab = Lab::new().await;
    let (one, two) = (lab.below(&lab.root).await, lab.below(&lab.root).await);
    let mut reader = lab.reader(tree(&lab, Some(lab.root.run())), NEVER).await;
    assert_eq!(read(&mut reader, 1).await, story(&lab.root, &["run.queued"]));
    lab.tell(&lab.root, one.started()).await;
    lab.tell(&lab.root, two.started()).await;
    let begun = read(&mut reader, 4).await;
    assert_eq!(begun[1], (one.session, 2, "run.queued"));
    assert_eq!(begun[3], (two.session, 2, "run.queued"));
    lab.tell(&two, EventBody::RunStopped).await;
    assert_eq!(read(&mut reader, 1).await, [(two.session, 3, "run.stopped")]);
    lab.tell(&one, EventBody::RunStopped).await;
    assert_eq!(read(&mut reader, 1).await, [(one.session, 3, "run.stopped")]);
    lab.end(&one).await;
    assert_eq!(read(&mut reader, 1).await, [(one.session, 4, "run.completed")]);
    // Nobody is told of the end of the other one, and yet it comes before the end of the whole.
    lab.end_silently(&two).await;
    lab.end(&lab.root).await;
    let rest = read_all(&mut reader).await;
    assert_eq!(rest, [(two.session, 4, "run.completed"), (lab.root.session, 5, "run.completed")]);
}

/// Commits the step whose call a child does.
async fn delegate(lab: &Lab, parent: &Place, child: &Place) {
    let (tool, arguments) = ("SubAgent".to_owned(), serde_json::json!({}));
    let call = ToolCall { id: ToolCallId::new(), tool, arguments, parallel: false, timeout: None };
    let child =
        Child { session: child.session, run: child.run(), agent: "helper".to_owned(), background: false };
    let step = Step {
        id: StepId::new(),
        index: 0,
        work: StepWork::ToolCall {
            call,
            outcome: None,
            links: CallLinks { child: Some(child), ..CallLinks::default() },
        },
        started_at: Timestamp::UNIX_EPOCH,
        finished_at: None,
        epoch: Epoch::default(),
    };
    let commit = Commit::new(parent.grant.fence, parent.run(), Then::Continue);
    lab.commit(Commit { steps: vec![step], ..commit }).await;
}

#[tokio::test]
async fn a_reader_comes_back_to_where_it_was_in_every_session() {
    let lab = Lab::new().await;
    let helper = lab.below(&lab.root).await;
    let deep = lab.below(&helper).await;
    lab.write(&lab.root, helper.started()).await;
    delegate(&lab, &lab.root, &helper).await;
    lab.write(&helper, deep.started()).await;
    delegate(&lab, &helper, &deep).await;
    lab.write(&deep, EventBody::RunStopped).await;

    // It has seen that the helper began and what that said so far, but nothing of the one below.
    let cursors = Cursors::from([(helper.session, 3)]);
    let wish = Wish { after: 3, tree: Some(cursors), ..tree(&lab, Some(lab.root.run())) };
    let mut reader = lab.reader(wish, NEVER).await;
    assert_eq!(read(&mut reader, 2).await, story(&deep, &["run.queued", "run.stopped"]));
    lab.end(&deep).await;
    lab.end(&helper).await;
    let mut ends = read(&mut reader, 2).await;
    ends.sort_by_key(|(session, ..)| *session != deep.session);
    assert_eq!(ends, [(deep.session, 4, "run.completed"), (helper.session, 4, "run.completed")]);
    lab.end(&lab.root).await;
    assert_eq!(read_all(&mut reader).await, [(lab.root.session, 4, "run.completed")]);
}

#[tokio::test]
async fn a_session_that_helps_again_is_told_of_without_hole_or_repeat() {
    let lab = Lab::new().await;
    let first = lab.below(&lab.root).await;
    let mut reader = lab.reader(tree(&lab, Some(lab.root.run())), NEVER).await;
    read(&mut reader, 1).await;
    lab.tell(&lab.root, first.started()).await;
    read(&mut reader, 2).await;
    lab.end_silently(&first).await;
    // Someone else uses the session in between.
    let other = lab.again(&first).await;
    lab.write(&other, EventBody::RunStopped).await;
    lab.end(&other).await;
    let second = lab.again(&first).await;
    lab.tell(&second, EventBody::RunStopped).await;
    lab.tell(&lab.root, second.started()).await;
    lab.end(&second).await;
    let session = first.session;
    let expected = [
        (session, 3, "run.completed"),
        (session, 7, "run.queued"),
        (session, 8, "run.stopped"),
        (session, 9, "run.completed"),
    ];
    let mut below = read(&mut reader, 5).await;
    below.retain(|(of, ..)| *of == session);
    assert_eq!(below, expected);
    lab.end(&lab.root).await;
    assert_eq!(read_all(&mut reader).await, [(lab.root.session, 5, "run.completed")]);
}

#[tokio::test]
async fn pieces_come_from_below_too() {
    let lab = Lab::new().await;
    let helper = lab.below(&lab.root).await;
    let wish = Wish { deltas: true, ..tree(&lab, Some(lab.root.run())) };
    let mut reader = lab.reader(wish, NEVER).await;
    read(&mut reader, 1).await;
    lab.tell(&lab.root, helper.started()).await;
    read(&mut reader, 2).await;
    let piece = |run| Delta { run, ..lab.delta(MessageId::new(), 0) };
    let (wanted, other) = (piece(helper.run()), piece(RunId::new()));
    // Nobody listens before the helper's events were read, and then only to the helper's run.
    assert!(timeout(Duration::from_millis(50), reader.next()).await.is_err());
    lab.transport.publish_deltas(lab.tenant, helper.session, &[other, wanted.clone()]).await;
    assert_eq!(pieces(&mut reader).await, [wanted]);
}

#[tokio::test]
async fn nothing_is_told_of_other_tenants_and_other_runs() {
    let lab = Lab::new().await;
    let (foreign, helper) = (lab.foreign().await, lab.below(&lab.root).await);
    let mut reader = lab.reader(tree(&lab, Some(lab.root.run())), NEVER).await;
    lab.write(&lab.root, foreign.started()).await;
    lab.write(&lab.root, helper.started()).await;
    lab.end_silently(&helper).await;
    let other = lab.again(&helper).await;
    lab.write(&other, EventBody::RunStopped).await;
    lab.end_silently(&lab.root).await;
    let all = read_all(&mut reader).await;
    assert!(all.iter().all(|(session, ..)| *session != foreign.session), "{all:?}");
    let below: Seen = all.into_iter().filter(|(session, ..)| *session == helper.session).collect();
    assert_eq!(below, story(&helper, &["run.queued", "run.completed"]));
}

#[tokio::test]
async fn more_than_can_be_followed_at_once_are_told_of_later() {
    let lab = Lab::new().await;
    let mut helpers = Vec::new();
    for _ in 0..70 {
        let helper = lab.below(&lab.root).await;
        lab.write(&lab.root, helper.started()).await;
        helpers.push(helper);
    }
    let mut reader = lab.reader(tree(&lab, Some(lab.root.run())), NEVER).await;
    // All of them work: the last six have to wait.
    let begun = read(&mut reader, 1 + 70 + 64).await;
    assert_eq!(begun.iter().filter(|(_, _, name)| *name == "run.queued").count(), 1 + 64);
    for helper in &helpers {
        lab.end(helper).await;
    }
    lab.end(&lab.root).await;
    let rest = read_all(&mut reader).await;
    assert_eq!(rest.iter().filter(|(_, _, name)| *name == "run.queued").count(), 6);
    assert_eq!(rest.iter().filter(|(_, _, name)| *name == "run.completed").count(), 71);
    assert_eq!(rest.last().unwrap().0, lab.root.session);
}

#[tokio::test]
async fn a_session_tells_of_all_sessions_below() {
    let lab = Lab::new().await;
    let silent = lab.below(&lab.root).await;
    let deep = lab.below(&silent).await;
    let mut reader = lab.reader(tree(&lab, None), NEVER).await;
    let story = |place: &Place| [(place.session, 1, "session.created"), (place.session, 2, "run.queued")];
    // No event tells of them: they are found in the store, once the session itself was read.
    let mut all = read(&mut reader, 6).await;
    assert_eq!(all[..2], story(&lab.root));
    all.sort_by_key(|(session, cursor, _)| (*session == deep.session, *session == silent.session, *cursor));
    assert_eq!(all[2..4], story(&silent));
    assert_eq!(all[4..], story(&deep));
    lab.end(&deep).await;
    assert_eq!(read(&mut reader, 1).await, [(deep.session, 3, "run.completed")]);
    // The end of a run is no end of the stream.
    lab.end(&lab.root).await;
    assert_eq!(read(&mut reader, 1).await, [(lab.root.session, 3, "run.completed")]);
    lab.end(&silent).await;
    assert_eq!(read(&mut reader, 1).await, [(silent.session, 3, "run.completed")]);
}

#[tokio::test]
async fn a_cursor_from_the_future_is_refused_below_too() {
    let lab = Lab::new().await;
    let helper = lab.below(&lab.root).await;
    let wish = Wish { tree: Some(Cursors::from([(helper.session, 99)])), ..tree(&lab, Some(lab.root.run())) };
    let mut reader = lab.reader(wish, NEVER).await;
    lab.write(&lab.root, helper.started()).await;
    read(&mut reader, 2).await;
    let error = timeout(PATIENCE, reader.next()).await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.field(), Some("tree_cursors"));
    assert!(reader.next().await.is_none());
}
