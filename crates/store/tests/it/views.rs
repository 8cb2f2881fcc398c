//! The SQL views for operators.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use chrono::DurationRound as _;
use remuda_domain::{
    RunId, RunInput, RunState, SandboxId, SessionId, StepId, TenantId, WorkerId,
    budget::{Limit, Spent},
    execution::{BackendKind, Holder, SandboxRecord, SandboxState},
    model::Usage,
    run::{Failure, ParkReason, RunEnd},
};
use remuda_store::{Commit, Finish, Grant, NewSession, RunTransition};
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use crate::{
    fixture::{Fixture, LONG_LEASE, SHORT_LEASE, completed, ending, message_input, parking, progress},
    tree_helpers::{child, parked_for_children},
};

pub(crate) const VIEWS: [&str; 6] =
    ["v_sessions", "v_runs", "v_queue", "v_workers", "v_sandboxes", "v_costs"];
/// Occurs only in contents and secrets.
pub(crate) const CONTENTS: &str = "SECRET";

/// Rows of a view as text, by column. Numbers are shortened to what both databases return, and true is 1.
pub(crate) async fn rows(
    fixture: &Fixture,
    columns: &str,
    rest: &str,
) -> Result<Vec<BTreeMap<String, Option<String>>>> {
    let names: Vec<String> = columns.split(", ").map(str::to_owned).collect();
    let texts: Vec<String> = names.iter().map(|name| format!("CAST({name} AS text)")).collect();
    let sql = format!("SELECT {} FROM {rest}", texts.join(", "));
    let url = fixture.options().url;
    let texts: Vec<Vec<Option<String>>> = if fixture.is_postgres() {
        let mut connection = sqlx::PgConnection::connect(&url).await?;
        let found = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut connection).await?;
        found.iter().map(|row| (0..names.len()).map(|at| row.get(at)).collect()).collect()
    } else {
        let mut connection = sqlx::SqliteConnection::connect(&url).await?;
        let found = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut connection).await?;
        found.iter().map(|row| (0..names.len()).map(|at| row.get(at)).collect()).collect()
    };
    let row = |texts: Vec<Option<String>>| {
        names.iter().cloned().zip(texts.into_iter().map(|text| text.map(plain))).collect()
    };
    Ok(texts.into_iter().map(row).collect())
}

fn plain(text: String) -> String {
    match (text.as_str(), text.parse::<f64>()) {
        ("true", _) => "1".into(),
        ("false", _) => "0".into(),
        (_, Ok(number)) if number.is_finite() => number.to_string(),
        _ => text,
    }
}

/// One row, in column order; `-` for NULL.
async fn one(fixture: &Fixture, columns: &str, rest: &str) -> Result<String> {
    let found = rows(fixture, columns, rest).await?;
    ensure!(found.len() == 1, "{} rows of {rest}: {found:?}", found.len());
    let texts = columns.split(", ").map(|name| found[0][name].clone().unwrap_or_else(|| "-".into()));
    Ok(texts.collect::<Vec<_>>().join(" "))
}

async fn number(fixture: &Fixture, column: &str, rest: &str) -> Result<f64> {
    let text = one(fixture, column, rest).await?;
    text.parse().with_context(|| format!("{column} of {rest} is {text}"))
}

fn of(run: RunId) -> String {
    format!("v_runs WHERE run_id = '{run}'")
}

fn spending(tokens: u64) -> Vec<Spent> {
    let usage = Usage {
        input_tokens: tokens,
        output_tokens: 7,
        cached_input_tokens: 3,
        cache_write_tokens: 2,
        reasoning_tokens: 1,
    };
    vec![Spent { step: StepId::new(), usage, micros: tokens * 1000 }]
}

fn named(fixture: &Fixture, name: &str) -> NewSession {
    NewSession {
        title: format!("{CONTENTS} title"),
        agent: Some("build".into()),
        model: Some("openai/gpt".into()),
        ..fixture.new_session(Some(name))
    }
}

/// A run in each state, each in a session named after the state.
pub(crate) struct RunsInEachState {
    runs: BTreeMap<&'static str, RunId>,
    worker: WorkerId,
    child: RunId,
}

async fn session(fixture: &Fixture, name: &str) -> Result<SessionId> {
    Ok(fixture.store.create_session(&named(fixture, name)).await?.value.id)
}

