//! Readers of trees of sessions.

use std::{collections::HashMap, time::Duration};

use remuda_domain::{
    Cursor, EventBody, MessageId, RunId, RunState, SessionId, StepId, Timestamp, ToolCallId,
    event::Delta,
    session::Epoch,
    step::{CallLinks, Child, Step, StepWork},
    tool::ToolCall,
};
use remuda_store::{Commit, RunTransition};
use remuda_transport::Transport as _;
use tokio::time::timeout;

use super::{
    Batch, ReadRequest, Reader,
    fixture::{Fixture, NEVER, TEST_TIMEOUT, TestSession, next, next_deltas},
};

type Cursors = HashMap<SessionId, Cursor>;
type Seen = Vec<(SessionId, Cursor, &'static str)>;

/// A request for a run, or for the session, including descendants.
fn tree(fixture: &Fixture, run: Option<RunId>) -> ReadRequest {
    ReadRequest { tree: Some(Cursors::new()), ..fixture.request(run, false) }
}

fn seen(batch: Batch) -> Seen {
    let Batch::Events(events) = batch else { panic!("{batch:?}") };
    events.iter().map(|event| (event.session, event.cursor, event.body.name())).collect()
}

/// Everything up to the end of the stream.
async fn read_all(reader: &mut Reader) -> Seen {
    let mut all = Seen::new();
    while let Some(batch) = timeout(TEST_TIMEOUT, reader.next()).await.unwrap() {
        all.extend(seen(batch.unwrap()));
    }
    all
}

/// Exactly this number of events.
async fn read(reader: &mut Reader, count: usize) -> Seen {
    let mut all = Seen::new();
    while all.len() < count {
        all.extend(seen(next(reader).await));
    }
    assert_eq!(all.len(), count, "{all:?}");
    all
}

fn ended(test_session: &TestSession) -> EventBody {
    EventBody::SubagentEnded {
        call: ToolCallId::new(),
        session: test_session.session,
        run: test_session.run(),
        agent: "helper".to_owned(),
        state: RunState::Completed,
    }
}

/// The expected events of a session's first run, from cursor 2.
fn expected_events<'a>(
    test_session: &TestSession,
    batch: impl IntoIterator<Item = &'a &'static str>,
) -> Seen {
    let batch = batch.into_iter().zip(2..);
    batch.map(|(name, cursor)| (test_session.session, cursor, *name)).collect()
}

#[tokio::test]
async fn history_of_descendants_is_sent_where_it_happened() {
    let fixture = Fixture::new().await;
    let child = fixture.child_session(&fixture.root).await;
    let grandchild = fixture.child_session(&child).await;
    fixture.write(&fixture.root, child.started()).await;
    fixture.write(&child, grandchild.started()).await;
    fixture.write(&grandchild, EventBody::RunStopped).await;
    fixture.end_silently(&grandchild).await;
    fixture.write(&child, ended(&grandchild)).await;
    fixture.end_silently(&child).await;
    fixture.write(&fixture.root, ended(&child)).await;
    fixture.end_silently(&fixture.root).await;

    let mut reader = fixture.reader(tree(&fixture, Some(fixture.root.run())), NEVER).await;
    let root = expected_events(
        &fixture.root,
        &["run.queued", "subagent.started", "subagent.ended", "run.completed"],
    );
    let above =
        expected_events(&child, &["run.queued", "subagent.started", "subagent.ended", "run.completed"]);
    let below = expected_events(&grandchild, &["run.queued", "run.stopped", "run.completed"]);
    let expected = [&root[..2], &above[..2], &below, &above[2..], &root[2..]].concat();
    assert_eq!(read_all(&mut reader).await, expected);

    // A reader that has seen everything gets nothing but the end.
    let after = root.last().unwrap().1;
    let cursors = Cursors::from([(child.session, 5), (grandchild.session, 4)]);
    let request = ReadRequest { after, tree: Some(cursors), ..tree(&fixture, Some(fixture.root.run())) };
    assert_eq!(read_all(&mut fixture.reader(request, NEVER).await).await, []);
    // A reader that did not request descendants does not get them.
    let request = fixture.request(Some(fixture.root.run()), false);
    assert_eq!(read_all(&mut fixture.reader(request, NEVER).await).await, root);
}

