use std::{sync::Arc, time::Duration};

use remuda_domain::{
    ApprovalId, MessageId, Run, RunId, RunInput, RunState, SessionId, TenantId, ToolCallId,
    approval::{ApprovalRequest, ApprovalState, call_hash},
    message::Part,
    run::{MessageInput, ParkReason, RunEnd},
};
use remuda_store::{
    ChildSession, Commit, Finish, Grant, NewApproval, NewChild, ParkRequest, RunTransition, SessionChange,
};
use remuda_testkit::wait_for;
use serde_json::json;

use super::{
    super::{
        background_task::{BackgroundTask as _, Round},
        paged_scan::PagedScan,
        resume_ready::ResumeReady,
        stop_orphans::StopOrphans,
    },
    fixture::{Fixture, NEVER, PATIENCE},
};

fn completed() -> RunTransition {
    RunTransition::End(Finish {
        end: RunEnd { state: RunState::Completed, outcomes: Vec::new(), failure: None },
        started_at: Some(chrono::Utc::now()),
        stopped_ago: None,
        release: true,
        agent: None,
    })
}

/// A run that a worker executes, in a session of its own.
async fn running(fixture: &Fixture) -> (SessionId, Grant) {
    let session = fixture.runnable().await;
    let worker = fixture.worker(NEVER).await;
    (session, fixture.claim(session, worker).await)
}

fn resume_ready(fixture: &Fixture, scan: PagedScan) -> ResumeReady {
    ResumeReady {
        store: Arc::clone(&fixture.store),
        announcer: fixture.app.announcer().clone(),
        pace: NEVER,
        scan,
    }
}

fn stop_orphans(fixture: &Fixture, scan: PagedScan) -> StopOrphans {
    StopOrphans { store: Arc::clone(&fixture.store), app: fixture.app.clone(), pace: NEVER, scan }
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
        run: Run::queued(
            RunId::new(),
            (TenantId::new(), SessionId::new()),
            RunInput::Message(MessageInput { id: MessageId::new(), parts, agent: None }),
            Duration::from_secs(600),
        ),
    }
}

#[tokio::test]
async fn undecided_approval_expires_on_time_and_its_run_resumes() {
    let fixture = Fixture::new().await;
    let (_, grant) = running(&fixture).await;
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
    let parking =
        ParkRequest { approvals: vec![approval], needed: 1, ..ParkRequest::on(ParkReason::Approval) };
    let commit = Commit {
        approvals: vec![NewApproval { id: approval, request, expires_in }],
        ..Commit::new(grant.fence, grant.run.id, RunTransition::Park(parking))
    };
    fixture.store.commit(commit).await.unwrap();
    // The interval never elapses: only the expiry triggers the round.
    fixture.start(&fixture.app, NEVER);
    let expired = || async {
        let found = fixture.store.get_approval(fixture.tenant, approval).await.unwrap();
        found.state == ApprovalState::Expired
    };
    wait_for("the approval to expire", PATIENCE, expired).await;
    fixture.wait_for_tokens(1).await;
    assert_eq!(fixture.store.get_run(fixture.tenant, grant.run.id).await.unwrap().state, RunState::Queued);
    let task = fixture.wait_for_task("expire_approvals", |task| task.last_notable.is_some()).await;
    assert_eq!(task.last_notable.unwrap().result.unwrap()["sessions"], 1);
    fixture.shut_down().await;
}

#[tokio::test]
async fn parked_run_resumes_if_the_end_notice_of_its_last_child_was_lost() {
    let fixture = Fixture::new().await;
    let (session, grant) = running(&fixture).await;
    let child = child();
    let (below, run) = (child.run.session, child.run.id);
    let parking = ParkRequest { children: vec![run], needed: 1, ..ParkRequest::on(ParkReason::Children) };
    let commit = Commit {
        children: vec![child],
        ..Commit::new(grant.fence, grant.run.id, RunTransition::Park(parking))
    };
    fixture.store.commit(commit).await.unwrap();
    let mut task = resume_ready(&fixture, PagedScan::default());
    assert_eq!(task.round().await.unwrap(), Round::default(), "the child has not ended");
    let worker = fixture.worker(NEVER).await;
    let fence = fixture.claim(below, worker).await.fence;
    fixture.store.commit(Commit::new(fence, run, completed())).await.unwrap();
    assert_eq!(task.round().await.unwrap(), Round::of([("resumed", 1)]));
    fixture.wait_for_tokens(1).await;
    let parent = fixture.store.get_run(fixture.tenant, grant.run.id).await.unwrap();
    assert_eq!((parent.state, parent.session), (RunState::Queued, session));
    assert_eq!(task.round().await.unwrap(), Round::default());
    drop(task);
    fixture.shut_down().await;
}

