use std::{sync::Arc, time::Duration};

use remuda_domain::{
    ApprovalId, MessageId, RunId, RunInput, RunState, SessionId, ToolCallId,
    approval::{ApprovalRequest, ApprovalState, call_hash},
    message::Part,
    run::{MessageInput, ParkReason, RunEnd},
};
use remuda_store::{
    ChildSession, Commit, Finish, Grant, NewApproval, NewChild, Parking, SessionChange, Then,
};
use remuda_testkit::wait_for;
use serde_json::json;

use super::{
    super::{
        resume_ready::ResumeReady,
        stop_orphans::StopOrphans,
        task::{BackgroundTask as _, Round},
        walk::Walk,
    },
    lab::{Lab, NEVER, PATIENCE},
};

fn completed() -> Then {
    Then::End(Finish {
        end: RunEnd { state: RunState::Completed, outcomes: Vec::new(), failure: None },
        started_at: Some(chrono::Utc::now()),
        stopped_ago: None,
        give_up: true,
        agent: None,
    })
}

/// A run that a worker has begun, in a session of its own.
async fn begun(lab: &Lab) -> (SessionId, Grant) {
    let session = lab.runnable().await;
    let worker = lab.worker(NEVER).await;
    (session, lab.claim(session, worker).await)
}

fn resume_ready(lab: &Lab, walk: Walk) -> ResumeReady {
    ResumeReady { store: Arc::clone(&lab.store), waker: lab.app.waker().clone(), pace: NEVER, walk }
}

fn stop_orphans(lab: &Lab, walk: Walk) -> StopOrphans {
    StopOrphans { store: Arc::clone(&lab.store), app: lab.app.clone(), pace: NEVER, walk }
}

fn child() -> NewChild {
    let parts = vec![Part::text("look")];
    NewChild {
        new_session: Some(ChildSession {
            title: String::new(),
            agent: "explore".to_owned(),
            model: None,
            permissions: Default::default(),
        }),
        permissions: None,
        session: SessionId::new(),
        run: RunId::new(),
        input: RunInput::Message(MessageInput { id: MessageId::new(), parts, agent: None }),
        timeout: Duration::from_secs(600),
        traceparent: None,
    }
}

#[tokio::test]
async fn a_question_that_nobody_answers_expires_on_time_and_its_run_goes_on() {
    let lab = Lab::new().await;
    let (_, grant) = begun(&lab).await;
    let (approval, arguments) = (ApprovalId::new(), json!({ "command": "make" }));
    let request = ApprovalRequest {
        call: ToolCallId::new(),
        tool: "Bash".to_owned(),
        call_hash: call_hash("Bash", &arguments),
        arguments,
        agent: "build".to_owned(),
        permission: "bash".to_owned(),
        patterns: vec!["make".to_owned()],
        always: Vec::new(),
        why: "the agent asks about bash".to_owned(),
        approvers: Vec::new(),
    };
    let expires_in = Some(Duration::from_millis(300));
    let parking = Parking { approvals: vec![approval], needed: 1, ..Parking::on(ParkReason::Approval) };
    let commit = Commit {
        approvals: vec![NewApproval { id: approval, request, expires_in }],
        ..Commit::new(grant.fence, grant.run.id, Then::Park(parking))
    };
    lab.store.commit(commit).await.unwrap();
    // No timer comes to help: only the moment at which the question expires.
    lab.start(&lab.app, NEVER);
    let expired = || async {
        let found = lab.store.get_approval(lab.tenant, approval).await.unwrap();
        found.state == ApprovalState::Expired
    };
    wait_for("the question to expire", PATIENCE, expired).await;
    lab.wait_for_tokens(1).await;
    assert_eq!(lab.store.get_run(lab.tenant, grant.run.id).await.unwrap().state, RunState::Queued);
    let task = lab.wait_for_task("expire_approvals", |task| task.last_notable.is_some()).await;
    assert_eq!(task.last_notable.unwrap().result.unwrap()["sessions"], 1);
    lab.end().await;
}

#[tokio::test]
async fn a_run_goes_on_whose_child_ended_while_nobody_told_it() {
    let lab = Lab::new().await;
    let (session, grant) = begun(&lab).await;
    let child = child();
    let (below, run) = (child.session, child.run);
    let parking = Parking { children: vec![run], needed: 1, ..Parking::on(ParkReason::Children) };
    let commit =
        Commit { children: vec![child], ..Commit::new(grant.fence, grant.run.id, Then::Park(parking)) };
    lab.store.commit(commit).await.unwrap();
    let mut task = resume_ready(&lab, Walk::default());
    assert_eq!(task.round().await.unwrap(), Round::default(), "the child has not ended");
    let worker = lab.worker(NEVER).await;
    let fence = lab.claim(below, worker).await.fence;
    lab.store.commit(Commit::new(fence, run, completed())).await.unwrap();
    assert_eq!(task.round().await.unwrap(), Round::of([("resumed", 1)]));
    lab.wait_for_tokens(1).await;
    let parent = lab.store.get_run(lab.tenant, grant.run.id).await.unwrap();
    assert_eq!((parent.state, parent.session), (RunState::Queued, session));
    assert_eq!(task.round().await.unwrap(), Round::default());
    drop(task);
    lab.end().await;
}

