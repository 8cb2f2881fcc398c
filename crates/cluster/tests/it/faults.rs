//! Each fault does what it says, and the system goes on afterwards.

use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use remuda_cluster::{Cluster, ClusterOptions, FaultKind, FaultRecord, FaultSchedule, Link};
use remuda_domain::RunState;
use remuda_testkit::wait_for;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::harness::{
    PATIENCE, assert_works, bash, client, finished, inject, options, sleeper, small_cluster, state, submit,
};

/// Whether PostgreSQL answers a connection attempt: one byte to the question whether it speaks TLS.
async fn postgres_answers(cluster: &Cluster) -> bool {
    let address = cluster.postgres_url();
    let address = address.rsplit('@').next().and_then(|rest| rest.split('/').next()).unwrap();
    let Ok(mut stream) = TcpStream::connect(address).await else { return false };
    stream.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).await.unwrap();
    let mut answer = [0];
    stream.read_exact(&mut answer).await.is_ok()
}

#[tokio::test]
async fn a_stalled_worker_keeps_no_tools_beyond_its_lease() {
    let cluster = small_cluster().await;
    let client = client(&cluster);
    let run = sleeper(&cluster, &client).await;
    let record = inject(&cluster, FaultKind::WorkerStall, 1).await;
    assert_eq!(record.survivors, Some(0));
    assert!(!record.note.contains("with 0 tool"), "{record:?}");
    assert!(record.ended - record.began >= chrono::TimeDelta::seconds(3));
    assert_eq!(finished(&client, &run).await.outcomes[0].status, "interrupted");
    assert_works(&client).await;
    assert!(cluster.unexpected_deaths().is_empty());
}

#[tokio::test]
async fn a_drained_worker_ends_in_order_and_comes_back() {
    let cluster = small_cluster().await;
    let client = client(&cluster);
    let calls = (0..8).map(|_| bash("sleep 0.3")).collect();
    let run = submit(&client, "s1", calls).await;
    let pids: Vec<_> = cluster.workers().iter().map(|worker| worker.pid()).collect();
    inject(&cluster, FaultKind::WorkerDrain, 1).await;
    let after: Vec<_> = cluster.workers().iter().map(|worker| worker.pid()).collect();
    assert_eq!(pids.iter().zip(&after).filter(|(before, after)| before != after).count(), 1);
    let ended = finished(&client, &run).await;
    assert!(ended.outcomes.iter().all(|outcome| outcome.status == "completed"), "{ended:?}");
    assert!(cluster.unexpected_deaths().is_empty());
}

