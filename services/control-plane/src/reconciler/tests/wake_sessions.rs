use std::{sync::Arc, time::Duration};

use remuda_domain::{
    RunInput, ToolCallId,
    identity::{Principal, Scope},
    run::{IfBusy, ToolsInput},
    tool::ToolCall,
};
use remuda_testkit::{NatsServer, nats_binaries};
use remuda_transport::{Nats, NatsOptions, Published, Transport};

use super::{
    super::{
        background_task::{BackgroundTask as _, Round},
        wake_sessions::WakeSessions,
    },
    fixture::{Fixture, NEVER},
};
use crate::app::Submission;

/// Rounds from one full sweep to the next.
const ROUNDS: u32 = 12;

fn task(fixture: &Fixture) -> WakeSessions {
    let transport = Arc::clone(&fixture.transport) as Arc<dyn Transport>;
    let dispatcher = fixture.dispatcher.clone();
    WakeSessions::new(
        Arc::clone(&fixture.store),
        transport,
        dispatcher,
        fixture.app.lost_wakeups().clone(),
        NEVER,
    )
}

fn woken(count: u64) -> Round {
    Round::of([("woken", count)])
}

#[tokio::test]
async fn session_whose_token_was_never_published_is_woken() {
    let fixture = Fixture::new().await;
    fixture.runnable().await;
    fixture.runnable().await;
    let mut task = task(&fixture);
    assert_eq!(task.round().await.unwrap(), woken(2));
    assert_eq!(fixture.tokens().await.waiting, 2);
    assert_eq!(task.round().await.unwrap(), Round::default());
    fixture.shut_down().await;
}

#[tokio::test]
async fn no_token_is_published_while_the_counts_match() {
    let fixture = Fixture::new().await;
    for _ in 0..3 {
        let session = fixture.runnable().await;
        assert_eq!(fixture.publish(session).await, Published::Stored);
    }
    let mut task = task(&fixture);
    task.round().await.unwrap();
    assert_eq!(fixture.transport.published(), 3, "the first round is a full sweep");
    for _ in 1..ROUNDS {
        assert_eq!(task.round().await.unwrap(), Round::default());
        assert_eq!(fixture.transport.published(), 0);
    }
    task.round().await.unwrap();
    assert_eq!(
        fixture.transport.published(),
        3,
        "a full sweep comes now and then, as counts can match by accident"
    );

    fixture.runnable().await;
    assert_eq!(task.round().await.unwrap(), woken(1), "one token is missing");
    fixture.shut_down().await;
}

#[tokio::test]
async fn sessions_of_a_new_pool_are_woken() {
    let fixture = Fixture::new().await;
    let mut task = task(&fixture);
    task.round().await.unwrap();
    let session = fixture.session("gpu").await;
    fixture.submit(session).await;
    assert_eq!(task.round().await.unwrap(), woken(1));
    fixture.transport.published();
    assert_eq!(task.round().await.unwrap(), Round::default());
    assert_eq!(fixture.transport.published(), 0, "the tokens of the new pool are counted now");
    fixture.shut_down().await;
}

#[tokio::test]
async fn same_apparent_shortfall_triggers_no_second_sweep() {
    let fixture = Fixture::new().await;
    let mut task = task(&fixture);
    task.round().await.unwrap();
    // A session that a worker owns and whose token was acked: the counts differ although nothing is missing.
    let owned = fixture.runnable().await;
    fixture.claim(owned, fixture.worker(NEVER).await).await;
    let waiting = fixture.runnable().await;
    fixture.publish(waiting).await;
    assert_eq!(task.round().await.unwrap(), Round::default());
    assert_eq!(fixture.transport.published(), 1, "one token seems to be missing");
    assert_eq!(task.round().await.unwrap(), Round::default());
    assert_eq!(fixture.transport.published(), 0, "the shortfall is the same");
    fixture.runnable().await;
    assert_eq!(task.round().await.unwrap(), woken(1), "the shortfall has grown");
    fixture.shut_down().await;
}

#[tokio::test]
async fn failed_wake_up_is_repeated_without_a_timer() {
    let fixture = Fixture::new().await;
    fixture.start(&fixture.app, NEVER);
    fixture.wait_for_task("wake_sessions", |_| true).await;
    fixture.transport.set_down(true);
    let caller = Principal { tenant: fixture.tenant, subject: "test".to_owned(), scopes: vec![Scope::Write] };
    let call = ToolCall {
        id: ToolCallId::new(),
        tool: "noop".to_owned(),
        arguments: serde_json::json!({}),
        parallel: false,
        timeout: None,
    };
    let submission = Submission {
        session: "s1".to_owned(),
        create_session: true,
        requirements: Default::default(),
        input: RunInput::Tools(ToolsInput { calls: vec![call], continue_on_error: false, record: false }),
        input_bytes: 2,
        timeout: None,
        if_busy: IfBusy::Enqueue,
        idempotency_key: None,
        cause: None,
        budget: None,
        labels: Default::default(),
        wait: None,
    };
    fixture.app.submit(&caller, submission).await.unwrap();
    fixture.wait_for_task("wake_sessions", |task| task.failures > 0).await;
    assert_eq!(fixture.tokens().await.waiting, 0);
    fixture.transport.set_down(false);
    fixture.wait_for_tokens(1).await;
    let healthy = |task: &remuda_domain::background_task::TaskStatus| task.last.result.is_ok();
    fixture.wait_for_task("wake_sessions", healthy).await;
    fixture.shut_down().await;
}

#[tokio::test]
async fn sessions_are_woken_after_nats_lost_its_state() {
    for binary in nats_binaries() {
        let mut server = NatsServer::start(&binary).unwrap();
        let options = NatsOptions {
            servers: vec![server.url()],
            request_timeout: Duration::from_secs(2),
            ..NatsOptions::default()
        };
        let nats = Nats::connect(options).await.unwrap();
        nats.provision(&["default".parse().unwrap()]).await.unwrap();
        let fixture = Fixture::on(Arc::new(nats)).await;
        for _ in 0..20 {
            fixture.runnable().await;
        }
        fixture.start(&fixture.app, NEVER);
        fixture.wait_for_tokens(20).await;
        server.wipe_and_restart().unwrap();
        fixture.wait_for_tokens(20).await;
        fixture.shut_down().await;
    }
}
