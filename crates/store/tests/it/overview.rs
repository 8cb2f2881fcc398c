//! Looking at everything at once: workers, pools, what runs and waits for longest, and what can be guessed from it.

use std::time::Duration;

use anyhow::{Context as _, Result};
use remuda_domain::{
    Pool, RunState, SessionId, StepId, WorkerId, budget::Spent, model::Usage, run::ParkReason, session::Owner,
};
use remuda_store::{Commit, Counts, FleetView, Heartbeat, NewRun, NewSession, PoolStats, PoolView, connect};
use remuda_testkit::wait_for;
use sqlx::{Connection as _, PgConnection};

use crate::lab::{
    LONG_LEASE, Lab, PATIENCE, SHORT_LEASE, completed, ending, parking, progress, registration, step,
};

async fn beat(lab: &Lab, worker: WorkerId, running: &[remuda_domain::RunId]) -> Result<()> {
    lab.store.renew_lease(&Heartbeat { worker, lease: LONG_LEASE, running: running.to_vec() }).await?;
    Ok(())
}

async fn view(lab: &Lab) -> Result<FleetView> {
    Ok(lab.store.fleet_view(1000).await?)
}

pub(crate) async fn a_view_shows_pools_and_workers(lab: &Lab) -> Result<()> {
    let empty = view(lab).await?;
    assert_eq!((empty.pools, empty.workers, empty.at_least), (vec![], vec![], false));
    let gpu: Pool = "gpu".parse()?;
    let (owned, waiting, parked, lost) =
        (lab.session().await?, lab.session().await?, lab.session().await?, lab.session().await?);
    let idle = NewSession { pool: "idle".parse()?, ..lab.new_session(None) };
    lab.store.create_session(&idle).await?;
    let on_gpu = NewSession { pool: gpu.clone(), ..lab.new_session(None) };
    let on_gpu = lab.store.create_session(&on_gpu).await?.value.id;
    let (worker, draining, dying) =
        (lab.worker(LONG_LEASE).await?, lab.worker(LONG_LEASE).await?, lab.worker(LONG_LEASE).await?);
    lab.store.drain_worker(draining).await?;
    for session in [owned, owned, owned, waiting, waiting, parked, parked, lost, on_gpu] {
        lab.submit(session).await?;
    }
    let run = lab.granted(owned, worker).await?.run.id;
    lab.store.commit(parking(&lab.granted(parked, worker).await?, ParkReason::External)).await?;
    lab.granted(lost, dying).await?;
    lab.store.retire_worker(dying).await?;
    beat(lab, worker, &[run]).await?;
    beat(lab, draining, &[run, run]).await?;
    let found = view(lab).await?;
    let first = |session: SessionId| async move {
        anyhow::Ok(lab.runs_of(session).await?.first().context("no run")?.created_at)
    };
    let plain = PoolView {
        stats: PoolStats {
            pool: Pool::default(),
            // One waits, and one has lost its worker.
            runnable_sessions: 2,
            running_sessions: 1,
            // Neither the one that runs nor the one that is parked.
            queued_runs: 6,
            workers: 1,
            slots: 4,
            oldest_runnable_at: Some(first(waiting).await?),
        },
        parked_sessions: 1,
        // The draining worker's are no slots that could become free.
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
    // What was not looked at is not counted, and that is said.
    let some = lab.store.fleet_view(2).await?;
    assert!(some.at_least);
    let sessions =
        |view: &PoolView| view.stats.runnable_sessions + view.stats.running_sessions + view.parked_sessions;
    assert_eq!(some.pools.iter().map(sessions).sum::<i64>(), 2);
    Ok(())
}

pub(crate) async fn what_happens_is_counted(lab: &Lab) -> Result<()> {
    let before = view(lab).await?.counts;
    assert_eq!(before, Counts::default());
    let (session, worker) = (lab.session().await?, lab.worker(LONG_LEASE).await?);
    let waiting = lab.session().await?;
    for _ in 0..4 {
        lab.submit(session).await?;
    }
    let cancelled = lab.submit(waiting).await?.run.id;
    lab.store.submit(lab.keyed_run(waiting, "key", 1)).await?;
    lab.store.submit(lab.keyed_run(waiting, "key", 1)).await?;
    for state in [RunState::Completed, RunState::Completed, RunState::Failed, RunState::TimedOut] {
        let grant = lab.granted(session, worker).await?;
        lab.store.commit(ending(&grant, state)).await?;
    }
    lab.store.request_cancel(lab.tenant, cancelled, "x").await?;
    let counts = view(lab).await?.counts;
    let expected =
        Counts { submitted: 6, completed: 2, failed: 1, timed_out: 1, cancelled: 1, ..Counts::default() };
    assert_eq!(counts, expected, "a repeated request is no second run");
    // Another process knows what this one has written down with its heartbeats.
    lab.submit(session).await?;
    beat(lab, worker, &[]).await?;
    let other = connect(&lab.options()).await?;
    wait_for("the counts to be written", PATIENCE, || async {
        other.fleet_view(10).await.is_ok_and(|view| view.counts.submitted == 7)
    })
    .await;
    Ok(())
}

/// What a question cost is told again by a new owner that does not know whether it was counted.
pub(crate) async fn what_is_told_again_is_counted_once(lab: &Lab) -> Result<()> {
    let grant = lab.executing().await?;
    let usage = Usage { input_tokens: 40, output_tokens: 2, ..Usage::default() };
    let spent = vec![Spent { step: StepId::new(), usage, micros: 5 }];
    for _ in 0..2 {
        lab.store.commit(Commit { spent: spent.clone(), ..progress(&grant, Vec::new()) }).await?;
    }
    let counts = view(lab).await?.counts;
    assert_eq!((counts.input_tokens, counts.output_tokens, counts.cost_micros), (40, 2, 5));
    Ok(())
}

/// Every process writes the same row: one that is stuck with it must keep nobody's lease from being renewed, and loses no counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_wait_for_nobody() -> Result<()> {
    let lab = Lab::postgres().await?;
    let (session, worker) = (lab.session().await?, lab.worker(LONG_LEASE).await?);
    lab.submit(session).await?;
    let mut stuck = PgConnection::connect(&lab.options().url).await?;
    let mut tx = stuck.begin().await?;
    sqlx::query("UPDATE tally SET failed = failed WHERE id = 1").execute(&mut *tx).await?;
    beat(&lab, worker, &[]).await?;
    assert_eq!(view(&lab).await?.counts.submitted, 0);
    tx.rollback().await?;
    wait_for("the counts to be written", PATIENCE, || async {
        view(&lab).await.is_ok_and(|view| view.counts.submitted == 1)
    })
    .await;
    Ok(())
}