#[tokio::test]
async fn a_paused_postgres_answers_late() {
    let time = Duration::from_secs(2);
    let cluster = Cluster::start(ClusterOptions { postgres_pause: time, ..options() }).await.unwrap();
    assert!(postgres_answers(&cluster).await);
    let asking = async {
        // Into the middle of the pause.
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
async fn nats_keeps_its_tokens_unless_it_is_wiped() {
    let cluster = small_cluster().await;
    let client = client(&cluster);
    // A token for each session that waits, as no worker is there to take it.
    for worker in cluster.workers() {
        worker.nats.set_link(Link::Reset);
        worker.postgres.set_link(Link::Reset);
    }
    let mut runs = Vec::new();
    for index in 0..5 {
        runs.push(submit(&client, &format!("s{index}"), vec![bash("true")]).await);
    }
    // The reconciler would publish them again at once: it loses its voice.
    let messages = async || {
        let nats = async_nats::connect(cluster.nats_url()).await.unwrap();
        let stream = async_nats::jetstream::new(nats).get_stream("REMUDA_TOKENS").await;
        stream.map_or(0, |stream| stream.cached_info().state.messages)
    };
    wait_for("the tokens", PATIENCE, || async { messages().await == 5 }).await;
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
        assert_eq!(state(&finished(&client, &run).await), RunState::Completed);
    }
}

#[tokio::test]
async fn somebodys_hands_in_nats_do_no_lasting_harm() {
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
async fn a_cut_worker_is_healed() {
    let cluster = small_cluster().await;
    let client = client(&cluster);
    for (kind, seed) in
        [(FaultKind::CutWorkerNats, 1), (FaultKind::CutWorkerPostgres, 2), (FaultKind::SlowLinks, 3)]
    {
        let watching = async {
            let worst = wait_for("a link to be cut", PATIENCE, || {
                let cut = |link: Link| link != Link::Open;
                let any = cluster.workers().iter().any(|worker| match kind {
                    FaultKind::CutWorkerNats => cut(worker.nats.link()),
                    _ => cut(worker.postgres.link()),
                });
                std::future::ready(any || kind == FaultKind::SlowLinks)
            });
            worst.await;
        };
        tokio::join!(inject(&cluster, kind, seed), watching);
        assert!(cluster.workers().iter().all(|worker| worker.nats.link() == Link::Open));
        assert!(cluster.workers().iter().all(|worker| worker.postgres.link() == Link::Open));
        assert_works(&client).await;
    }
    assert!(cluster.unexpected_deaths().is_empty());
}

/// Writes down whether the worker that started its supervisor has another clock, whether it has one itself, and what time it is.
const CLOCK_WITNESS: &str = r#"
parent=$(sed 's/.*) //' "/proc/$PPID/stat" | cut -d' ' -f2)
grep -q LD_PRELOAD "/proc/$parent/environ" && worker=faked || worker=real
[ -z "$LD_PRELOAD$FAKETIME_TIMESTAMP_FILE" ] && tool=real || tool=faked
echo "$worker $tool $(date +%s)" >> "#;

#[tokio::test]
async fn the_clock_of_a_worker_jumps_and_that_of_its_tools_does_not() {
    FaultKind::ClockJump.check_available().expect("run `cargo xtask test`, which installs faketime");
    let cluster = Cluster::start(ClusterOptions { workers: 1, ..options() }).await.unwrap();
    let client = client(&cluster);
    let directory = tempfile::tempdir().unwrap();
    let witnesses = directory.path().join("witnesses");
    let working = async {
        loop {
            let call = bash(&format!("{CLOCK_WITNESS}{}", witnesses.display()));
            let run = submit(&client, "s1", vec![call]).await;
            assert_eq!(state(&finished(&client, &run).await), RunState::Completed);
        }
    };
    // The fault fails unless the worker's own log shows the jumps.
    let record = tokio::select! {
        record = inject(&cluster, FaultKind::ClockJump, 1) => record,
        () = working => unreachable!("it never ends"),
    };
    assert!(record.note.contains("+24 h") && record.note.contains("-1 h"), "{record:?}");
    let told = std::fs::read_to_string(&witnesses).unwrap();
    let told: Vec<Vec<&str>> = told.lines().map(|line| line.split(' ').collect()).collect();
    assert!(told.iter().any(|words| words[0] == "faked"), "no tool was started meanwhile: {told:?}");
    let now = chrono::Utc::now().timestamp();
    for words in &told {
        assert_eq!(words[1], "real", "a tool inherited the clock");
        assert!((now - words[2].parse::<i64>().unwrap()).abs() < 300, "{words:?}");
    }
    assert_works(&client).await;
    assert!(cluster.unexpected_deaths().is_empty());
}

#[tokio::test]
async fn a_schedule_injects_what_it_planned() {
    let cluster = small_cluster().await;
    let kinds = [FaultKind::StreamKill, FaultKind::NatsKill];
    let schedule = FaultSchedule::new(3, &kinds, 14).with_overlap(3, &kinds);
    let records: Vec<FaultRecord> = schedule.inject(&cluster).try_collect().await.unwrap();
    let planned = schedule.faults().len();
    assert!(planned >= 4, "{schedule:?}");
    // On a busy machine the last ones may come too late to be let in.
    assert!((planned - 2..=planned).contains(&records.len()), "{} of {planned}", records.len());
    assert_works(&client(&cluster)).await;
    assert!(cluster.unexpected_deaths().is_empty() && cluster.panics().is_empty());
}
