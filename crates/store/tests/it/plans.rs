//! Looking at the database past the store: what is open, and how statements are executed.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use remuda_domain::{
    budget::{Amount, Limit},
    run::ParkReason,
};
use remuda_store::{BudgetOf, Commit, Parking, Sweep, Then, connect};
use remuda_testkit::wait_for;
use sqlx::{Connection as _, PgConnection};

use crate::{
    family::{asking, awaiting, child, making, question, yes},
    lab::{LONG_LEASE, Lab, PATIENCE, completed, progress, step},
    retention::NO_TIME,
};

/// Executes one statement behind the store's back.
pub(crate) async fn execute(lab: &Lab, sql: &'static str) -> Result<()> {
    let url = lab.options().url;
    if lab.is_postgres() {
        sqlx::query(sql).execute(&mut sqlx::PgConnection::connect(&url).await?).await?;
    } else {
        sqlx::query(sql).execute(&mut sqlx::SqliteConnection::connect(&url).await?).await?;
    }
    Ok(())
}

/// A number that only the database knows.
pub(crate) async fn count(lab: &Lab, sql: &'static str) -> Result<i64> {
    let url = lab.options().url;
    Ok(if lab.is_postgres() {
        sqlx::query_scalar(sql).fetch_one(&mut sqlx::PgConnection::connect(&url).await?).await?
    } else {
        sqlx::query_scalar(sql).fetch_one(&mut sqlx::SqliteConnection::connect(&url).await?).await?
    })
}

/// Connections that sit inside a transaction.
pub(crate) async fn open_transactions(lab: &Lab) -> Result<i64> {
    let url = lab.options().url;
    if lab.is_postgres() {
        let mut connection = sqlx::PgConnection::connect(&url).await?;
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                   AND state LIKE 'idle in transaction%'";
        return Ok(sqlx::query_scalar(sql).fetch_one(&mut connection).await?);
    }
    // The write lock is free when nobody is inside a transaction.
    let mut connection = sqlx::SqliteConnection::connect(&url).await?;
    sqlx::query("BEGIN IMMEDIATE").execute(&mut connection).await?;
    sqlx::query("ROLLBACK").execute(&mut connection).await?;
    Ok(0)
}

/// On a database that nobody has analysed: there plans go wrong first, and stay wrong while the tables grow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hot_statements_scan_no_table() -> Result<()> {
    const ROUNDS: i64 = 40;
    let lab = Lab::postgres().await?;
    let store = connect(&lab.options()).await?;
    let (session, worker) = (lab.session().await?, lab.worker(LONG_LEASE).await?);
    for round in 0..ROUNDS {
        store.submit(lab.keyed_run(session, &round.to_string(), 1)).await?;
        store.submit(lab.keyed_run(session, &round.to_string(), 1)).await?;
        store.runnable_sessions(None, 10).await?;
        store.is_runnable(lab.tenant, session).await?;
        let remuda_store::Claim::Granted(grant) = store.claim(lab.tenant, session, worker).await? else {
            anyhow::bail!("not granted");
        };
        store.commit(progress(&grant, vec![step(&grant, 0)])).await?;
        store.request_cancel(lab.tenant, grant.run.id, "x").await?;
        let running = vec![grant.run.id];
        store.renew_lease(&remuda_store::Heartbeat { worker, lease: LONG_LEASE, running }).await?;
        store.commit(completed(&grant)).await?;
        store.get_run(lab.tenant, grant.run.id).await?;
        store.read_events(lab.tenant, session, 0, 10).await?;
    }
    // A backend reports what it did when it ends.
    drop(store);
    wait_for("the statistics", PATIENCE, || async {
        let written = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'runs'";
        let mut connection = PgConnection::connect(&lab.options().url).await.ok()?;
        let updates: i64 = sqlx::query_scalar(written).fetch_one(&mut connection).await.ok()?;
        (updates >= ROUNDS).then_some(())
    })
    .await;
    let mut connection = PgConnection::connect(&lab.options().url).await?;
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

/// How many rows were read of each index, and of each table past its indexes, as far as backends have told.
async fn rows_read(lab: &Lab) -> Result<BTreeMap<String, i64>> {
    let mut connection = PgConnection::connect(&lab.options().url).await?;
    let read: Vec<(String, i64)> = sqlx::query_as(
        "SELECT indexrelname::text, idx_tup_read FROM pg_stat_user_indexes \
         UNION ALL SELECT relname::text, coalesce(seq_tup_read, 0) FROM pg_stat_user_tables",
    )
    .fetch_all(&mut connection)
    .await?;
    Ok(read.into_iter().collect())
}

async fn rows_read_since(lab: &Lab, before: &BTreeMap<String, i64>) -> Result<BTreeMap<String, i64>> {
    let mut read = rows_read(lab).await?;
    for (name, rows) in &mut read {
        *rows -= before.get(name).copied().unwrap_or(0);
    }
    Ok(read)
}