pub(crate) async fn the_longest_running_come_first(lab: &Lab) -> Result<()> {
    let worker = lab.worker(LONG_LEASE).await?;
    let mut runs = Vec::new();
    for name in ["one", "two", "three"] {
        let session = lab.store.create_session(&lab.new_session(Some(name))).await?.value.id;
        lab.submit(session).await?;
        lab.submit(session).await?;
        runs.push(lab.granted(session, worker).await?);
    }
    let seen = lab.store.longest_running(lab.tenant, 10).await?;
    assert_eq!(seen, [], "its worker has not told yet");
    let ids: Vec<_> = runs.iter().map(|grant| grant.run.id).collect();
    beat(lab, worker, &ids).await?;
    lab.store.commit(progress(&runs[0], vec![step(&runs[0], 0)])).await?;
    let newest = step(&runs[0], 1);
    lab.store.commit(progress(&runs[0], vec![newest.clone()])).await?;
    let seen = lab.store.longest_running(lab.tenant, 10).await?;
    assert_eq!(seen.iter().map(|it| it.run).collect::<Vec<_>>(), ids);
    let first = &seen[0];
    assert_eq!((first.state, first.kind, first.attempt, first.ahead), (RunState::Running, "tools", 1, 0));
    assert_eq!((first.session_name.as_deref(), first.started_at), (Some("one"), runs[0].run.started_at));
    assert_eq!(first.step.as_ref().map(|step| step.id), Some(newest.id));
    assert!(matches!(first.owner, Owner::Alive { worker: owner, .. } if owner == worker));
    assert_eq!(lab.store.longest_running(lab.tenant, 2).await?.len(), 2);
    assert_eq!(lab.store.longest_running(lab.stranger().await?, 10).await?, []);
    // What ended, and what went on to the next run, is not what the worker told of.
    lab.store.commit(completed(&runs[0])).await?;
    lab.store.request_cancel(lab.tenant, ids[1], "x").await?;
    let seen = lab.store.longest_running(lab.tenant, 10).await?;
    assert_eq!(
        seen.iter().map(|it| (it.run, it.cancelling)).collect::<Vec<_>>(),
        [(ids[1], true), (ids[2], false)]
    );
    Ok(())
}

