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
        task::{BackgroundTask as _, Round},
        wake_sessions::WakeSessions,
    },
    lab::{Lab, NEVER},
};
use crate::app::Submission;

/// As many rounds as there are from one full sweep to the next.
const ROUNDS: u32 = 12;

fn task(lab: &Lab) -> WakeSessions {
    let transport = Arc::clone(&lab.transport) as Arc<dyn Transport>;
    WakeSessions::new(Arc::clone(&lab.store), transport, lab.app.alarm().clone(), NEVER)
}

fn woken(count: u64) -> Round {
    Round::of([("woken", count)])
}

#[tokio::test]
async fn a_session_whose_token_was_never_published_is_woken() {
    let lab = Lab::new().await;
    lab.runnable().await;
    lab.runnable().await;
    let mut task = task(&lab);
    assert_eq!(task.round().await.unwrap(), woken(2));
    assert_eq!(lab.tokens().await.waiting, 2);
    assert_eq!(task.round().await.unwrap(), Round::default());
    lab.end().await;
}

#[tokio::test]
async fn nothing_is_published_while_there_are_as_many_tokens_as_sessions() {
    let lab = Lab::new().await;
    for _ in 0..3 {
        let session = lab.runnable().await;
        assert_eq!(lab.publish(session).await, Published::Stored);
    }
    let mut task = task(&lab);
    task.round().await.unwrap();
    assert_eq!(lab.transport.published(), 3, "the first round tries them all");
    for _ in 1..ROUNDS {
        assert_eq!(task.round().await.unwrap(), Round::default());
        assert_eq!(lab.transport.published(), 0);
    }
    task.round().await.unwrap();
    assert_eq!(
        lab.transport.published(),
        3,
        "now and then all are tried, as counts can be equal by accident"
    );

    lab.runnable().await;
    assert_eq!(task.round().await.unwrap(), woken(1), "one is missing");
    lab.end().await;
}

#[tokio::test]
async fn sessions_of_another_pool_are_seen() {
    let lab = Lab::new().await;
    let mut task = task(&lab);
    task.round().await.unwrap();
    let session = lab.session("gpu").await;
    lab.submit(session).await;
    assert_eq!(task.round().await.unwrap(), woken(1));
    lab.transport.published();
    assert_eq!(task.round().await.unwrap(), Round::default());
    assert_eq!(lab.transport.published(), 0, "the tokens of the new pool are counted now");
    lab.end().await;
}

#[tokio::test]
async fn a_shortfall_that_proved_to_be_none_is_not_swept_for_again() {
    let lab = Lab::new().await;
    let mut task = task(&lab);
    task.round().await.unwrap();
    // A session in a worker's hands whose token is gone, as between an ack and the next look.
    let owned = lab.runnable().await;
    lab.claim(owned, lab.worker(NEVER).await).await;
    let waiting = lab.runnable().await;
    lab.publish(waiting).await;
    assert_eq!(task.round().await.unwrap(), Round::default());
    assert_eq!(lab.transport.published(), 1, "one seems to be missing");
    assert_eq!(task.round().await.unwrap(), Round::default());
    assert_eq!(lab.transport.published(), 0, "the same one");
    lab.runnable().await;
    assert_eq!(task.round().await.unwrap(), woken(1), "another one");
    lab.end().await;
}

#[tokio::test]
async fn a_wake_up_that_could_not_be_sent_is_made_up_for_without_a_timer() {
    let lab = Lab::new().await;
    lab.start(&lab.app, NEVER);
    lab.wait_for_task("wake_sessions", |_| true).await;
    lab.transport.set_down(true);
    let caller = Principal { tenant: lab.tenant, subject: "test".to_owned(), scopes: vec![Scope::Write] };
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
        making: Default::default(),
        input: RunInput::Tools(ToolsInput { calls: vec![call], continue_on_error: false, record: false }),
        input_bytes: 2,
        timeout: None,
        if_busy: IfBusy::Enqueue,
        idempotency_key: None,
        cause: None,
        budget: None,
        wait: None,
    };
    lab.app.submit(&caller, submission).await.unwrap();
    lab.wait_for_task("wake_sessions", |task| task.failures > 0).await;
    assert_eq!(lab.tokens().await.waiting, 0);
    lab.transport.set_down(false);
    lab.wait_for_tokens(1).await;
    let healthy = |task: &remuda_domain::task::TaskStatus| task.last.result.is_ok();
    lab.wait_for_task("wake_sessions", healthy).await;
    lab.end().await;
}

#[tokio::test]
async fn a_wiped_nats_is_noticed_when_it_is_back() {
    for binary in nats_binaries() {
        let mut server = NatsServer::start(&binary).unwrap();
        let options = NatsOptions {
            servers: vec![server.url()],
            request_timeout: Duration::from_secs(2),
            ..NatsOptions::default()
        };
        let nats = Nats::connect(options).await.unwrap();
        nats.prepare(&["default".parse().unwrap()]).await.unwrap();
        let lab = Lab::on(Arc::new(nats)).await;
        for _ in 0..20 {
            lab.runnable().await;
        }
        lab.start(&lab.app, NEVER);
        lab.wait_for_tokens(20).await;
        server.wipe_and_restart().unwrap();
        lab.wait_for_tokens(20).await;
        lab.end().await;
    }
}
