//! Direct database access for tests, and checks of query plans.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use remuda_domain::{
    budget::{Amount, Limit},
    run::ParkReason,
};
use remuda_store::{BudgetTarget, Commit, ParkRequest, RunTransition, Sweep, connect};
use remuda_testkit::wait_for;
use sqlx::{Connection as _, PgConnection};

use crate::{
    fixture::{Fixture, LONG_LEASE, PATIENCE, completed, progress, step},
    retention::NO_TIME,
    tree_helpers::{
        approve, child, creating_children, new_approval, parked_for_approvals, parked_for_children,
    },
};

/// Executes one statement directly on the database.
pub(crate) async fn execute(fixture: &Fixture, sql: &'static str) -> Result<()> {
    let url = fixture.options().url;
    if fixture.is_postgres() {
        sqlx::query(sql).execute(&mut sqlx::PgConnection::connect(&url).await?).await?;
    } else {
        sqlx::query(sql).execute(&mut sqlx::SqliteConnection::connect(&url).await?).await?;
    }
    Ok(())
}

/// Reads a number directly from the database.
pub(crate) async fn count(fixture: &Fixture, sql: &'static str) -> Result<i64> {
    let url = fixture.options().url;
    Ok(if fixture.is_postgres() {
        sqlx::query_scalar(sql).fetch_one(&mut sqlx::PgConnection::connect(&url).await?).await?
    } else {
        sqlx::query_scalar(sql).fetch_one(&mut sqlx::SqliteConnection::connect(&url).await?).await?
    })
}

/// Number of connections with an open transaction.
pub(crate) async fn open_transactions(fixture: &Fixture) -> Result<i64> {
    let url = fixture.options().url;
    if fixture.is_postgres() {
        let mut connection = sqlx::PgConnection::connect(&url).await?;
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                   AND state LIKE 'idle in transaction%'";
        return Ok(sqlx::query_scalar(sql).fetch_one(&mut connection).await?);
    }
    // The write lock is free if no transaction is open.
    let mut connection = sqlx::SqliteConnection::connect(&url).await?;
    sqlx::query("BEGIN IMMEDIATE").execute(&mut connection).await?;
    sqlx::query("ROLLBACK").execute(&mut connection).await?;
    Ok(0)
}

/// Without ANALYZE: plans go wrong there first, and stay wrong while the tables grow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hot_statements_scan_no_table() -> Result<()> {
    const ROUNDS: i64 = 40;
    let fixture = Fixture::postgres().await?;
    let store = connect(&fixture.options()).await?;
    let (session, worker) = (fixture.session().await?, fixture.worker(LONG_LEASE).await?);
    for round in 0..ROUNDS {
        store.submit(fixture.keyed_run(session, &round.to_string(), 1)).await?;
        store.submit(fixture.keyed_run(session, &round.to_string(), 1)).await?;
        store.runnable_sessions(None, 10).await?;
        store.is_runnable(fixture.tenant, session).await?;
        let remuda_store::Claim::Granted(grant) = store.claim(fixture.tenant, session, worker).await? else {
            anyhow::bail!("not granted");
        };
        store.commit(progress(&grant, vec![step(&grant, 0)])).await?;
        store.request_cancel(fixture.tenant, grant.run.id, "x").await?;
        let running = vec![grant.run.id];
        store
            .renew_lease(&remuda_store::Heartbeat { worker, lease: LONG_LEASE, running, worked: Vec::new() })
            .await?;
        store.commit(completed(&grant)).await?;
        store.get_run(fixture.tenant, grant.run.id).await?;
        store.read_events(fixture.tenant, session, 0, 10).await?;
    }
    // A backend reports its statistics when it ends.
    drop(store);
    wait_for("the statistics", PATIENCE, || async {
        let written = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'runs'";
        let mut connection = PgConnection::connect(&fixture.options().url).await.ok()?;
        let updates: i64 = sqlx::query_scalar(written).fetch_one(&mut connection).await.ok()?;
        (updates >= ROUNDS).then_some(())
    })
    .await;
    let mut connection = PgConnection::connect(&fixture.options().url).await?;
    let scans: Vec<(String, i64)> = sqlx::query_as(
        "SELECT relname::text, seq_scan FROM pg_stat_user_tables \
         WHERE relname IN ('sessions', 'runs', 'idempotency_keys', 'steps', 'events') AND seq_scan >= $1",
    )
    .bind(ROUNDS / 2)
    .fetch_all(&mut connection)
    .await?;
    ensure!(scans.is_empty(), "scanned: {scans:?}");
    Ok(())
}