pub(crate) async fn the_longest_waiting_come_first(lab: &Lab) -> Result<()> {
    let (worker, dying) = (lab.worker(LONG_LEASE).await?, lab.worker(LONG_LEASE).await?);
    let (busy, free, parked, lost) =
        (lab.session().await?, lab.session().await?, lab.session().await?, lab.session().await?);
    let mut ids = Vec::new();
    for session in [busy, busy, busy, free, parked, lost] {
        ids.push(lab.submit(session).await?.run.id);
    }
    lab.granted(busy, worker).await?;
    lab.granted(lost, dying).await?;
    lab.store.retire_worker(dying).await?;
    lab.store.commit(parking(&lab.granted(parked, worker).await?, ParkReason::Approval)).await?;
    let seen = lab.store.longest_waiting(lab.tenant, 10).await?;
    // One that is parked waits since then.
    let expected = [(ids[1], 1), (ids[2], 2), (ids[3], 0), (ids[5], 0), (ids[4], 0)];
    assert_eq!(seen.iter().map(|it| (it.run, it.ahead)).collect::<Vec<_>>(), expected);
    assert_eq!(seen[3].owner, Owner::Expired { worker: dying });
    assert_eq!(seen[4].state, RunState::Parked);
    assert_eq!(seen[4].parked.map(|parked| parked.reason), Some(ParkReason::Approval));
    assert_eq!(lab.store.longest_waiting(lab.tenant, 2).await?.len(), 2);
    assert_eq!(lab.store.longest_waiting(lab.stranger().await?, 10).await?, []);
    Ok(())
}

pub(crate) async fn an_outlook_knows_what_is_ahead(lab: &Lab) -> Result<()> {
    let (first, second, third) = (lab.session().await?, lab.session().await?, lab.session().await?);
    let mut ids = Vec::new();
    for session in [first, second, third, third] {
        ids.push(lab.submit(session).await?.run.id);
    }
    let look = async |run| anyhow::Ok(lab.store.situation(lab.tenant, run).await?.outlook);
    let places: Vec<_> = [look(ids[0]).await?, look(ids[1]).await?, look(ids[3]).await?]
        .iter()
        .map(|outlook| outlook.place.map(|place| (place.ahead, place.at_least)))
        .collect();
    assert_eq!(places, [Some((0, false)), Some((1, false)), Some((2, false))]);
    assert_eq!(
        (look(ids[3]).await?.front.map(|front| front.run), look(ids[2]).await?.front),
        (Some(ids[2]), None)
    );
    let worker = lab.worker(LONG_LEASE).await?;
    let grant = lab.granted(third, worker).await?;
    lab.store.commit(progress(&grant, vec![step(&grant, 0)])).await?;
    let outlook = look(ids[2]).await?;
    assert_eq!((outlook.place, outlook.slots, outlook.steps_ended), (None, 4, 0));
    let free_since = outlook.slot_free_since.context("no slot is free")?;
    beat(lab, worker, &ids[..3]).await?;
    assert_eq!(look(ids[2]).await?.slot_free_since, Some(free_since), "it is as free as it was");
    beat(lab, worker, &ids).await?;
    assert_eq!(look(ids[2]).await?.slot_free_since, None);
    beat(lab, worker, &[ids[2]]).await?;
    assert!(look(ids[2]).await?.slot_free_since.is_some_and(|since| since > free_since));
    assert!(outlook.step.is_some_and(|step| !step.is_finished()));
    let heartbeat = outlook.heartbeat.context("no heartbeat")?;
    assert!(heartbeat.lease > LONG_LEASE / 2 && heartbeat.age < heartbeat.lease && !heartbeat.draining);
    assert_eq!(look(ids[3]).await?.front.map(|front| front.state), Some(RunState::Running));
    lab.store.drain_worker(worker).await?;
    let outlook = look(ids[2]).await?;
    assert_eq!((outlook.slots, outlook.draining), (0, 1));
    assert!(outlook.heartbeat.is_some_and(|heartbeat| heartbeat.draining));
    lab.store.commit(parking(&grant, ParkReason::Budget)).await?;
    let front = look(ids[3]).await?.front.context("nothing ahead")?;
    assert_eq!((front.state, front.parked.map(|it| it.reason)), (RunState::Parked, Some(ParkReason::Budget)));
    // Behind a parked run nothing can be taken.
    assert_eq!(look(ids[3]).await?.place, None);
    Ok(())
}