/// A round scans a bounded number of runs, and the next one continues there.
#[tokio::test]
async fn scan_continues_where_the_last_round_ended() {
    let fixture = Fixture::new().await;
    let mut parents = Vec::new();
    for _ in 0..3 {
        let (_, grant) = running(&fixture).await;
        let child = child();
        let (below, run) = (child.run.session, child.run.id);
        let parking = ParkRequest { children: vec![run], needed: 1, ..ParkRequest::on(ParkReason::Children) };
        let park = Commit::new(grant.fence, grant.run.id, RunTransition::Park(parking));
        fixture.store.commit(Commit { children: vec![child], ..park }).await.unwrap();
        parents.push((grant.run.id, below, run));
    }
    let some = PagedScan { page: 1, pages: 2, after: None };
    let mut task = resume_ready(&fixture, some);
    assert_eq!(task.round().await.unwrap(), Round::default());
    assert_eq!(task.scan.after, Some(parents[1].0));
    // The first one is scanned again only after the others.
    let worker = fixture.worker(NEVER).await;
    for (_, below, run) in [parents[0], parents[2]] {
        let fence = fixture.claim(below, worker).await.fence;
        fixture.store.commit(Commit::new(fence, run, completed())).await.unwrap();
    }
    assert_eq!(task.round().await.unwrap(), Round::of([("resumed", 1)]));
    assert_eq!(fixture.store.get_run(fixture.tenant, parents[2].0).await.unwrap().state, RunState::Queued);
    assert_eq!(task.scan.after, None);
    assert_eq!(task.round().await.unwrap(), Round::of([("resumed", 1)]));
    drop(task);
    // The second child, whose parent is alive, comes before the orphan.
    let (_, grant) = running(&fixture).await;
    let orphan = child();
    let run = orphan.run.id;
    let make = Commit::new(grant.fence, grant.run.id, RunTransition::Continue);
    fixture.store.commit(Commit { children: vec![orphan], ..make }).await.unwrap();
    fixture.store.commit(Commit::new(grant.fence, grant.run.id, completed())).await.unwrap();
    let mut task = stop_orphans(&fixture, PagedScan { page: 1, pages: 1, after: None });
    assert_eq!(task.round().await.unwrap(), Round::default());
    assert_eq!(task.scan.after, Some(parents[1].2));
    assert_eq!(task.round().await.unwrap(), Round::of([("ended_runs", 1)]));
    assert_eq!(fixture.store.get_run(fixture.tenant, run).await.unwrap().state, RunState::Cancelled);
    drop(task);
    fixture.shut_down().await;
}

#[tokio::test]
async fn child_runs_of_an_ended_run_are_cancelled() {
    let fixture = Fixture::new().await;
    let (_, grant) = running(&fixture).await;
    let (waiting, executing) = (child(), child());
    let (idle, busy) = (waiting.run.id, executing.run.id);
    let executes_in = executing.run.session;
    let commit = Commit {
        children: vec![waiting, executing],
        ..Commit::new(grant.fence, grant.run.id, RunTransition::Continue)
    };
    let made: Vec<SessionChange> = fixture.store.commit(commit).await.unwrap().children;
    assert_eq!(made.len(), 2);
    let worker = fixture.worker(NEVER).await;
    fixture.claim(executes_in, worker).await;
    let mut task = stop_orphans(&fixture, PagedScan::default());
    assert_eq!(task.round().await.unwrap(), Round::default(), "their parent is still running");
    let mut signals = fixture.transport.inner.subscribe_signals(worker).await.unwrap();
    fixture.store.commit(Commit::new(grant.fence, grant.run.id, completed())).await.unwrap();
    assert_eq!(task.round().await.unwrap(), Round::of([("ended_runs", 1), ("told", 1)]));
    assert_eq!(fixture.store.get_run(fixture.tenant, idle).await.unwrap().state, RunState::Cancelled);
    assert!(fixture.store.get_run(fixture.tenant, busy).await.unwrap().cancel.is_some());
    let signal = tokio::time::timeout(PATIENCE, signals.next()).await.unwrap();
    assert!(format!("{signal:?}").contains(&busy.to_string()), "{signal:?}");
    drop(task);
    fixture.shut_down().await;
}