/// Rows read per index, and per table without an index, as far as backends have reported.
async fn rows_read(fixture: &Fixture) -> Result<BTreeMap<String, i64>> {
    let mut connection = PgConnection::connect(&fixture.options().url).await?;
    let read: Vec<(String, i64)> = sqlx::query_as(
        "SELECT indexrelname::text, idx_tup_read FROM pg_stat_user_indexes \
         UNION ALL SELECT relname::text, coalesce(seq_tup_read, 0) FROM pg_stat_user_tables",
    )
    .fetch_all(&mut connection)
    .await?;
    Ok(read.into_iter().collect())
}

async fn rows_read_since(fixture: &Fixture, before: &BTreeMap<String, i64>) -> Result<BTreeMap<String, i64>> {
    let mut read = rows_read(fixture).await?;
    for (name, rows) in &mut read {
        *rows -= before.get(name).copied().unwrap_or(0);
    }
    Ok(read)
}

/// Parks one run for a child that has not started, one for an approval, and one for a budget.
async fn park_one_run_per_reason(fixture: &Fixture) -> Result<()> {
    let (one, two) = (fixture.executing().await?, fixture.executing().await?);
    let children = [child()];
    fixture
        .store
        .commit(Commit { children: children.to_vec(), ..parked_for_children(&one, &children, 1) })
        .await?;
    fixture.store.commit(parked_for_approvals(&two, &[new_approval(Some(LONG_LEASE))])).await?;
    let three = fixture.budgeted(Limit { tokens: Some(1), micros: None }).await?;
    let amount = Some(Amount { tokens: 2, micros: 0 });
    let parking = ParkRequest { amount, ..ParkRequest::on(ParkReason::Budget) };
    fixture.store.commit(Commit::new(three.fence, three.run.id, RunTransition::Park(parking))).await?;
    Ok(())
}

/// The reconciler scans often and mostly finds nothing. Ended runs must not make it slower.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconciler_scans_read_little_with_a_large_history() -> Result<()> {
    const ROUNDS: i64 = 50;
    const PAST: i64 = 100;
    let fixture = Fixture::postgres().await?;
    // History: ended trees, decided approvals.
    for _ in 0..PAST {
        let grant = fixture.executing().await?;
        let children = [child()];
        let asked = new_approval(None);
        let commit = Commit { approvals: vec![asked.clone()], ..creating_children(&grant, &children) };
        fixture.store.commit(commit).await?;
        fixture.store.decide(&fixture.approver(), asked.id, &approve()).await?;
        fixture.execute_head_run(children[0].run.session).await?;
        fixture.store.commit(completed(&grant)).await?;
    }
    // And unfinished runs.
    park_one_run_per_reason(&fixture).await?;
    // Ended rows stay in the indexes until they are vacuumed, which a busy database does by itself.
    execute(&fixture, "VACUUM").await?;
    let fixture = fixture.reopened().await?;
    let before = rows_read(&fixture).await?;
    for _ in 0..ROUNDS {
        assert!(fixture.store.resume_ready(None, 10).await?.result.is_empty());
        assert!(fixture.store.stop_orphans(None, 10).await?.result.ended.is_empty());
        assert!(fixture.store.expire_approvals(10).await?.changes.is_empty());
        assert!(fixture.store.next_approval_expiry().await?.is_some());
    }
    let fixture = fixture.reopened().await?;
    let mut read = rows_read_since(&fixture, &before).await?;
    ensure!(
        read.get("approvals_by_expiry").is_some_and(|rows| *rows >= ROUNDS),
        "nothing was read: {read:?}"
    );
    read.retain(|_, rows| *rows >= ROUNDS * PAST);
    ensure!(read.is_empty(), "too many rows were read in {ROUNDS} rounds: {read:?}");
    Ok(())
}

