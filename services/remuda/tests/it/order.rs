//! Runs of a session execute one after another, in submission order, under concurrent load.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use rand::{SeedableRng as _, rngs::StdRng, seq::SliceRandom as _};
use remuda_domain::RunState;
use remuda_proto::v1;
use remuda_testkit::{nats_binaries, wait_for};

use crate::{
    api::{check_run_order, history, noop, submission},
    cluster::Cluster,
};

const SESSIONS: usize = 1000;
const RUNS: usize = 10;
/// gRPC connections, shared by the callers.
const CONNECTIONS: usize = 8;
const CALLERS: usize = 64;
const LIMIT: Duration = Duration::from_secs(300);

fn name(session: usize) -> String {
    format!("session-{session}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_sessions_execute_ten_runs_each_in_order_on_three_workers() {
    let cluster = Cluster::start(nats_binaries().last().unwrap(), 3).await;
    let seed = rand::random();
    println!("seed {seed}");
    let mut order: Vec<usize> = (0..SESSIONS * RUNS).map(|index| index % SESSIONS).collect();
    order.shuffle(&mut StdRng::seed_from_u64(seed));

    let clients: Vec<_> = (0..CONNECTIONS).map(|_| cluster.client()).collect();
    let started = Instant::now();
    let next = AtomicUsize::new(0);
    // Sessions are not created in advance: the first submit with a name creates its session.
    let caller = async |caller: usize| {
        let client = &clients[caller % CONNECTIONS];
        while let Some(session) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            client.submit(submission(&name(*session), vec![noop(0)])).await.unwrap();
        }
    };
    futures::future::join_all((0..CALLERS).map(caller)).await;
    println!("{} runs accepted after {:?}", order.len(), started.elapsed());

    let (client, operator) = (&clients[0], cluster.operator.client());
    let idle = || async {
        let pools = operator.get_queue_stats(v1::GetQueueStatsRequest {}).await.unwrap().pools;
        pools.iter().all(|pool| pool.queued_runs == 0 && pool.running_sessions == 0)
    };
    wait_for("all runs to end", LIMIT, idle).await;
    println!("finished after {:?}", started.elapsed());

    let checked: usize = stream::iter(0..SESSIONS)
        .map(|session| async move {
            let observed = check_run_order(&history(client, &name(session)).await);
            assert_eq!(observed.len(), RUNS, "runs of {}", name(session));
            assert!(
                observed.iter().all(|run| run.state == RunState::Completed && run.starts == 1),
                "{observed:?}"
            );
            observed.len()
        })
        .buffer_unordered(16)
        .fold(0, |sum, runs| std::future::ready(sum + runs))
        .await;
    assert_eq!(checked, SESSIONS * RUNS);
    println!("checked after {:?}", started.elapsed());
}