async fn submit(fixture: &Fixture, session: SessionId) -> Result<RunId> {
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let input = RunInput::Message(message_input(CONTENTS));
    let mut run = fixture.new_run(session);
    (run.run.input, run.run.traceparent) = (input, Some(trace.into()));
    Ok(fixture.store.submit(run).await?.run.id)
}

async fn started(fixture: &Fixture, name: &str, worker: WorkerId) -> Result<Grant> {
    let session = session(fixture, name).await?;
    submit(fixture, session).await?;
    fixture.granted(session, worker).await
}

pub(crate) async fn runs_in_each_state(fixture: &Fixture) -> Result<RunsInEachState> {
    let worker = fixture.worker(LONG_LEASE).await?;
    let mut runs = BTreeMap::new();
    runs.insert("queued", submit(fixture, session(fixture, "queued").await?).await?);

    let running = started(fixture, "running", worker).await?;
    fixture.store.commit(Commit { spent: spending(40), ..progress(&running, Vec::new()) }).await?;
    runs.insert("running", running.run.id);
    // After the running one in the same queue.
    runs.insert("behind", submit(fixture, running.fence.session).await?);

    let parked = started(fixture, "parked", worker).await?;
    let below = child();
    let commit = Commit {
        children: vec![below.clone()],
        ..parked_for_children(&parked, std::slice::from_ref(&below), 1)
    };
    fixture.store.commit(commit).await?;
    runs.insert("parked", parked.run.id);

    let completed_one = started(fixture, "completed", worker).await?;
    fixture.store.commit(Commit { spent: spending(100), ..progress(&completed_one, Vec::new()) }).await?;
    fixture.store.commit(Commit { spent: spending(200), ..completed(&completed_one) }).await?;
    runs.insert("completed", completed_one.run.id);

    let failed = started(fixture, "failed", worker).await?;
    let failure = Failure { code: "tool_failed".into(), message: format!("{CONTENTS} \u{0} said") };
    let end = RunEnd { state: RunState::Failed, outcomes: Vec::new(), failure: Some(failure) };
    let then = match completed(&failed).then {
        RunTransition::End(finish) => RunTransition::End(Finish { end, ..finish }),
        other => other,
    };
    fixture.store.commit(Commit { then, ..progress(&failed, Vec::new()) }).await?;
    runs.insert("failed", failed.run.id);

    let cancelled = started(fixture, "cancelled", worker).await?;
    fixture.store.request_cancel(fixture.tenant, cancelled.run.id, CONTENTS).await?;
    fixture.store.commit(ending(&cancelled, RunState::Cancelled)).await?;
    runs.insert("cancelled", cancelled.run.id);

    let late = started(fixture, "timed_out", worker).await?;
    fixture.store.commit(ending(&late, RunState::TimedOut)).await?;
    runs.insert("timed_out", late.run.id);
    Ok(RunsInEachState { runs, worker, child: below.run.id })
}