/// A page of a scan reads little however many runs are parked, and so does a change of a budget that no run waits for.
/// With and without ANALYZE.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paged_scans_read_little_with_many_parked_runs() -> Result<()> {
    const ROUNDS: i64 = 20;
    const PAGE: u32 = 10;
    const MAX_ROWS: i64 = ROUNDS * 20 * PAGE as i64;
    let mut fixture = Fixture::postgres().await?;
    park_one_run_per_reason(&fixture).await?;
    // Two thousand copies of each, and as many children of a live parent.
    execute(
        &fixture,
        "INSERT INTO runs SELECT n.* FROM runs r, generate_series(1, 2000) g, LATERAL jsonb_populate_record(r, \
         jsonb_build_object('id', gen_random_uuid(), 'seq', r.seq + g)) n WHERE r.state < 10",
    )
    .await?;
    execute(
        &fixture,
        "INSERT INTO waits (run_id, awaited) SELECT r.id, w.awaited FROM waits w JOIN runs o ON o.id = w.run_id \
         JOIN runs r ON r.session_id = o.session_id AND r.id <> o.id",
    )
    .await?;
    let rich = fixture.budgeted(Limit { tokens: Some(1), micros: None }).await?;
    let of = BudgetTarget::Run(rich.run.id);
    for analysed in [false, true] {
        if analysed {
            execute(&fixture, "VACUUM ANALYZE").await?;
        }
        fixture = fixture.reopened().await?;
        let before = rows_read(&fixture).await?;
        let (mut parked, mut child) = (None, None);
        for round in 0..ROUNDS {
            let resumed = fixture.store.resume_ready(parked, PAGE).await?;
            let stopped = fixture.store.stop_orphans(child, PAGE).await?;
            ensure!(resumed.result.is_empty() && stopped.result.ended.is_empty(), "a wait is satisfied");
            ensure!(resumed.next > parked && stopped.next > child, "the scan does not advance");
            (parked, child) = (resumed.next, stopped.next);
            let limit = Limit { tokens: Some(2 + round.unsigned_abs()), micros: None };
            ensure!(fixture.store.set_budget(fixture.tenant, of, limit).await?.resumed.is_empty());
        }
        fixture = fixture.reopened().await?;
        let mut read = rows_read_since(&fixture, &before).await?;
        ensure!(read.get("runs_parked").is_some_and(|rows| *rows >= ROUNDS), "nothing was read: {read:?}");
        read.retain(|_, rows| *rows >= MAX_ROWS);
        ensure!(
            read.is_empty(),
            "too many rows were read in {ROUNDS} rounds (analysed: {analysed}): {read:?}"
        );
    }
    Ok(())
}

/// People refresh every second: the cost depends on the number of sessions and workers, not on queued or ended runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overview_reads_little_with_many_runs() -> Result<()> {
    const ROUNDS: i64 = 20;
    const MAX_ROWS: i64 = ROUNDS * 600 * 4;
    let mut fixture = Fixture::postgres().await?;
    park_one_run_per_reason(&fixture).await?;
    let (session, worker) = (fixture.session().await?, fixture.worker(LONG_LEASE).await?);
    let waiting = fixture.submit(fixture.session().await?).await?.run.id;
    fixture.submit(session).await?;
    let running = vec![fixture.granted(session, worker).await?.run.id];
    fixture
        .store
        .renew_lease(&remuda_store::Heartbeat { worker, lease: LONG_LEASE, running, worked: Vec::new() })
        .await?;
    // Many queued runs, and as many ended ones.
    for state in ["0", "10"] {
        let sql = format!(
            "INSERT INTO runs SELECT n.* FROM runs r, generate_series(1, 20000) g, LATERAL jsonb_populate_record(r, \
             jsonb_build_object('id', 'ffffffff-0000-7000-8000-' || lpad(to_hex({state}000000 + g), 12, '0'), \
             'seq', r.seq + {state}000000 + g, 'state', {state}, 'started_at', now(), 'finished_at', now())) n WHERE r.id = '{}'",
            waiting.as_uuid()
        );
        let mut connection = PgConnection::connect(&fixture.options().url).await?;
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await?;
    }
    // Workers that are gone.
    execute(
        &fixture,
        "INSERT INTO workers SELECT n.* FROM (SELECT * FROM workers WHERE state = 0 LIMIT 1) w, generate_series(1, 5000) g, \
         LATERAL jsonb_populate_record(w::workers, jsonb_build_object('id', md5(g::text)::uuid, 'state', 2, 'taken_back', true)) n",
    )
    .await?;
    for analysed in [false, true] {
        if analysed {
            execute(&fixture, "VACUUM ANALYZE").await?;
        }
        fixture = fixture.reopened().await?;
        let before = rows_read(&fixture).await?;
        for _ in 0..ROUNDS {
            let view = fixture.store.fleet_view(1000).await?;
            ensure!(!view.at_least && view.pools.len() == 1, "{view:?}");
            ensure!(fixture.store.longest_running(fixture.tenant, 20).await?.len() == 1);
            ensure!(fixture.store.longest_waiting(fixture.tenant, 20).await?.len() == 20);
            let estimate_inputs = fixture.store.diagnostics(fixture.tenant, waiting).await?.estimate_inputs;
            ensure!(
                estimate_inputs.place.is_some() && !estimate_inputs.pool_pace.is_empty(),
                "{estimate_inputs:?}"
            );
        }
        fixture = fixture.reopened().await?;
        let mut read = rows_read_since(&fixture, &before).await?;
        ensure!(
            read.get("runs_live_by_tenant").is_some_and(|rows| *rows >= ROUNDS),
            "nothing was read: {read:?}"
        );
        read.retain(|_, rows| *rows >= MAX_ROWS);
        ensure!(
            read.is_empty(),
            "too many rows were read in {ROUNDS} rounds (analysed: {analysed}): {read:?}"
        );
    }
    Ok(())
}

