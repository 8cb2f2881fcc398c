//! Overview: pools, workers, counters, longest runs, and estimate inputs.

use std::time::Duration;

use anyhow::{Context as _, Result};
use remuda_domain::{
    Pool, RunState, SessionId, StepId, WorkerId, budget::Spent, model::Usage, run::ParkReason, session::Owner,
};
use remuda_store::{Commit, Counts, FleetView, Heartbeat, NewSession, PoolStats, PoolView, connect};
use remuda_testkit::wait_for;
use sqlx::{Connection as _, PgConnection};

use crate::fixture::{
    Fixture, LONG_LEASE, PATIENCE, SHORT_LEASE, completed, ending, parking, progress, registration, step,
};

async fn beat(fixture: &Fixture, worker: WorkerId, running: &[remuda_domain::RunId]) -> Result<()> {
    fixture
        .store
        .renew_lease(&Heartbeat { worker, lease: LONG_LEASE, running: running.to_vec(), worked: Vec::new() })
        .await?;
    Ok(())
}

async fn view(fixture: &Fixture) -> Result<FleetView> {
    Ok(fixture.store.fleet_view(1000).await?)
}

pub(crate) async fn fleet_view_shows_pools_and_workers(fixture: &Fixture) -> Result<()> {
    let empty = view(fixture).await?;
    assert_eq!((empty.pools, empty.workers, empty.at_least), (vec![], vec![], false));
    let gpu: Pool = "gpu".parse()?;
    let (owned, waiting, parked, lost) = (
        fixture.session().await?,
        fixture.session().await?,
        fixture.session().await?,
        fixture.session().await?,
    );
    let idle = NewSession { pool: "idle".parse()?, ..fixture.new_session(None) };
    fixture.store.create_session(&idle).await?;
    let on_gpu = NewSession { pool: gpu.clone(), ..fixture.new_session(None) };
    let on_gpu = fixture.store.create_session(&on_gpu).await?.value.id;
    let (worker, draining, dying) = (
        fixture.worker(LONG_LEASE).await?,
        fixture.worker(LONG_LEASE).await?,
        fixture.worker(LONG_LEASE).await?,
    );
    fixture.store.drain_worker(draining).await?;
    for session in [owned, owned, owned, waiting, waiting, parked, parked, lost, on_gpu] {
        fixture.submit(session).await?;
    }
    let run = fixture.granted(owned, worker).await?.run.id;
    fixture.store.commit(parking(&fixture.granted(parked, worker).await?, ParkReason::External)).await?;
    fixture.granted(lost, dying).await?;
    fixture.store.retire_worker(dying).await?;
    beat(fixture, worker, &[run]).await?;
    beat(fixture, draining, &[run, run]).await?;
    let found = view(fixture).await?;
    let first = |session: SessionId| async move {
        anyhow::Ok(fixture.runs_of(session).await?.first().context("no run")?.created_at)
    };
    let plain = PoolView {
        stats: PoolStats {
            pool: Pool::default(),
            // One is queued, and one has lost its worker.
            runnable_sessions: 2,
            running_sessions: 1,
            // Neither the executing run nor the parked one.
            queued_runs: 6,
            workers: 1,
            slots: 4,
            oldest_runnable_at: Some(first(waiting).await?),
        },
        parked_sessions: 1,
        // Slots of a draining worker do not become free.
        busy: 1,
        draining: 1,
    };
    let oldest = first(on_gpu).await?;
    let starved = PoolView {
        stats: PoolStats {
            pool: gpu,
            runnable_sessions: 1,
            running_sessions: 0,
            queued_runs: 1,
            workers: 0,
            slots: 0,
            oldest_runnable_at: Some(oldest),
        },
        parked_sessions: 0,
        busy: 0,
        draining: 0,
    };
    assert_eq!(found.pools, [plain, starved]);
    let workers: Vec<(WorkerId, u32)> =
        found.workers.iter().map(|worker| (worker.registration.id, worker.busy)).collect();
    assert_eq!(workers, [(worker, 1), (draining, 2)]);
    assert!(!found.at_least && found.at >= oldest);
    // Sessions beyond the limit are not counted, and the view says so.
    let some = fixture.store.fleet_view(2).await?;
    assert!(some.at_least);
    let sessions =
        |view: &PoolView| view.stats.runnable_sessions + view.stats.running_sessions + view.parked_sessions;
    assert_eq!(some.pools.iter().map(sessions).sum::<i64>(), 2);
    Ok(())
}

