use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use remuda_domain::{Pool, SessionId, TenantId};
use remuda_testkit::{NatsServer, nats_binaries, wait_for};
use remuda_transport::{Nats, NatsOptions, Transport};

use super::{
    super::{background_task::BackgroundTask as _, heal_orphans::HealOrphans},
    fixture::{Fixture, PATIENCE},
};

const SESSIONS: usize = 300;
const ACK_TO_KILL: Duration = Duration::from_millis(1200);
const PACE: Duration = Duration::from_millis(300);
/// A crash leaves orphans only soon after the acks. On a busy machine the first attempt may come too late.
const ATTEMPTS: usize = 5;

async fn connect(server: &NatsServer) -> Nats {
    let options = NatsOptions {
        servers: vec![server.url()],
        ack_wait: Duration::from_secs(2),
        ..NatsOptions::default()
    };
    let nats = Nats::connect(options).await.unwrap();
    nats.provision(&[Pool::default()]).await.unwrap();
    nats
}

/// Publishes the tokens of sessions, takes and finishes nine of ten, and kills the server right after. Then takes and
/// finishes the tokens that the restarted server still delivers.
async fn crash_after_acks(server: &mut NatsServer, nats: &Nats, tenant: TenantId, sessions: &[SessionId]) {
    let pool = Pool::default();
    for session in sessions {
        nats.publish_token(&pool, tenant, *session).await.unwrap();
    }
    finish(nats, sessions.len() * 9 / 10).await;
    // Long enough for the server to persist the acks, too short for it to persist the deletions.
    tokio::time::sleep(ACK_TO_KILL).await;
    server.kill().unwrap();
    server.restart().unwrap();
    wait_for("NATS", PATIENCE, || async { nats.ping().await.is_ok() }).await;
    finish(nats, usize::MAX).await;
}

/// Takes and finishes at most `limit` tokens, until none comes for a while.
async fn finish(nats: &Nats, limit: usize) {
    let mut source = nats.tokens(&Pool::default()).await.unwrap();
    let mut left = limit;
    while left > 0 {
        let taken = source.take(left.min(SESSIONS)).await.unwrap();
        if taken.is_empty() {
            return;
        }
        left -= taken.len();
        for token in taken {
            token.finish().await.unwrap();
        }
    }
}

fn is_old(binary: &Path) -> bool {
    let output = std::process::Command::new(binary).arg("--version").output().unwrap();
    String::from_utf8_lossy(&output.stdout).contains("v2.9.")
}

#[tokio::test]
async fn orphaned_tokens_of_a_killed_nats_server_are_replaced() {
    for binary in nats_binaries() {
        let mut server = NatsServer::start(&binary).unwrap();
        let nats = connect(&server).await;
        let fixture = Fixture::on(Arc::new(nats.clone())).await;
        let mut sessions = Vec::new();
        for _ in 0..SESSIONS {
            sessions.push(fixture.session("default").await);
        }
        let mut orphans = 0;
        for _ in 0..ATTEMPTS {
            crash_after_acks(&mut server, &nats, fixture.tenant, &sessions).await;
            orphans = nats.orphaned_tokens().await.unwrap();
            if orphans > 0 || !is_old(&binary) {
                break;
            }
        }
        println!("{}: {orphans} orphans", binary.display());
        assert_eq!(
            orphans > 0,
            is_old(&binary),
            "expected orphans only of NATS 2.9, not of {}",
            binary.display()
        );

        // The sessions have work again, and a publish cannot wake those with an orphaned token.
        for session in &sessions {
            fixture.submit(*session).await;
        }
        let transport = Arc::clone(&fixture.transport) as Arc<dyn Transport>;
        let mut task =
            HealOrphans::new(Arc::clone(&fixture.store), transport, fixture.dispatcher.clone(), PACE);
        let mut healed = 0;
        let mut rounds = 0;
        while nats.orphaned_tokens().await.unwrap() > 0 {
            rounds += 1;
            assert!(rounds <= 5, "orphans are left");
            let round = task.round().await.unwrap();
            let count = round.counts.get("healed").copied().unwrap_or_default();
            assert!(rounds > 1 || count == 0, "one round is not enough evidence");
            healed += count;
            // A worker may still take tokens younger than a pace.
            tokio::time::sleep(PACE).await;
        }
        assert!(healed >= orphans, "{healed} of {orphans}");
        for session in &sessions {
            fixture.publish(*session).await;
        }

        let mut woken = BTreeSet::new();
        let mut source = nats.tokens(&Pool::default()).await.unwrap();
        while woken.len() < sessions.len() {
            let taken = source.take(SESSIONS).await.unwrap();
            assert!(!taken.is_empty(), "{} of {SESSIONS} sessions were woken", woken.len());
            for token in taken {
                woken.insert(token.session());
                token.finish().await.unwrap();
            }
        }
        drop(source);
        fixture.shut_down().await;
    }
}