#[tokio::test]
async fn events_of_children_come_live_and_before_the_end() {
    let fixture = Fixture::new().await;
    let (one, two) = (fixture.child_session(&fixture.root).await, fixture.child_session(&fixture.root).await);
    let mut reader = fixture.reader(tree(&fixture, Some(fixture.root.run())), NEVER).await;
    assert_eq!(read(&mut reader, 1).await, expected_events(&fixture.root, &["run.queued"]));
    fixture.write_and_publish(&fixture.root, one.started()).await;
    fixture.write_and_publish(&fixture.root, two.started()).await;
    let begun = read(&mut reader, 4).await;
    assert_eq!(begun[1], (one.session, 2, "run.queued"));
    assert_eq!(begun[3], (two.session, 2, "run.queued"));
    fixture.write_and_publish(&two, EventBody::RunStopped).await;
    assert_eq!(read(&mut reader, 1).await, [(two.session, 3, "run.stopped")]);
    fixture.write_and_publish(&one, EventBody::RunStopped).await;
    assert_eq!(read(&mut reader, 1).await, [(one.session, 3, "run.stopped")]);
    fixture.end(&one).await;
    assert_eq!(read(&mut reader, 1).await, [(one.session, 4, "run.completed")]);
    // The end of the other child is not published, and yet it comes before the end of the stream.
    fixture.end_silently(&two).await;
    fixture.end(&fixture.root).await;
    let rest = read_all(&mut reader).await;
    assert_eq!(rest, [(two.session, 4, "run.completed"), (fixture.root.session, 5, "run.completed")]);
}

/// Commits the step whose call the child executes.
async fn delegate(fixture: &Fixture, parent: &TestSession, child: &TestSession) {
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
    let commit = Commit::new(parent.grant.fence, parent.run(), RunTransition::Continue);
    fixture.commit(Commit { steps: vec![step], ..commit }).await;
}

#[tokio::test]
async fn reader_resumes_at_its_cursor_in_every_session() {
    let fixture = Fixture::new().await;
    let child = fixture.child_session(&fixture.root).await;
    let grandchild = fixture.child_session(&child).await;
    fixture.write(&fixture.root, child.started()).await;
    delegate(&fixture, &fixture.root, &child).await;
    fixture.write(&child, grandchild.started()).await;
    delegate(&fixture, &child, &grandchild).await;
    fixture.write(&grandchild, EventBody::RunStopped).await;

    // It has seen the start of the child and its events so far, but nothing of the grandchild.
    let cursors = Cursors::from([(child.session, 3)]);
    let request = ReadRequest { after: 3, tree: Some(cursors), ..tree(&fixture, Some(fixture.root.run())) };
    let mut reader = fixture.reader(request, NEVER).await;
    assert_eq!(read(&mut reader, 2).await, expected_events(&grandchild, &["run.queued", "run.stopped"]));
    fixture.end(&grandchild).await;
    fixture.end(&child).await;
    let mut ends = read(&mut reader, 2).await;
    ends.sort_by_key(|(session, ..)| *session != grandchild.session);
    assert_eq!(ends, [(grandchild.session, 4, "run.completed"), (child.session, 4, "run.completed")]);
    fixture.end(&fixture.root).await;
    assert_eq!(read_all(&mut reader).await, [(fixture.root.session, 4, "run.completed")]);
}

#[tokio::test]
async fn child_session_used_again_is_followed_without_gap_or_repeat() {
    let fixture = Fixture::new().await;
    let first = fixture.child_session(&fixture.root).await;
    let mut reader = fixture.reader(tree(&fixture, Some(fixture.root.run())), NEVER).await;
    read(&mut reader, 1).await;
    fixture.write_and_publish(&fixture.root, first.started()).await;
    read(&mut reader, 2).await;
    fixture.end_silently(&first).await;
    // Another caller uses the session in between.
    let other = fixture.next_run(&first).await;
    fixture.write(&other, EventBody::RunStopped).await;
    fixture.end(&other).await;
    let second = fixture.next_run(&first).await;
    fixture.write_and_publish(&second, EventBody::RunStopped).await;
    fixture.write_and_publish(&fixture.root, second.started()).await;
    fixture.end(&second).await;
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
    fixture.end(&fixture.root).await;
    assert_eq!(read_all(&mut reader).await, [(fixture.root.session, 5, "run.completed")]);
}

#[tokio::test]
async fn deltas_of_children_arrive_too() {
    let fixture = Fixture::new().await;
    let child = fixture.child_session(&fixture.root).await;
    let request = ReadRequest { deltas: true, ..tree(&fixture, Some(fixture.root.run())) };
    let mut reader = fixture.reader(request, NEVER).await;
    read(&mut reader, 1).await;
    fixture.write_and_publish(&fixture.root, child.started()).await;
    read(&mut reader, 2).await;
    let text_delta = |run| Delta { run, ..fixture.delta(MessageId::new(), 0) };
    let (wanted, other) = (text_delta(child.run()), text_delta(RunId::new()));
    // The subscription opens after the child's events were read, and covers only the child's run.
    assert!(timeout(Duration::from_millis(50), reader.next()).await.is_err());
    fixture.transport.publish_deltas(fixture.tenant, child.session, &[other, wanted.clone()]).await;
    assert_eq!(next_deltas(&mut reader).await, [wanted]);
}