pub(crate) async fn counters_count_runs_and_spending(fixture: &Fixture) -> Result<()> {
    let before = view(fixture).await?.counts;
    assert_eq!(before, Counts::default());
    let (session, worker) = (fixture.session().await?, fixture.worker(LONG_LEASE).await?);
    let waiting = fixture.session().await?;
    for _ in 0..4 {
        fixture.submit(session).await?;
    }
    let cancelled = fixture.submit(waiting).await?.run.id;
    fixture.store.submit(fixture.keyed_run(waiting, "key", 1)).await?;
    fixture.store.submit(fixture.keyed_run(waiting, "key", 1)).await?;
    for state in [RunState::Completed, RunState::Completed, RunState::Failed, RunState::TimedOut] {
        let grant = fixture.granted(session, worker).await?;
        fixture.store.commit(ending(&grant, state)).await?;
    }
    fixture.store.request_cancel(fixture.tenant, cancelled, "x").await?;
    let counts = view(fixture).await?.counts;
    let expected =
        Counts { submitted: 6, completed: 2, failed: 1, timed_out: 1, cancelled: 1, ..Counts::default() };
    assert_eq!(counts, expected, "a repeated request creates no second run");
    // Another process sees what this one has flushed with its heartbeats.
    fixture.submit(session).await?;
    beat(fixture, worker, &[]).await?;
    let other = connect(&fixture.options()).await?;
    wait_for("the counts to be written", PATIENCE, || async {
        other.fleet_view(10).await.is_ok_and(|view| view.counts.submitted == 7)
    })
    .await;
    Ok(())
}

/// A new owner reports spending again, because it does not know whether it was counted.
pub(crate) async fn spending_reported_twice_is_counted_once(fixture: &Fixture) -> Result<()> {
    let grant = fixture.executing().await?;
    let usage = Usage { input_tokens: 40, output_tokens: 2, ..Usage::default() };
    let spent = vec![Spent { step: StepId::new(), usage, micros: 5 }];
    for _ in 0..2 {
        fixture.store.commit(Commit { spent: spent.clone(), ..progress(&grant, Vec::new()) }).await?;
    }
    let counts = view(fixture).await?.counts;
    assert_eq!((counts.input_tokens, counts.output_tokens, counts.cost_micros), (40, 2, 5));
    Ok(())
}

/// All processes write the same row: a process stuck on it must not delay other lease renewals, and no counts are lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locked_counter_row_delays_no_heartbeat_and_loses_no_counts() -> Result<()> {
    let fixture = Fixture::postgres().await?;
    let (session, worker) = (fixture.session().await?, fixture.worker(LONG_LEASE).await?);
    fixture.submit(session).await?;
    let mut stuck = PgConnection::connect(&fixture.options().url).await?;
    let mut tx = stuck.begin().await?;
    sqlx::query("UPDATE tally SET failed = failed WHERE id = 1").execute(&mut *tx).await?;
    beat(&fixture, worker, &[]).await?;
    assert_eq!(view(&fixture).await?.counts.submitted, 0);
    tx.rollback().await?;
    wait_for("the counts to be written", PATIENCE, || async {
        view(&fixture).await.is_ok_and(|view| view.counts.submitted == 1)
    })
    .await;
    Ok(())
}

pub(crate) async fn longest_running_runs_are_listed_first(fixture: &Fixture) -> Result<()> {
    let worker = fixture.worker(LONG_LEASE).await?;
    let mut runs = Vec::new();
    for name in ["one", "two", "three"] {
        let session = fixture.store.create_session(&fixture.new_session(Some(name))).await?.value.id;
        fixture.submit(session).await?;
        fixture.submit(session).await?;
        runs.push(fixture.granted(session, worker).await?);
    }
    let seen = fixture.store.longest_running(fixture.tenant, 10).await?;
    assert_eq!(seen, [], "no heartbeat has named it yet");
    let ids: Vec<_> = runs.iter().map(|grant| grant.run.id).collect();
    beat(fixture, worker, &ids).await?;
    fixture.store.commit(progress(&runs[0], vec![step(&runs[0], 0)])).await?;
    let newest = step(&runs[0], 1);
    fixture.store.commit(progress(&runs[0], vec![newest.clone()])).await?;
    let seen = fixture.store.longest_running(fixture.tenant, 10).await?;
    assert_eq!(seen.iter().map(|it| it.run).collect::<Vec<_>>(), ids);
    let first = &seen[0];
    assert_eq!((first.state, first.kind, first.attempt, first.ahead), (RunState::Running, "tools", 1, 0));
    assert_eq!((first.session_name.as_deref(), first.started_at), (Some("one"), runs[0].run.started_at));
    assert_eq!(first.step.as_ref().map(|step| step.id), Some(newest.id));
    assert!(matches!(first.owner, Owner::Alive { worker: owner, .. } if owner == worker));
    assert_eq!(fixture.store.longest_running(fixture.tenant, 2).await?.len(), 2);
    assert_eq!(fixture.store.longest_running(fixture.stranger().await?, 10).await?, []);
    // Runs named in the last heartbeat that have ended or been replaced are left out.
    fixture.store.commit(completed(&runs[0])).await?;
    fixture.store.request_cancel(fixture.tenant, ids[1], "x").await?;
    let seen = fixture.store.longest_running(fixture.tenant, 10).await?;
    assert_eq!(
        seen.iter().map(|it| (it.run, it.cancelling)).collect::<Vec<_>>(),
        [(ids[1], true), (ids[2], false)]
    );
    Ok(())
}