pub(crate) async fn view_shows_runs_in_each_state(fixture: &Fixture) -> Result<()> {
    let RunsInEachState { runs, worker, child } = runs_in_each_state(fixture).await?;
    for (name, run) in &runs {
        let (state, seq, owner) = match *name {
            "behind" => ("queued", 2, "-".to_owned()),
            "running" => ("running", 1, worker.to_string()),
            other => (other, 1, "-".to_owned()),
        };
        let unfinished = u8::from(matches!(state, "queued" | "running" | "parked"));
        let known = fixture.run(*run).await?;
        assert_eq!(known.state.as_str(), state);
        assert_eq!(
            one(
                fixture,
                "tenant, tenant_id, run_id, session_id, pool, seq, kind, state, unfinished, worker_id",
                &of(*run)
            )
            .await?,
            format!(
                "acme {} {run} {} default {seq} message {state} {unfinished} {owner}",
                fixture.tenant, known.session
            )
        );
        let session_name = if *name == "behind" { "running" } else { name };
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert_eq!(
            one(fixture, "session_name, trace_id", &of(*run)).await?,
            format!("{session_name} {trace}")
        );
        assert_eq!(
            number(fixture, "attempts", &of(*run)).await?,
            f64::from(known.attempt),
            "attempts of {name}"
        );
        let begun = one(fixture, "started_at", &of(*run)).await? != "-";
        assert_eq!(begun, known.started_at.is_some(), "{name}");
        assert_eq!(one(fixture, "run_seconds", &of(*run)).await? != "-", begun, "{name}");
        assert!(number(fixture, "queue_seconds", &of(*run)).await? >= 0.0);
        assert_eq!(number(fixture, "timeout_seconds", &of(*run)).await?, 60.0);
        assert_eq!(one(fixture, "finished_at", &of(*run)).await? == "-", unfinished == 1);
    }
    let waits = one(fixture, "waits_for, paused_seconds, parent_run_id", &of(runs["parked"])).await?;
    assert_eq!(waits, "children 0 -");
    assert!(one(fixture, "waits_since", &of(runs["parked"])).await? != "-");
    assert_eq!(
        one(fixture, "parent_run_id, session_name", &of(child)).await?,
        format!("{} -", runs["parked"])
    );
    assert_eq!(one(fixture, "failure_code", &of(runs["failed"])).await?, "tool_failed");
    assert_eq!(one(fixture, "failure_code", &of(runs["completed"])).await?, "-");
    // A cancellation without delivery to a worker, and the end.
    assert!(number(fixture, "cancel_seconds", &of(runs["cancelled"])).await? >= 0.0);
    assert!(one(fixture, "cancel_requested_at", &of(runs["cancelled"])).await? != "-");
    assert_eq!(one(fixture, "cancel_requested_at, cancel_seconds", &of(runs["completed"])).await?, "- -");
    let money = "model_calls, input_tokens, output_tokens, cached_tokens, cache_write_tokens, reasoning_tokens, cost_usd";
    assert_eq!(one(fixture, money, &of(runs["completed"])).await?, "2 300 14 6 4 2 0.3");
    assert_eq!(one(fixture, money, &of(runs["running"])).await?, "1 40 7 3 2 1 0.04");
    assert_eq!(one(fixture, money, &of(runs["queued"])).await?, "- - - - - - -");
    Ok(())
}

pub(crate) async fn views_show_queues_and_sessions(fixture: &Fixture) -> Result<()> {
    let RunsInEachState { runs, worker, child } = runs_in_each_state(fixture).await?;
    let counts = "tenant, tenant_id, pool, runnable_sessions, running_sessions, queued_runs, parked_runs";
    // Runnable are the queued one and the child; after the running one another is queued.
    assert_eq!(one(fixture, counts, "v_queue").await?, format!("acme {} default 2 1 3 1", fixture.tenant));
    let stats = fixture.store.queue_stats().await?;
    let [pool] = &stats[..] else { panic!("{stats:?}") };
    let said = (pool.runnable_sessions, pool.running_sessions, pool.queued_runs);
    assert_eq!(said, (2, 1, 3), "like the API");
    let seen = fixture.store.fleet_view(100).await?.pools;
    assert_eq!(seen[0].stats, *pool, "as top shows");
    let oldest = number(fixture, "oldest_runnable_seconds", "v_queue").await?;
    let waited = number(fixture, "queue_seconds", &of(runs["queued"])).await?;
    assert!((oldest - waited).abs() < 10.0 && oldest > 0.0, "{oldest} and {waited}");

    let columns = "tenant, pool, status, activity, unfinished_runs, runs, agent, model, workspace";
    for (name, activity, unfinished, all) in [
        ("queued", "runnable", 1, 1),
        ("running", "running", 2, 2),
        ("parked", "parked", 1, 1),
        ("completed", "idle", 0, 1),
        ("cancelled", "idle", 0, 1),
    ] {
        let row = one(fixture, columns, &format!("v_sessions WHERE session_name = '{name}'")).await?;
        let expected = format!("acme default open {activity} {unfinished} {all} build openai/gpt default");
        assert_eq!(row, expected, "{name}");
    }
    let running = "v_sessions WHERE session_name = 'running'";
    let owned = one(fixture, "worker_id, head_run_id, epoch", running).await?;
    assert_eq!(owned, format!("{worker} {} 1", runs["running"]));
    let below = format!("v_sessions WHERE head_run_id = '{child}'");
    let parent = fixture.run(runs["parked"]).await?.session;
    assert_eq!(one(fixture, "parent_session_id, depth", &below).await?, format!("{parent} 1"));

    let events = number(fixture, "events", running).await?;
    let known = fixture.get_session(fixture.run(runs["running"]).await?.session).await?;
    assert_eq!(events.to_string(), known.last_cursor.to_string());

    let limit = Limit { tokens: Some(1000), micros: Some(2_500_000) };
    let rich = NewSession { budget: Some(limit), ..named(fixture, "rich") };
    fixture.store.create_session(&rich).await?;
    fixture.submit(rich.id).await?;
    let grant = fixture.granted(rich.id, worker).await?;
    fixture.store.commit(Commit { spent: spending(40), ..progress(&grant, Vec::new()) }).await?;
    let budget = "budget_usd, budget_spent_usd, budget_tokens, budget_spent_tokens";
    assert_eq!(one(fixture, budget, "v_sessions WHERE session_name = 'rich'").await?, "2.5 0.04 1000 47");
    assert_eq!(one(fixture, budget, running).await?, "- - - -");
    Ok(())
}