#[tokio::test]
async fn events_of_other_tenants_and_other_runs_are_not_sent() {
    let fixture = Fixture::new().await;
    let (foreign, child) = (fixture.other_tenant_session().await, fixture.child_session(&fixture.root).await);
    let mut reader = fixture.reader(tree(&fixture, Some(fixture.root.run())), NEVER).await;
    fixture.write(&fixture.root, foreign.started()).await;
    fixture.write(&fixture.root, child.started()).await;
    fixture.end_silently(&child).await;
    let other = fixture.next_run(&child).await;
    fixture.write(&other, EventBody::RunStopped).await;
    fixture.end_silently(&fixture.root).await;
    let all = read_all(&mut reader).await;
    assert!(all.iter().all(|(session, ..)| *session != foreign.session), "{all:?}");
    let below: Seen = all.into_iter().filter(|(session, ..)| *session == child.session).collect();
    assert_eq!(below, expected_events(&child, &["run.queued", "run.completed"]));
}

#[tokio::test]
async fn children_beyond_the_limit_are_followed_later() {
    let fixture = Fixture::new().await;
    let mut helpers = Vec::new();
    for _ in 0..70 {
        let child = fixture.child_session(&fixture.root).await;
        fixture.write(&fixture.root, child.started()).await;
        helpers.push(child);
    }
    let mut reader = fixture.reader(tree(&fixture, Some(fixture.root.run())), NEVER).await;
    // All of them run: the last six have to wait.
    let begun = read(&mut reader, 1 + 70 + 64).await;
    assert_eq!(begun.iter().filter(|(_, _, name)| *name == "run.queued").count(), 1 + 64);
    for child in &helpers {
        fixture.end(child).await;
    }
    fixture.end(&fixture.root).await;
    let rest = read_all(&mut reader).await;
    assert_eq!(rest.iter().filter(|(_, _, name)| *name == "run.queued").count(), 6);
    assert_eq!(rest.iter().filter(|(_, _, name)| *name == "run.completed").count(), 71);
    assert_eq!(rest.last().unwrap().0, fixture.root.session);
}

#[tokio::test]
async fn stream_of_a_session_includes_all_descendants() {
    let fixture = Fixture::new().await;
    let silent = fixture.child_session(&fixture.root).await;
    let grandchild = fixture.child_session(&silent).await;
    let mut reader = fixture.reader(tree(&fixture, None), NEVER).await;
    let first_events = |test_session: &TestSession| {
        [(test_session.session, 1, "session.created"), (test_session.session, 2, "run.queued")]
    };
    // No event announces them: they are found in the store, once the session itself was read.
    let mut all = read(&mut reader, 6).await;
    assert_eq!(all[..2], first_events(&fixture.root));
    all.sort_by_key(|(session, cursor, _)| {
        (*session == grandchild.session, *session == silent.session, *cursor)
    });
    assert_eq!(all[2..4], first_events(&silent));
    assert_eq!(all[4..], first_events(&grandchild));
    fixture.end(&grandchild).await;
    assert_eq!(read(&mut reader, 1).await, [(grandchild.session, 3, "run.completed")]);
    // The end of a run does not end the stream.
    fixture.end(&fixture.root).await;
    assert_eq!(read(&mut reader, 1).await, [(fixture.root.session, 3, "run.completed")]);
    fixture.end(&silent).await;
    assert_eq!(read(&mut reader, 1).await, [(silent.session, 3, "run.completed")]);
}

#[tokio::test]
async fn future_cursor_of_a_child_session_is_rejected() {
    let fixture = Fixture::new().await;
    let child = fixture.child_session(&fixture.root).await;
    let request = ReadRequest {
        tree: Some(Cursors::from([(child.session, 99)])),
        ..tree(&fixture, Some(fixture.root.run()))
    };
    let mut reader = fixture.reader(request, NEVER).await;
    fixture.write(&fixture.root, child.started()).await;
    read(&mut reader, 2).await;
    let error = timeout(TEST_TIMEOUT, reader.next()).await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.field(), Some("tree_cursors"));
    assert!(reader.next().await.is_none());
}