/// However many wait, a round looks at some of them, and the next one goes on there.
#[tokio::test]
async fn rounds_go_on_where_the_last_one_ended() {
    let lab = Lab::new().await;
    let mut parents = Vec::new();
    for _ in 0..3 {
        let (_, grant) = begun(&lab).await;
        let child = child();
        let (below, run) = (child.session, child.run);
        let parking = Parking { children: vec![run], needed: 1, ..Parking::on(ParkReason::Children) };
        let park = Commit::new(grant.fence, grant.run.id, Then::Park(parking));
        lab.store.commit(Commit { children: vec![child], ..park }).await.unwrap();
        parents.push((grant.run.id, below, run));
    }
    let some = Walk { page: 1, pages: 2, after: None };
    let mut task = resume_ready(&lab, some);
    assert_eq!(task.round().await.unwrap(), Round::default());
    assert_eq!(task.walk.after, Some(parents[1].0));
    // The first one has to wait until the others were looked at.
    let worker = lab.worker(NEVER).await;
    for (_, below, run) in [parents[0], parents[2]] {
        let fence = lab.claim(below, worker).await.fence;
        lab.store.commit(Commit::new(fence, run, completed())).await.unwrap();
    }
    assert_eq!(task.round().await.unwrap(), Round::of([("resumed", 1)]));
    assert_eq!(lab.store.get_run(lab.tenant, parents[2].0).await.unwrap().state, RunState::Queued);
    assert_eq!(task.walk.after, None);
    assert_eq!(task.round().await.unwrap(), Round::of([("resumed", 1)]));
    drop(task);
    // The second child, whose parent lives, stands before the orphan.
    let (_, grant) = begun(&lab).await;
    let orphan = child();
    let run = orphan.run;
    let make = Commit::new(grant.fence, grant.run.id, Then::Continue);
    lab.store.commit(Commit { children: vec![orphan], ..make }).await.unwrap();
    lab.store.commit(Commit::new(grant.fence, grant.run.id, completed())).await.unwrap();
    let mut task = stop_orphans(&lab, Walk { page: 1, pages: 1, after: None });
    assert_eq!(task.round().await.unwrap(), Round::default());
    assert_eq!(task.walk.after, Some(parents[1].2));
    assert_eq!(task.round().await.unwrap(), Round::of([("ended_runs", 1)]));
    assert_eq!(lab.store.get_run(lab.tenant, run).await.unwrap().state, RunState::Cancelled);
    drop(task);
    lab.end().await;
}

#[tokio::test]
async fn what_a_finished_run_left_behind_is_stopped() {
    let lab = Lab::new().await;
    let (_, grant) = begun(&lab).await;
    let (waiting, executing) = (child(), child());
    let (idle, busy) = (waiting.run, executing.run);
    let executes_in = executing.session;
    let commit = Commit {
        children: vec![waiting, executing],
        ..Commit::new(grant.fence, grant.run.id, Then::Continue)
    };
    let made: Vec<SessionChange> = lab.store.commit(commit).await.unwrap().children;
    assert_eq!(made.len(), 2);
    let worker = lab.worker(NEVER).await;
    lab.claim(executes_in, worker).await;
    let mut task = stop_orphans(&lab, Walk::default());
    assert_eq!(task.round().await.unwrap(), Round::default(), "their parent still works");
    let mut signals = lab.transport.inner.subscribe_signals(worker).await.unwrap();
    lab.store.commit(Commit::new(grant.fence, grant.run.id, completed())).await.unwrap();
    assert_eq!(task.round().await.unwrap(), Round::of([("ended_runs", 1), ("told", 1)]));
    assert_eq!(lab.store.get_run(lab.tenant, idle).await.unwrap().state, RunState::Cancelled);
    assert!(lab.store.get_run(lab.tenant, busy).await.unwrap().cancel.is_some());
    let heard = tokio::time::timeout(PATIENCE, signals.next()).await.unwrap();
    assert!(format!("{heard:?}").contains(&busy.to_string()), "{heard:?}");
    drop(task);
    lab.end().await;
}