pub(crate) async fn view_sums_costs_by_session_and_day(fixture: &Fixture) -> Result<()> {
    let RunsInEachState { runs, worker, .. } = runs_in_each_state(fixture).await?;
    let session = fixture.run(runs["completed"]).await?.session;
    submit(fixture, session).await?;
    let again = fixture.granted(session, worker).await?;
    fixture.store.commit(Commit { spent: spending(5), ..completed(&again) }).await?;
    // A session without model calls is left out.
    submit(fixture, session).await?;
    fixture.execute_head_run(session).await?;
    let today = chrono::Utc::now().date_naive();
    let columns = "tenant, tenant_id, session_id, agent, model, runs, model_calls, input_tokens, output_tokens, cost_usd";
    let row = one(fixture, columns, "v_costs WHERE session_name = 'completed'").await?;
    assert_eq!(row, format!("acme {} {session} build openai/gpt 2 3 305 21 0.305", fixture.tenant));
    let days = rows(fixture, "day, cost_usd", "v_costs ORDER BY cost_usd").await?;
    assert_eq!(days.len(), 2, "sessions that asked: {days:?}");
    for row in &days {
        // The test may have begun before midnight.
        let day: chrono::NaiveDate = row["day"].clone().context("no day")?.parse()?;
        assert!((today - day).num_days() <= 1, "{day}");
    }
    // Costs of another day are another row.
    let shift = if fixture.is_postgres() {
        "UPDATE runs SET created_at = created_at - interval '1 day' WHERE input_tokens = 5"
    } else {
        "UPDATE runs SET created_at = created_at - 86400000000 WHERE input_tokens = 5"
    };
    crate::query_plans::execute(fixture, shift).await?;
    let row = rows(fixture, "cost_usd", "v_costs WHERE session_name = 'completed' ORDER BY day").await?;
    let costs: Vec<_> = row.iter().map(|row| row["cost_usd"].clone().unwrap_or_default()).collect();
    assert_eq!(costs, ["0.005", "0.3"]);
    Ok(())
}