/// One that waits for a child, which is still to begin, one for a person, one for money.
async fn waiting_for_all_kinds(lab: &Lab) -> Result<()> {
    let (one, two) = (lab.executing().await?, lab.executing().await?);
    let children = [child()];
    lab.store.commit(Commit { children: children.to_vec(), ..awaiting(&one, &children, 1) }).await?;
    lab.store.commit(asking(&two, &[question(Some(LONG_LEASE))])).await?;
    let three = lab.budgeted(Limit { tokens: Some(1), micros: None }).await?;
    let amount = Some(Amount { tokens: 2, micros: 0 });
    let parking = Parking { amount, ..Parking::on(ParkReason::Budget) };
    lab.store.commit(Commit::new(three.fence, three.run.id, Then::Park(parking))).await?;
    Ok(())
}

/// The reconciler looks often, and mostly there is nothing to find. What is over and done must not make it slower.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looking_for_what_waits_reads_little() -> Result<()> {
    const ROUNDS: i64 = 50;
    const PAST: i64 = 100;
    let lab = Lab::postgres().await?;
    // A past: trees that ended, questions that were answered.
    for _ in 0..PAST {
        let grant = lab.executing().await?;
        let children = [child()];
        let asked = question(None);
        let commit = Commit { approvals: vec![asked.clone()], ..making(&grant, &children) };
        lab.store.commit(commit).await?;
        lab.store.decide(&lab.anna(), asked.id, &yes()).await?;
        lab.work_off(children[0].session).await?;
        lab.store.commit(completed(&grant)).await?;
    }
    // And a present.
    waiting_for_all_kinds(&lab).await?;
    // What ended is still in the indexes until it is swept up, which a busy database does by itself.
    execute(&lab, "VACUUM").await?;
    let lab = lab.reopened().await?;
    let before = rows_read(&lab).await?;
    for _ in 0..ROUNDS {
        assert!(lab.store.resume_ready(None, 10).await?.done.is_empty());
        assert!(lab.store.stop_orphans(None, 10).await?.done.ended.is_empty());
        assert!(lab.store.expire_approvals(10).await?.changes.is_empty());
        assert!(lab.store.next_approval_end().await?.is_some());
    }
    let lab = lab.reopened().await?;
    let mut read = rows_read_since(&lab, &before).await?;
    ensure!(
        read.get("approvals_by_expiry").is_some_and(|rows| *rows >= ROUNDS),
        "nothing was looked at: {read:?}"
    );
    read.retain(|_, rows| *rows >= ROUNDS * PAST);
    ensure!(read.is_empty(), "much was read in {ROUNDS} rounds: {read:?}");
    Ok(())
}

/// However much waits, a look at some of it reads little, and so does a change of a budget that nobody waits for. Whether somebody
/// has analysed the database or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looking_at_some_of_much_that_waits_reads_little() -> Result<()> {
    const ROUNDS: i64 = 20;
    const LOOK: u32 = 10;
    const MOST: i64 = ROUNDS * 20 * LOOK as i64;
    let mut lab = Lab::postgres().await?;
    waiting_for_all_kinds(&lab).await?;
    // Each of them two thousand times over, and as many children of a parent that lives.
    execute(
        &lab,
        "INSERT INTO runs SELECT n.* FROM runs r, generate_series(1, 2000) g, LATERAL jsonb_populate_record(r, \
         jsonb_build_object('id', gen_random_uuid(), 'seq', r.seq + g)) n WHERE r.state < 10",
    )
    .await?;
    execute(
        &lab,
        "INSERT INTO waits (run_id, awaited) SELECT r.id, w.awaited FROM waits w JOIN runs o ON o.id = w.run_id \
         JOIN runs r ON r.session_id = o.session_id AND r.id <> o.id",
    )
    .await?;
    let rich = lab.budgeted(Limit { tokens: Some(1), micros: None }).await?;
    let of = BudgetOf::Run(rich.run.id);
    for analysed in [false, true] {
        if analysed {
            execute(&lab, "VACUUM ANALYZE").await?;
        }
        lab = lab.reopened().await?;
        let before = rows_read(&lab).await?;
        let (mut parked, mut child) = (None, None);
        for round in 0..ROUNDS {
            let resumed = lab.store.resume_ready(parked, LOOK).await?;
            let stopped = lab.store.stop_orphans(child, LOOK).await?;
            ensure!(resumed.done.is_empty() && stopped.done.ended.is_empty(), "something is over");
            ensure!(resumed.next > parked && stopped.next > child, "no way forward");
            (parked, child) = (resumed.next, stopped.next);
            let limit = Limit { tokens: Some(2 + round.unsigned_abs()), micros: None };
            ensure!(lab.store.set_budget(lab.tenant, of, limit).await?.resumed.is_empty());
        }
        lab = lab.reopened().await?;
        let mut read = rows_read_since(&lab, &before).await?;
        ensure!(
            read.get("runs_parked").is_some_and(|rows| *rows >= ROUNDS),
            "nothing was looked at: {read:?}"
        );
        read.retain(|_, rows| *rows >= MOST);
        ensure!(read.is_empty(), "much was read in {ROUNDS} rounds (analysed: {analysed}): {read:?}");
    }
    Ok(())
}

