//! Each fault has its effect, and the cluster works afterwards.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use futures::TryStreamExt as _;
use remuda_client::{Client, ClientOptions};
use remuda_cluster::{Cluster, ClusterOptions, FaultKind, FaultRecord, FaultSchedule, Link};
use remuda_domain::{Code, RunState};
use remuda_testkit::wait_for;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_util::sync::CancellationToken;

use crate::harness::{
    TIMEOUT, assert_works, bash, client, inject, options, small_cluster, start_sleeper, state, submission,
    submit, wait_for_end,
};

/// Whether PostgreSQL answers a connection: it replies to an SSLRequest with one byte.
async fn postgres_answers(cluster: &Cluster) -> bool {
    let address = cluster.postgres_url();
    let address = address.rsplit('@').next().and_then(|rest| rest.split('/').next()).unwrap();
    let Ok(mut stream) = TcpStream::connect(address).await else { return false };
    stream.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).await.unwrap();
    let mut answer = [0];
    stream.read_exact(&mut answer).await.is_ok()
}

#[tokio::test]
async fn stalled_worker_has_no_tools_after_its_lease() {
    let cluster = small_cluster().await;
    let client = client(&cluster);
    let run = start_sleeper(&cluster, &client).await;
    let record = inject(&cluster, FaultKind::WorkerStall, 1).await;
    assert_eq!(record.survivors, Some(0));
    assert!(!record.note.contains("with 0 tool"), "{record:?}");
    assert!(record.ended - record.began >= chrono::TimeDelta::seconds(3));
    assert_eq!(wait_for_end(&client, &run).await.outcomes[0].status, "interrupted");
    assert_works(&client).await;
    assert!(cluster.unexpected_deaths().is_empty());
}

#[tokio::test]
async fn drained_worker_ends_gracefully_and_is_restarted() {
    let cluster = small_cluster().await;
    let client = client(&cluster);
    let calls = (0..8).map(|_| bash("sleep 0.3")).collect();
    let run = submit(&client, "s1", calls).await;
    let pids: Vec<_> = cluster.workers().iter().map(|worker| worker.pid()).collect();
    inject(&cluster, FaultKind::WorkerDrain, 1).await;
    let after: Vec<_> = cluster.workers().iter().map(|worker| worker.pid()).collect();
    assert_eq!(pids.iter().zip(&after).filter(|(before, after)| before != after).count(), 1);
    let ended = wait_for_end(&client, &run).await;
    assert!(ended.outcomes.iter().all(|outcome| outcome.status == "completed"), "{ended:?}");
    assert!(cluster.unexpected_deaths().is_empty());
}

#[tokio::test]
async fn paused_postgres_answers_after_the_pause() {
    let time = Duration::from_secs(2);
    let cluster = Cluster::start(ClusterOptions { postgres_pause: time, ..options() }).await.unwrap();
    assert!(postgres_answers(&cluster).await);
    let asking = async {
        // The middle of the pause.
        tokio::time::sleep(time / 2).await;
        let asked = Instant::now();
        assert!(postgres_answers(&cluster).await);
        asked.elapsed()
    };
    let (_, waited) = tokio::join!(inject(&cluster, FaultKind::PostgresPause, 1), asking);
    assert!(waited > time / 4, "it answered after {waited:?}");
    assert_works(&client(&cluster)).await;
    inject(&cluster, FaultKind::PostgresRestart, 1).await;
    assert_works(&client(&cluster)).await;
    assert!(cluster.unexpected_deaths().is_empty());
}

#[tokio::test]
async fn full_disk_of_postgres_is_told_and_passes() {
    let cluster = Cluster::start(ClusterOptions { small_disk: true, ..options() }).await.unwrap();
    assert_works(&client(&cluster)).await;
    let impatient = ClientOptions {
        endpoint: cluster.control_plane_endpoints().remove(0),
        api_key: Some(cluster.api_key().into()),
        give_up_after: Duration::ZERO,
        ..ClientOptions::default()
    };
    let impatient = Client::connect(impatient).unwrap();
    let (healed, mut refused) = (CancellationToken::new(), 0);
    let submitting = async {
        while !healed.is_cancelled() {
            if let Err(error) = impatient.submit(submission("full", vec![bash("true")])).await {
                assert_eq!(error.code(), Code::StorageFull, "{error:?}");
                refused += 1;
            }
        }
    };
    let filling = async {
        inject(&cluster, FaultKind::PostgresFull, 1).await;
        healed.cancel();
    };
    tokio::join!(submitting, filling);
    assert!(refused > 0, "the disk was never full");
    assert_works(&client(&cluster)).await;
    assert!(cluster.unexpected_deaths().is_empty());
}