pub(crate) async fn an_outlook_knows_how_long_others_took(lab: &Lab) -> Result<()> {
    let (session, worker) = (lab.session().await?, lab.worker(LONG_LEASE).await?);
    let pace = async |run| {
        let outlook = lab.store.situation(lab.tenant, run).await?.outlook;
        anyhow::Ok((outlook.session_pace.len(), outlook.pool_pace.len()))
    };
    let alone = lab.submit(session).await?.run.id;
    assert_eq!(pace(alone).await?, (0, 0));
    for _ in 0..24 {
        lab.submit(session).await?;
    }
    for place in 0..23 {
        let grant = lab.granted(session, worker).await?;
        let state = if place == 22 { RunState::Cancelled } else { RunState::Completed };
        lab.store.commit(ending(&grant, state)).await?;
    }
    let next = lab.runs_of(session).await?[23].id;
    // Twenty are looked at, and one that somebody stopped says nothing.
    assert_eq!(pace(next).await?, (19, 0));
    let fresh = lab.session().await?;
    let first = lab.submit(fresh).await?.run.id;
    assert_eq!(pace(first).await?, (0, 22), "those of the same pool help out");
    let gpu = NewSession { pool: "gpu".parse()?, ..lab.new_session(None) };
    let gpu = lab.store.create_session(&gpu).await?.value.id;
    assert_eq!(pace(lab.submit(gpu).await?.run.id).await?, (0, 0));
    // Others' runs say nothing.
    let stranger = lab.stranger().await?;
    let workspace = lab.store.find_workspace(stranger, "default").await?.context("no workspace")?.id;
    let theirs = NewSession { tenant: stranger, workspace, ..lab.new_session(None) };
    let theirs = lab.store.create_session(&theirs).await?.value.id;
    let run = NewRun { tenant: stranger, ..lab.new_run(theirs) };
    let run = lab.store.submit(run).await?.run.id;
    let outlook = lab.store.situation(stranger, run).await?.outlook;
    assert_eq!((outlook.session_pace.len(), outlook.pool_pace.len()), (0, 0));
    Ok(())
}

pub(crate) async fn a_silent_worker_is_noticed_before_its_lease_ends(lab: &Lab) -> Result<()> {
    let registered = registration(Pool::default(), 1);
    lab.store.register_worker(&registered, SHORT_LEASE * 20).await?;
    let session = lab.session().await?;
    let run = lab.submit(session).await?.run.id;
    lab.granted(session, registered.id).await?;
    let age = async || -> Option<Duration> {
        Some(lab.store.situation(lab.tenant, run).await.ok()?.outlook.heartbeat?.age)
    };
    wait_for("some silence", PATIENCE, || async { age().await.is_some_and(|age| age > SHORT_LEASE / 4) })
        .await;
    beat(lab, registered.id, &[run]).await?;
    let lease = lab.store.situation(lab.tenant, run).await?.outlook.heartbeat.context("no heartbeat")?.lease;
    assert_eq!(lease.as_secs_f64().round(), LONG_LEASE.as_secs_f64());
    Ok(())
}