pub(crate) async fn views_show_workers_and_sandboxes(fixture: &Fixture) -> Result<()> {
    let (active, draining, gone, lost) = (
        fixture.worker(LONG_LEASE).await?,
        fixture.worker(LONG_LEASE).await?,
        fixture.worker(LONG_LEASE).await?,
        fixture.worker(SHORT_LEASE).await?,
    );
    fixture.store.drain_worker(draining).await?;
    fixture.store.retire_worker(gone).await?;
    fixture.wait_for_lease_expiry(lost).await;
    let session = fixture.session().await?;
    let run = fixture.submit(session).await?.run.id;
    fixture.granted(session, active).await?;
    let beat =
        remuda_store::Heartbeat { worker: active, lease: LONG_LEASE, running: vec![run], worked: Vec::new() };
    fixture.store.renew_lease(&beat).await?;
    for (worker, expected) in [
        (active, "host 0.1.0 default active 4 1 3"),
        (draining, "host 0.1.0 default draining 4 0 0"),
        (gone, "host 0.1.0 default gone 4 0 0"),
        (lost, "host 0.1.0 default gone 4 0 0"),
    ] {
        let rest = format!("v_workers WHERE worker_id = '{worker}'");
        assert_eq!(one(fixture, "host, version, pool, state, slots, busy, free", &rest).await?, expected);
        let left = number(fixture, "lease_seconds", &rest).await?;
        assert_eq!(left < 0.0, worker == lost, "{left} s of {expected}");
    }

    let at = chrono::Utc::now().duration_trunc(chrono::Duration::milliseconds(1))?;
    let record = SandboxRecord {
        id: SandboxId::new(),
        holder: None,
        worker: active,
        backend: BackendKind::Docker,
        engine: "engine-1".into(),
        handle: Some("abc".into()),
        image: "busybox:1".into(),
        digest: "sha256:abc".into(),
        state: SandboxState::Spare,
        created_at: at - chrono::Duration::seconds(100),
        used_at: at - chrono::Duration::seconds(50),
    };
    let holder = Some(Holder { tenant: fixture.tenant, session, epoch: 1 });
    let held = SandboxRecord {
        id: SandboxId::new(),
        holder,
        worker: lost,
        state: SandboxState::Active,
        ..record.clone()
    };
    fixture.store.save_sandbox(&record).await?;
    fixture.store.save_sandbox(&held).await?;
    let columns = "tenant, tenant_id, session_id, worker_id, worker_alive, state, backend, engine, handle, image, digest, epoch";
    for (sandbox, expected) in [
        (&record, format!("- - - {active} 1 spare docker engine-1 abc busybox:1 sha256:abc -")),
        (
            &held,
            format!(
                "acme {} {session} {lost} 0 active docker engine-1 abc busybox:1 sha256:abc 1",
                fixture.tenant
            ),
        ),
    ] {
        let rest = format!("v_sandboxes WHERE sandbox_id = '{}'", sandbox.id);
        assert_eq!(one(fixture, columns, &rest).await?, expected);
        let between = number(fixture, "age_seconds - idle_seconds", &rest).await?;
        let idle = number(fixture, "idle_seconds", &rest).await?;
        assert!((between - 50.0).abs() < 0.01 && idle >= 49.9, "{between} and {idle}");
    }
    Ok(())
}

/// A lost worker's session is runnable before it is reclaimed, although its run still counts as running.
pub(crate) async fn session_of_a_lost_worker_is_shown_as_runnable(fixture: &Fixture) -> Result<()> {
    let worker = fixture.worker(SHORT_LEASE).await?;
    let grant = started(fixture, "lost", worker).await?;
    fixture.wait_for_lease_expiry(worker).await;
    assert_eq!(one(fixture, "runnable_sessions, running_sessions, queued_runs", "v_queue").await?, "1 0 1");
    assert_eq!(one(fixture, "activity", "v_sessions").await?, "runnable");
    assert_eq!(one(fixture, "state", &of(grant.run.id)).await?, "running");
    let parked = started(fixture, "waiting", fixture.worker(LONG_LEASE).await?).await?;
    fixture.store.commit(parking(&parked, ParkReason::External)).await?;
    assert_eq!(one(fixture, "waits_for", &of(parked.run.id)).await?, "external");
    Ok(())
}

/// The smallest and largest ids, and random ones.
pub(crate) async fn views_print_ids_like_the_api(fixture: &Fixture) -> Result<()> {
    let ids = [u128::MAX, 0, 1, 0x8000_0000_0000_0000_0000_0000_0000_0000, rand::random(), rand::random()];
    let url = fixture.options().url;
    for id in ids.map(uuid::Uuid::from_u128) {
        let tenant = TenantId::from_uuid(id);
        let insert = "INSERT INTO sessions (id, tenant_id, workspace_id, title, pool, created_at) \
                      SELECT $1, tenant_id, workspace_id, title, pool, created_at FROM sessions LIMIT 1";
        fixture.session().await?;
        let session = SessionId::from_uuid(id);
        if fixture.is_postgres() {
            let mut connection = sqlx::PgConnection::connect(&url).await?;
            sqlx::query(insert).bind(id).execute(&mut connection).await?;
            let both = "SELECT remuda_id('ten', $1), remuda_uuid($2), remuda_id('ten', NULL)";
            let (printed, read, nothing): (String, uuid::Uuid, Option<String>) =
                sqlx::query_as(both).bind(id).bind(tenant.to_string()).fetch_one(&mut connection).await?;
            assert_eq!((printed, read, nothing), (tenant.to_string(), id, None));
        } else {
            let mut connection = sqlx::SqliteConnection::connect(&url).await?;
            sqlx::query(insert).bind(id).execute(&mut connection).await?;
        }
        let found =
            one(fixture, "session_name", &format!("v_sessions WHERE session_id = '{session}'")).await?;
        assert_eq!(found, "-", "{session} is there");
    }
    Ok(())
}