/// People look every second, at a line of any length: what a look costs is told by sessions and workers, not by runs that wait or are over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looking_at_everything_reads_little() -> Result<()> {
    const ROUNDS: i64 = 20;
    const MOST: i64 = ROUNDS * 600 * 4;
    let mut lab = Lab::postgres().await?;
    waiting_for_all_kinds(&lab).await?;
    let (session, worker) = (lab.session().await?, lab.worker(LONG_LEASE).await?);
    let waiting = lab.submit(lab.session().await?).await?.run.id;
    lab.submit(session).await?;
    let running = vec![lab.granted(session, worker).await?.run.id];
    lab.store.renew_lease(&remuda_store::Heartbeat { worker, lease: LONG_LEASE, running }).await?;
    // Many that wait, and as many that are over.
    for state in ["0", "10"] {
        let sql = format!(
            "INSERT INTO runs SELECT n.* FROM runs r, generate_series(1, 20000) g, LATERAL jsonb_populate_record(r, \
             jsonb_build_object('id', 'ffffffff-0000-7000-8000-' || lpad(to_hex({state}000000 + g), 12, '0'), \
             'seq', r.seq + {state}000000 + g, 'state', {state}, 'started_at', now(), 'finished_at', now())) n WHERE r.id = '{}'",
            waiting.as_uuid()
        );
        let mut connection = PgConnection::connect(&lab.options().url).await?;
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await?;
    }
    // Workers that came and went.
    execute(
        &lab,
        "INSERT INTO workers SELECT n.* FROM (SELECT * FROM workers WHERE state = 0 LIMIT 1) w, generate_series(1, 5000) g, \
         LATERAL jsonb_populate_record(w::workers, jsonb_build_object('id', md5(g::text)::uuid, 'state', 2, 'taken_back', true)) n",
    )
    .await?;
    for analysed in [false, true] {
        if analysed {
            execute(&lab, "VACUUM ANALYZE").await?;
        }
        lab = lab.reopened().await?;
        let before = rows_read(&lab).await?;
        for _ in 0..ROUNDS {
            let view = lab.store.fleet_view(1000).await?;
            ensure!(!view.at_least && view.pools.len() == 1, "{view:?}");
            ensure!(lab.store.longest_running(lab.tenant, 20).await?.len() == 1);
            ensure!(lab.store.longest_waiting(lab.tenant, 20).await?.len() == 20);
            let outlook = lab.store.situation(lab.tenant, waiting).await?.outlook;
            ensure!(outlook.place.is_some() && !outlook.pool_pace.is_empty(), "{outlook:?}");
        }
        lab = lab.reopened().await?;
        let mut read = rows_read_since(&lab, &before).await?;
        ensure!(
            read.get("runs_live_by_tenant").is_some_and(|rows| *rows >= ROUNDS),
            "nothing was looked at: {read:?}"
        );
        read.retain(|_, rows| *rows >= MOST);
        ensure!(read.is_empty(), "much was read in {ROUNDS} rounds (analysed: {analysed}): {read:?}");
    }
    Ok(())
}

/// What old runs and sessions cost to delete is told by how many they are, not by what else there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleting_reads_little() -> Result<()> {
    const OLD: i64 = 200;
    const MOST: i64 = OLD * 20;
    for analysed in [false, true] {
        let lab = Lab::postgres().await?;
        let worked = lab.executing().await?;
        lab.store.commit(progress(&worked, vec![step(&worked, 0)])).await?;
        lab.store.commit(completed(&worked)).await?;
        // Else the tables might be analysed when they are half full, which is neither of the two.
        for sql in [
            "ALTER TABLE runs SET (autovacuum_enabled = off)",
            "ALTER TABLE sessions SET (autovacuum_enabled = off)",
            "ALTER TABLE events SET (autovacuum_enabled = off)",
            "ALTER TABLE steps SET (autovacuum_enabled = off)",
        ] {
            execute(&lab, sql).await?;
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
                let mut connection = PgConnection::connect(&lab.options().url).await?;
                sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await?;
            }
        }
        if analysed {
            execute(&lab, "VACUUM ANALYZE").await?;
        }
        let lab = lab.reopened().await?;
        let before = rows_read(&lab).await?;
        lab.a_moment().await;
        ensure!(lab.collect_runs(NO_TIME, 50, true).await? >= OLD.unsigned_abs());
        let sweep = Sweep { older_than: NO_TIME, after: None, limit: 100, dry_run: false };
        ensure!(lab.store.collect_runs(sweep).await?.deleted == 100);
        ensure!(lab.collect_sessions(NO_TIME, 50, false).await? >= OLD.unsigned_abs());
        ensure!(lab.store.collect_workers(NO_TIME, false).await? == 0);
        let lab = lab.reopened().await?;
        let mut read = rows_read_since(&lab, &before).await?;
        ensure!(read.get("runs_pkey").is_some_and(|rows| *rows >= OLD), "nothing was looked at: {read:?}");
        read.retain(|_, rows| *rows >= MOST);
        ensure!(read.is_empty(), "much was read (analysed: {analysed}): {read:?}");
        ensure!(count(&lab, "SELECT count(*) FROM runs").await? == 20_000);
    }
    Ok(())
}
