use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use remuda_domain::{Pool, SessionId, TenantId};
use remuda_testkit::{NatsServer, nats_binaries, wait_for};
use remuda_transport::{Nats, NatsOptions, Transport};

use super::{
    super::{heal_orphans::HealOrphans, task::BackgroundTask as _},
    lab::{Lab, PATIENCE},
};

const SESSIONS: usize = 300;
const BETWEEN: Duration = Duration::from_millis(1200);
const PACE: Duration = Duration::from_millis(300);
/// A crash leaves orphans only if it comes soon enough after the acks; on a busy machine it may not, the first time.
const ATTEMPTS: usize = 5;

async fn connect(server: &NatsServer) -> Nats {
    let options = NatsOptions {
        servers: vec![server.url()],
        ack_wait: Duration::from_secs(2),
        ..NatsOptions::default()
    };
    let nats = Nats::connect(options).await.unwrap();
    nats.prepare(&[Pool::default()]).await.unwrap();
    nats
}

/// Publishes the tokens of sessions, takes and finishes nine of ten, and kills the server right after. Then takes and finishes
/// what the restarted server still gives out.
async fn crash_after_acks(server: &mut NatsServer, nats: &Nats, tenant: TenantId, sessions: &[SessionId]) {
    let pool = Pool::default();
    for session in sessions {
        nats.publish_token(&pool, tenant, *session).await.unwrap();
    }
    finish(nats, sessions.len() * 9 / 10).await;
    // Long enough for the server to write down that they were acked, not for it to write down that they are gone.
    tokio::time::sleep(BETWEEN).await;
    server.kill().unwrap();
    server.restart().unwrap();
    wait_for("NATS", PATIENCE, || async { nats.ping().await.is_ok() }).await;
    finish(nats, usize::MAX).await;
}

/// Takes and finishes tokens until there are none for a while, at most `most`.
async fn finish(nats: &Nats, most: usize) {
    let mut source = nats.tokens(&Pool::default()).await.unwrap();
    let mut left = most;
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
async fn tokens_that_a_killed_nats_kept_are_replaced() {
    for binary in nats_binaries() {
        let mut server = NatsServer::start(&binary).unwrap();
        let nats = connect(&server).await;
        let lab = Lab::on(Arc::new(nats.clone())).await;
        let mut sessions = Vec::new();
        for _ in 0..SESSIONS {
            sessions.push(lab.session("default").await);
        }
        let mut orphans = 0;
        for _ in 0..ATTEMPTS {
            crash_after_acks(&mut server, &nats, lab.tenant, &sessions).await;
            orphans = nats.orphaned_tokens().await.unwrap();
            if orphans > 0 || !is_old(&binary) {
                break;
            }
        }
        println!("{}: {orphans} orphans", binary.display());
        assert_eq!(orphans > 0, is_old(&binary), "what the design says of {}", binary.display());

        // The sessions have work again, and no publish can wake those with an orphan.
        for session in &sessions {
            lab.submit(*session).await;
        }
        let transport = Arc::clone(&lab.transport) as Arc<dyn Transport>;
        let mut task = HealOrphans::new(Arc::clone(&lab.store), transport, PACE);
        let mut healed = 0;
        let mut looks = 0;
        while nats.orphaned_tokens().await.unwrap() > 0 {
            looks += 1;
            assert!(looks <= 5, "orphans are left");
            let round = task.round().await.unwrap();
            let count = round.counts.get("healed").copied().unwrap_or_default();
            assert!(looks > 1 || count == 0, "one round proves nothing");
            healed += count;
            // What is younger than a pace may still be taken by somebody.
            tokio::time::sleep(PACE).await;
        }
        assert!(healed >= orphans, "{healed} of {orphans}");
        for session in &sessions {
            lab.publish(*session).await;
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
        lab.end().await;
    }
}