pub(crate) async fn longest_waiting_runs_are_listed_first(fixture: &Fixture) -> Result<()> {
    let (worker, dying) = (fixture.worker(LONG_LEASE).await?, fixture.worker(LONG_LEASE).await?);
    let (busy, free, parked, lost) = (
        fixture.session().await?,
        fixture.session().await?,
        fixture.session().await?,
        fixture.session().await?,
    );
    let mut ids = Vec::new();
    for session in [busy, busy, busy, free, parked, lost] {
        ids.push(fixture.submit(session).await?.run.id);
    }
    fixture.granted(busy, worker).await?;
    fixture.granted(lost, dying).await?;
    fixture.store.retire_worker(dying).await?;
    fixture.store.commit(parking(&fixture.granted(parked, worker).await?, ParkReason::Approval)).await?;
    let seen = fixture.store.longest_waiting(fixture.tenant, 10).await?;
    // A parked run has waited since it was parked.
    let expected = [(ids[1], 1), (ids[2], 2), (ids[3], 0), (ids[5], 0), (ids[4], 0)];
    assert_eq!(seen.iter().map(|it| (it.run, it.ahead)).collect::<Vec<_>>(), expected);
    assert_eq!(seen[3].owner, Owner::Expired { worker: dying });
    assert_eq!(seen[4].state, RunState::Parked);
    assert_eq!(seen[4].parked.map(|parked| parked.reason), Some(ParkReason::Approval));
    assert_eq!(fixture.store.longest_waiting(fixture.tenant, 2).await?.len(), 2);
    assert_eq!(fixture.store.longest_waiting(fixture.stranger().await?, 10).await?, []);
    Ok(())
}

pub(crate) async fn estimate_inputs_contain_the_queue_position(fixture: &Fixture) -> Result<()> {
    let (first, second, third) =
        (fixture.session().await?, fixture.session().await?, fixture.session().await?);
    let mut ids = Vec::new();
    for session in [first, second, third, third] {
        ids.push(fixture.submit(session).await?.run.id);
    }
    let look = async |run| anyhow::Ok(fixture.store.diagnostics(fixture.tenant, run).await?.estimate_inputs);
    let places: Vec<_> = [look(ids[0]).await?, look(ids[1]).await?, look(ids[3]).await?]
        .iter()
        .map(|estimate_inputs| estimate_inputs.place.map(|place| (place.ahead, place.at_least)))
        .collect();
    assert_eq!(places, [Some((0, false)), Some((1, false)), Some((2, false))]);
    assert_eq!(
        (look(ids[3]).await?.front.map(|front| front.run), look(ids[2]).await?.front),
        (Some(ids[2]), None)
    );
    let worker = fixture.worker(LONG_LEASE).await?;
    let grant = fixture.granted(third, worker).await?;
    fixture.store.commit(progress(&grant, vec![step(&grant, 0)])).await?;
    let estimate_inputs = look(ids[2]).await?;
    assert_eq!((estimate_inputs.place, estimate_inputs.slots, estimate_inputs.steps_ended), (None, 4, 0));
    let free_since = estimate_inputs.slot_free_since.context("no slot is free")?;
    beat(fixture, worker, &ids[..3]).await?;
    assert_eq!(look(ids[2]).await?.slot_free_since, Some(free_since), "the slot has been free since then");
    beat(fixture, worker, &ids).await?;
    assert_eq!(look(ids[2]).await?.slot_free_since, None);
    beat(fixture, worker, &[ids[2]]).await?;
    assert!(look(ids[2]).await?.slot_free_since.is_some_and(|since| since > free_since));
    assert!(estimate_inputs.step.is_some_and(|step| !step.is_finished()));
    let heartbeat = estimate_inputs.heartbeat.context("no heartbeat")?;
    assert!(heartbeat.lease > LONG_LEASE / 2 && heartbeat.age < heartbeat.lease && !heartbeat.draining);
    assert_eq!(look(ids[3]).await?.front.map(|front| front.state), Some(RunState::Running));
    fixture.store.drain_worker(worker).await?;
    let estimate_inputs = look(ids[2]).await?;
    assert_eq!((estimate_inputs.slots, estimate_inputs.draining), (0, 1));
    assert!(estimate_inputs.heartbeat.is_some_and(|heartbeat| heartbeat.draining));
    fixture.store.commit(parking(&grant, ParkReason::Budget)).await?;
    let front = look(ids[3]).await?.front.context("nothing ahead")?;
    assert_eq!((front.state, front.parked.map(|it| it.reason)), (RunState::Parked, Some(ParkReason::Budget)));
    // Sessions with a parked head run are not in the queue.
    assert_eq!(look(ids[3]).await?.place, None);
    Ok(())
}

