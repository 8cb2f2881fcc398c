//! NATS-specific tests: changed settings, restarted servers, and wiped servers.

use std::time::Duration;

use async_nats::jetstream::{
    self,
    stream::{Config, DiscardPolicy, RetentionPolicy},
};
use remuda_domain::{Code, Pool, SessionId, TenantId, WorkerId, worker::Signal};
use remuda_testkit::{NatsServer, nats_binaries, wait_for};
use remuda_transport::{Nats, NatsOptions, Published, Transport};
use tokio::time::{Instant, timeout};

use crate::support::{ACK_WAIT, LONG, connect, delta, event, options, pools, take_one};

async fn admin(server: &NatsServer) -> jetstream::Context {
    jetstream::new(async_nats::connect(server.url()).await.unwrap())
}

fn stream_name(options: &NatsOptions) -> String {
    format!("{}_TOKENS", options.prefix.to_uppercase())
}

/// Runs a test with a server of its own, once per version.
async fn on_each_server(test: impl AsyncFn(NatsServer)) {
    for binary in nats_binaries() {
        test(NatsServer::start(&binary).unwrap()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_stream_settings_are_repaired_and_each_difference_is_reported() {
    on_each_server(async |server| {
        let options = options(&server.url());
        let drifted = Config {
            name: stream_name(&options),
            subjects: vec![format!("{}.ready.>", options.prefix)],
            retention: RetentionPolicy::WorkQueue,
            discard: DiscardPolicy::Old,
            max_messages_per_subject: 1,
            max_age: Duration::from_secs(60),
            ..Default::default()
        };
        admin(&server).await.create_stream(drifted).await.unwrap();
        let nats = Nats::connect(options).await.unwrap();
        let report = nats.inspect().await.unwrap();
        assert!(report.problems.iter().any(|problem| problem.contains("discard")), "{report:?}");
        let repaired_settings = nats.provision(&pools()).await.unwrap().join("; ");
        for setting in
            ["discard is Old, want New", "discard_new_per_subject is false", "max_age", "max_msg_size"]
        {
            assert!(repaired_settings.contains(setting), "{setting} in {repaired_settings}");
        }
        assert!(!repaired_settings.contains("retention"), "{repaired_settings}");
        assert_eq!(nats.inspect().await.unwrap().problems, Vec::<String>::new());
        assert_eq!(nats.provision(&pools()).await.unwrap(), Vec::<String>::new());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_that_cannot_be_repaired_is_rejected() {
    on_each_server(async |server| {
        let options = options(&server.url());
        let foreign = Config {
            name: stream_name(&options),
            subjects: vec![format!("{}.ready.>", options.prefix)],
            retention: RetentionPolicy::Limits,
            ..Default::default()
        };
        admin(&server).await.create_stream(foreign).await.unwrap();
        let error = Nats::connect(options).await.unwrap().provision(&pools()).await.unwrap_err();
        assert_eq!(error.code(), Code::Internal);
        assert!(error.message().contains("retention is Limits, want WorkQueue"), "{error}");
    })
    .await;
}

/// Manual changes in a running system: the stream, a consumer's settings, a consumer that is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manual_changes_are_repaired_without_losing_tokens() {
    on_each_server(async |server| {
        let options = options(&server.url());
        let nats = connect(&options).await;
        let session = SessionId::new();
        nats.publish_token(&Pool::default(), TenantId::new(), session).await.unwrap();
        assert_eq!(nats.repair().await.unwrap(), Vec::<String>::new());
        let admin = admin(&server).await;
        let stream = admin.get_stream(stream_name(&options)).await.unwrap();
        let config = stream.cached_info().config.clone();
        let many = Config { max_messages_per_subject: -1, discard_new_per_subject: false, ..config };
        admin.update_stream(&many).await.unwrap();
        let patient = NatsOptions { ack_wait: ACK_WAIT * 2, ..options };
        let other = Nats::connect(patient).await.unwrap();
        let repaired_settings = other.repair().await.unwrap().join("; ");
        assert!(repaired_settings.contains("max_msgs_per_subject is -1"), "{repaired_settings}");
        assert!(
            repaired_settings.contains("pool-default") && repaired_settings.contains("ack_wait"),
            "{repaired_settings}"
        );
        let repaired_settings = nats.repair().await.unwrap().join("; ");
        assert!(
            repaired_settings.contains("ack_wait") && !repaired_settings.contains("max_msgs"),
            "{repaired_settings}"
        );
        assert_eq!(nats.inspect().await.unwrap().problems, Vec::<String>::new());
        let mut source = nats.tokens(&Pool::default()).await.unwrap();
        assert_eq!(take_one(&mut source).await.session(), session);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_twice_changes_nothing_and_the_report_is_clean() {
    on_each_server(async |server| {
        let options = options(&server.url());
        let nats = connect(&options).await;
        nats.provision(&pools()).await.unwrap();
        nats.publish_token(&Pool::default(), TenantId::new(), SessionId::new()).await.unwrap();
        let report = nats.inspect().await.unwrap();
        assert!(report.problems.is_empty(), "{report:?}");
        assert_eq!((report.messages, report.pending, report.orphans, report.consumers.len()), (1, 1, 0, 2));
        assert!(report.version.starts_with("2."));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_work_again_after_the_server_is_wiped() {
    on_each_server(async |mut server| {
        let nats = connect(&options(&server.url())).await;
        let (pool, tenant) = (Pool::default(), TenantId::new());
        let mut source = nats.tokens(&pool).await.unwrap();
        let lost = SessionId::new();
        nats.publish_token(&pool, tenant, lost).await.unwrap();
        let stale_token = take_one(&mut source).await;
        server.wipe_and_restart().unwrap();
        // A worker that was waiting all the time gets a token that is published after the wipe.
        let session = SessionId::new();
        let publish = wait_for("a publish that works", LONG, || async {
            nats.publish_token(&pool, tenant, session).await.ok()
        });
        let start = Instant::now();
        let take = async {
            loop {
                if let Ok(mut tokens) = source.take(1).await
                    && let Some(token) = tokens.pop()
                {
                    return token;
                }
            }
        };
        let (published, token) = tokio::join!(publish, timeout(LONG, take));
        assert_eq!(published, Published::Stored);
        let token = token.unwrap();
        assert_eq!(token.session(), session);
        token.finish().await.unwrap();
        // The old token is gone: its subject is free, and finishing the old token does no harm.
        drop(timeout(LONG, stale_token.finish()).await.unwrap());
        assert_eq!(nats.publish_token(&pool, tenant, lost).await.unwrap(), Published::Stored);
        assert!(start.elapsed() < LONG);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_stream_or_consumer_is_created_again() {
    on_each_server(async |server| {
        let options = options(&server.url());
        let nats = connect(&options).await;
        let admin = admin(&server).await;
        let (pool, tenant) = (Pool::default(), TenantId::new());
        admin.delete_stream(stream_name(&options)).await.unwrap();
        assert_eq!(
            nats.publish_token(&pool, tenant, SessionId::new()).await.unwrap(),
            Published::Stored,
            "a publish repairs immediately"
        );
        let mut source = nats.tokens(&pool).await.unwrap();
        take_one(&mut source).await.finish().await.unwrap();
        // While a pull request is open.
        let delete = async {
            wait_for("a waiting pull", LONG, || async {
                nats.inspect().await.unwrap().consumers.iter().any(|consumer| consumer.waiting_pulls > 0)
            })
            .await;
            // NATS 2.9.10 may report that it failed to remove the directory of a consumer that it has removed.
            admin.delete_consumer_from_stream("pool-default", stream_name(&options)).await.ok();
            nats.publish_token(&pool, tenant, SessionId::new()).await.unwrap();
        };
        let (token, ()) = tokio::join!(take_one(&mut source), delete);
        token.finish().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transport_works_again_after_a_server_restart() {
    on_each_server(async |mut server| {
        let nats = connect(&options(&server.url())).await;
        let (pool, tenant, worker) = (Pool::default(), TenantId::new(), WorkerId::new());
        let (session, next) = (SessionId::new(), SessionId::new());
        let mut source = nats.tokens(&pool).await.unwrap();
        let mut signals = nats.subscribe_signals(worker).await.unwrap();
        let mut events = nats.subscribe_events(tenant, session).await.unwrap();
        let mut deltas = nats.subscribe_deltas(tenant, session).await.unwrap();
        assert!(timeout(Duration::from_millis(100), source.take(2)).await.is_err(), "a request is open");
        nats.publish_token(&pool, tenant, session).await.unwrap();
        server.kill().unwrap();
        assert_eq!(
            timeout(LONG, events.next()).await.unwrap(),
            None,
            "the source ends because events may be missed"
        );
        assert_eq!(timeout(LONG, deltas.next()).await.unwrap(), None);
        let start = Instant::now();
        nats.publish_events(tenant, session, &event(session, 1).into()).await;
        nats.publish_deltas(tenant, session, &[delta(1)]).await;
        assert!(start.elapsed() < Duration::from_millis(500));
        assert_eq!(nats.publish_token(&pool, tenant, next).await.unwrap_err().code(), Code::Unavailable);
        server.restart().unwrap();
        let taken = async {
            loop {
                if let Ok(mut tokens) = source.take(1).await
                    && let Some(token) = tokens.pop()
                {
                    return token;
                }
            }
        };
        let token = timeout(LONG, taken).await.unwrap();
        assert_eq!(token.session(), session, "an acknowledged publish survives");
        token.finish().await.unwrap();
        let mut events = nats.subscribe_events(tenant, session).await.unwrap();
        nats.publish_events(tenant, session, &event(session, 2).into()).await;
        assert_eq!(timeout(LONG, events.next()).await.unwrap().unwrap()[0].cursor, 2);
        let mut deltas = nats.subscribe_deltas(tenant, session).await.unwrap();
        nats.publish_deltas(tenant, session, &[delta(2)]).await;
        assert_eq!(timeout(LONG, deltas.next()).await.unwrap().unwrap(), [delta(2)]);
        nats.send_signal(worker, &Signal::Drain).await.unwrap();
        assert_eq!(timeout(LONG, signals.next()).await.unwrap(), Some(Signal::Drain));
        nats.ping().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_older_than_the_limit_is_discarded() {
    on_each_server(async |server| {
        let nats = connect(&options(&server.url())).await;
        let (pool, tenant, session) = (Pool::default(), TenantId::new(), SessionId::new());
        assert!(!nats.discard_token(&pool, tenant, session, Duration::ZERO).await.unwrap(), "there is none");
        nats.publish_token(&pool, tenant, session).await.unwrap();
        assert!(!nats.discard_token(&pool, tenant, session, LONG).await.unwrap(), "it is young");
        assert!(nats.discard_token(&pool, tenant, session, Duration::ZERO).await.unwrap());
        assert_eq!(nats.publish_token(&pool, tenant, session).await.unwrap(), Published::Stored);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_message_is_removed_and_does_not_block_delivery() {
    on_each_server(async |server| {
        let options = options(&server.url());
        let nats = connect(&options).await;
        let (pool, tenant, session) = (Pool::default(), TenantId::new(), SessionId::new());
        let admin = admin(&server).await;
        let foreign = admin.publish(format!("{}.ready.default.what", options.prefix), "".into()).await;
        foreign.unwrap().await.unwrap();
        nats.publish_token(&pool, tenant, session).await.unwrap();
        let token = take_one(&mut nats.tokens(&pool).await.unwrap()).await;
        assert_eq!(token.session(), session);
        token.finish().await.unwrap();
        wait_for("an empty stream", LONG, || async { nats.inspect().await.unwrap().messages == 0 }).await;
    })
    .await;
}

#[tokio::test]
async fn connect_without_a_server_fails_quickly_as_unavailable() {
    let port = remuda_testkit::free_port().unwrap();
    let start = Instant::now();
    let error = Nats::connect(options(&format!("nats://127.0.0.1:{port}"))).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(start.elapsed() < Duration::from_secs(10));
}