#[tokio::test]
async fn nats_keeps_tokens_unless_it_is_wiped() {
    let cluster = small_cluster().await;
    let client = client(&cluster);
    // Without reachable workers, each waiting session has a token.
    for worker in cluster.workers() {
        worker.nats.set_link(Link::Reset);
        worker.postgres.set_link(Link::Reset);
    }
    let mut runs = Vec::new();
    for index in 0..5 {
        runs.push(submit(&client, &format!("s{index}"), vec![bash("true")]).await);
    }
    // The reconciler would publish them again: cut it off from NATS.
    let messages = async || {
        let nats = cluster.nats_client().await.unwrap();
        let stream = async_nats::jetstream::new(nats).get_stream("REMUDA_TOKENS").await;
        stream.map_or(0, |stream| stream.cached_info().state.messages)
    };
    wait_for("the tokens", TIMEOUT, || async { messages().await == 5 }).await;
    cluster.control_planes()[0].nats.set_link(Link::Reset);
    for kind in [FaultKind::NatsRestart, FaultKind::NatsKill] {
        inject(&cluster, kind, 1).await;
        assert_eq!(messages().await, 5, "{kind}");
    }
    inject(&cluster, FaultKind::NatsWipe, 1).await;
    assert_eq!(messages().await, 0);

    for member in cluster.members() {
        member.nats.heal();
        member.postgres.heal();
    }
    for run in runs {
        assert_eq!(state(&wait_for_end(&client, &run).await), RunState::Completed);
    }
}

#[tokio::test]
async fn changed_nats_settings_are_repaired() {
    let cluster = small_cluster().await;
    let client = client(&cluster);
    let mut seen = Vec::new();
    for seed in 0.. {
        let record = inject(&cluster, FaultKind::NatsSettings, seed).await;
        seen.push(record.note);
        assert_works(&client).await;
        let all = ["deleted consumer", "discard = old", "max_msgs_per_subject = -1"];
        if all.iter().all(|what| seen.iter().any(|note| note.contains(what))) {
            break;
        }
        assert!(seed < 20, "{seen:?}");
    }
    assert!(cluster.unexpected_deaths().is_empty());
}

#[tokio::test]
async fn cut_and_slow_links_are_healed() {
    let cluster = small_cluster().await;
    let client = client(&cluster);
    for (kind, seed) in
        [(FaultKind::CutWorkerNats, 1), (FaultKind::CutWorkerPostgres, 2), (FaultKind::SlowLinks, 3)]
    {
        let watching = async {
            let cut_observed = wait_for("a link to be cut", TIMEOUT, || {
                let cut = |link: Link| link != Link::Open;
                let any = cluster.workers().iter().any(|worker| match kind {
                    FaultKind::CutWorkerNats => cut(worker.nats.link()),
                    _ => cut(worker.postgres.link()),
                });
                std::future::ready(any || kind == FaultKind::SlowLinks)
            });
            cut_observed.await;
        };
        tokio::join!(inject(&cluster, kind, seed), watching);
        assert!(cluster.workers().iter().all(|worker| worker.nats.link() == Link::Open));
        assert!(cluster.workers().iter().all(|worker| worker.postgres.link() == Link::Open));
        assert_works(&client).await;
    }
    assert!(cluster.unexpected_deaths().is_empty());
}

/// Records whether the tool runs under libfaketime, and the time it sees.
const CLOCK_WITNESS: &str = r#"
[ -z "$LD_PRELOAD$FAKETIME_TIMESTAMP_FILE" ] && tool=real || tool=faked
echo "$tool $(date +%s)" >> "#;

#[tokio::test]
async fn clock_jumps_in_the_worker_but_not_in_its_tools() {
    FaultKind::ClockJump.check_available().expect("run `cargo xtask test`, which installs faketime");
    let cluster = Cluster::start(ClusterOptions { workers: 1, ..options() }).await.unwrap();
    let client = client(&cluster);
    let directory = tempfile::tempdir().unwrap();
    let witnesses = directory.path().join("witnesses");
    // The fault replaces the worker's process by one with a faked clock.
    let worker = || cluster.workers()[0].pid();
    let (before, during) = (worker(), AtomicBool::new(false));
    let working = async {
        loop {
            let call = bash(&format!("{CLOCK_WITNESS}{}", witnesses.display()));
            let run = submit(&client, "s1", vec![call]).await;
            assert_eq!(state(&wait_for_end(&client, &run).await), RunState::Completed);
            during.fetch_or(worker().is_some_and(|worker| Some(worker) != before), Ordering::Relaxed);
        }
    };
    // The fault fails unless the worker's log shows the jumps.
    let record = tokio::select! {
        record = inject(&cluster, FaultKind::ClockJump, 1) => record,
        () = working => unreachable!("it never ends"),
    };
    assert!(record.note.contains("+24 h") && record.note.contains("-1 h"), "{record:?}");
    let text = std::fs::read_to_string(&witnesses).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    assert!(during.into_inner(), "no run ended during the fault: {lines:?}");
    let now = chrono::Utc::now().timestamp();
    for words in &lines {
        assert_eq!(words[0], "real", "a tool inherited the clock");
        assert!((now - words[1].parse::<i64>().unwrap()).abs() < 300, "{words:?}");
    }
    assert_works(&client).await;
    assert!(cluster.unexpected_deaths().is_empty());
}

#[tokio::test]
async fn schedule_injects_the_planned_faults() {
    let cluster = small_cluster().await;
    let kinds = [FaultKind::StreamKill, FaultKind::NatsKill];
    let schedule = FaultSchedule::new(3, &kinds, 14).with_overlap(3, &kinds);
    let records: Vec<FaultRecord> = schedule.inject(&cluster).try_collect().await.unwrap();
    let planned = schedule.faults().len();
    assert!(planned >= 4, "{schedule:?}");
    // On a busy machine the last faults may be skipped because they come too late.
    assert!((planned - 2..=planned).contains(&records.len()), "{} of {planned}", records.len());
    assert_works(&client(&cluster)).await;
    assert!(cluster.unexpected_deaths().is_empty() && cluster.panics().is_empty());
}