pub(crate) async fn estimate_inputs_contain_execution_times_of_earlier_runs(fixture: &Fixture) -> Result<()> {
    let (session, worker) = (fixture.session().await?, fixture.worker(LONG_LEASE).await?);
    let pace = async |run| {
        let estimate_inputs = fixture.store.diagnostics(fixture.tenant, run).await?.estimate_inputs;
        anyhow::Ok((estimate_inputs.session_pace.len(), estimate_inputs.pool_pace.len()))
    };
    let alone = fixture.submit(session).await?.run.id;
    assert_eq!(pace(alone).await?, (0, 0));
    for _ in 0..24 {
        fixture.submit(session).await?;
    }
    for place in 0..23 {
        let grant = fixture.granted(session, worker).await?;
        let state = if place == 22 { RunState::Cancelled } else { RunState::Completed };
        fixture.store.commit(ending(&grant, state)).await?;
    }
    let next = fixture.runs_of(session).await?[23].id;
    // At most twenty samples, and a cancelled run is none.
    assert_eq!(pace(next).await?, (19, 0));
    let fresh = fixture.session().await?;
    let first = fixture.submit(fresh).await?.run.id;
    assert_eq!(pace(first).await?, (0, 22), "runs of the same pool are used instead");
    let gpu = NewSession { pool: "gpu".parse()?, ..fixture.new_session(None) };
    let gpu = fixture.store.create_session(&gpu).await?.value.id;
    assert_eq!(pace(fixture.submit(gpu).await?.run.id).await?, (0, 0));
    // Runs of other tenants are no samples.
    let stranger = fixture.stranger().await?;
    let workspace = fixture.store.find_workspace(stranger, "default").await?.context("no workspace")?.id;
    let theirs = NewSession { tenant: stranger, workspace, ..fixture.new_session(None) };
    let theirs = fixture.store.create_session(&theirs).await?.value.id;
    let run = crate::fixture::of_tenant(stranger, fixture.new_run(theirs));
    let run = fixture.store.submit(run).await?.run.id;
    let estimate_inputs = fixture.store.diagnostics(stranger, run).await?.estimate_inputs;
    assert_eq!((estimate_inputs.session_pace.len(), estimate_inputs.pool_pace.len()), (0, 0));
    Ok(())
}

pub(crate) async fn estimate_inputs_show_the_age_of_the_last_heartbeat(fixture: &Fixture) -> Result<()> {
    let registered = registration(Pool::default(), 1);
    fixture.store.register_worker(&registered, SHORT_LEASE * 20).await?;
    let session = fixture.session().await?;
    let run = fixture.submit(session).await?.run.id;
    fixture.granted(session, registered.id).await?;
    let age = async || -> Option<Duration> {
        Some(fixture.store.diagnostics(fixture.tenant, run).await.ok()?.estimate_inputs.heartbeat?.age)
    };
    wait_for("some silence", PATIENCE, || async { age().await.is_some_and(|age| age > SHORT_LEASE / 4) })
        .await;
    beat(fixture, registered.id, &[run]).await?;
    let lease = fixture
        .store
        .diagnostics(fixture.tenant, run)
        .await?
        .estimate_inputs
        .heartbeat
        .context("no heartbeat")?
        .lease;
    assert_eq!(lease.as_secs_f64().round(), LONG_LEASE.as_secs_f64());
    Ok(())
}