/// The cost of deleting depends on the number of old runs and sessions, not on the other rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_reads_little_beside_recent_rows() -> Result<()> {
    const OLD: i64 = 200;
    const MAX_ROWS: i64 = OLD * 20;
    for analysed in [false, true] {
        let fixture = Fixture::postgres().await?;
        let worked = fixture.executing().await?;
        fixture.store.commit(progress(&worked, vec![step(&worked, 0)])).await?;
        fixture.store.commit(completed(&worked)).await?;
        // Otherwise autovacuum might analyse the tables half-full, which is neither of the two cases.
        for sql in [
            "ALTER TABLE runs SET (autovacuum_enabled = off)",
            "ALTER TABLE sessions SET (autovacuum_enabled = off)",
            "ALTER TABLE events SET (autovacuum_enabled = off)",
            "ALTER TABLE steps SET (autovacuum_enabled = off)",
        ] {
            execute(&fixture, sql).await?;
        }
        for (low, many, keyed) in
            [("00000000", OLD, "now() - interval '1 hour'"), ("ffffffff", 20_000, "now()")]
        {
            let ids = format!("'{low}-0000-7000-8000-' || lpad(to_hex(g), 12, '0')");
            for sql in [
                format!(
                    "INSERT INTO runs SELECT n.* FROM runs r, generate_series(1, {many}) g, LATERAL jsonb_populate_record(r, \
                     jsonb_build_object('id', {ids}, 'session_id', {ids}, 'seq', 1, 'idempotency_key', '{low}' || g)) n WHERE r.id = '{}'",
                    worked.run.id.as_uuid()
                ),
                format!(
                    "INSERT INTO sessions SELECT n.* FROM sessions s, generate_series(1, {many}) g, \
                     LATERAL jsonb_populate_record(s, jsonb_build_object('id', {ids}, 'last_seq', 1)) n WHERE s.id = '{}'",
                    worked.fence.session.as_uuid()
                ),
                format!(
                    "INSERT INTO events SELECT ({ids})::uuid, e.last_cursor, e.chunk FROM events e, generate_series(1, {many}) g \
                     WHERE e.last_cursor = 1 AND e.session_id = '{}'",
                    worked.fence.session.as_uuid()
                ),
                format!(
                    "INSERT INTO steps SELECT ({ids})::uuid, t.id, 0, t.step FROM steps t, generate_series(1, {many}) g WHERE t.run_id = '{}'",
                    worked.run.id.as_uuid()
                ),
                format!(
                    "INSERT INTO idempotency_keys SELECT r.tenant_id, r.idempotency_key, '', r.id, {keyed} \
                     FROM runs r WHERE r.idempotency_key LIKE '{low}%'"
                ),
            ] {
                let mut connection = PgConnection::connect(&fixture.options().url).await?;
                sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await?;
            }
        }
        if analysed {
            execute(&fixture, "VACUUM ANALYZE").await?;
        }
        let fixture = fixture.reopened().await?;
        let before = rows_read(&fixture).await?;
        fixture.sleep_past_clock_skew().await;
        ensure!(fixture.collect_runs(NO_TIME, 50, true).await? >= OLD.unsigned_abs());
        let sweep = Sweep { older_than: NO_TIME, after: None, limit: 100, dry_run: false };
        ensure!(fixture.store.collect_runs(sweep).await?.deleted == 100);
        ensure!(fixture.collect_sessions(NO_TIME, 50, false).await? >= OLD.unsigned_abs());
        ensure!(fixture.store.collect_workers(NO_TIME, false).await? == 0);
        let fixture = fixture.reopened().await?;
        let mut read = rows_read_since(&fixture, &before).await?;
        ensure!(read.get("runs_pkey").is_some_and(|rows| *rows >= OLD), "nothing was read: {read:?}");
        read.retain(|_, rows| *rows >= MAX_ROWS);
        ensure!(read.is_empty(), "too many rows were read (analysed: {analysed}): {read:?}");
        ensure!(count(&fixture, "SELECT count(*) FROM runs").await? == 20_000);
    }
    Ok(())
}
