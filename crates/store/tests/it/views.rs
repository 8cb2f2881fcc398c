//! The views for operators: what they show of what there is.

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
use remuda_store::{Commit, Finish, Grant, NewRun, NewSession, Then};
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use crate::{
    family::{awaiting, child},
    lab::{LONG_LEASE, Lab, SHORT_LEASE, completed, ending, message_input, parking, progress},
};

pub(crate) const VIEWS: [&str; 6] =
    ["v_sessions", "v_runs", "v_queue", "v_workers", "v_sandboxes", "v_costs"];
/// Parts of words that only contents and secrets have.
pub(crate) const CONTENTS: &str = "SECRET";

/// Rows of a view as texts, by column. Numbers are shortened to what both databases agree on, and yes is 1.
pub(crate) async fn rows(
    lab: &Lab,
    columns: &str,
    rest: &str,
) -> Result<Vec<BTreeMap<String, Option<String>>>> {
    let names: Vec<String> = columns.split(", ").map(str::to_owned).collect();
    let texts: Vec<String> = names.iter().map(|name| format!("CAST({name} AS text)")).collect();
    let sql = format!("SELECT {} FROM {rest}", texts.join(", "));
    let url = lab.options().url;
    let texts: Vec<Vec<Option<String>>> = if lab.is_postgres() {
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

/// One row, in the order of the columns; `-` for what is missing.
async fn one(lab: &Lab, columns: &str, rest: &str) -> Result<String> {
    let found = rows(lab, columns, rest).await?;
    ensure!(found.len() == 1, "{} rows of {rest}: {found:?}", found.len());
    let texts = columns.split(", ").map(|name| found[0][name].clone().unwrap_or_else(|| "-".into()));
    Ok(texts.collect::<Vec<_>>().join(" "))
}

async fn number(lab: &Lab, column: &str, rest: &str) -> Result<f64> {
    let text = one(lab, column, rest).await?;
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

fn named(lab: &Lab, name: &str) -> NewSession {
    NewSession {
        title: format!("{CONTENTS} title"),
        agent: Some("build".into()),
        model: Some("openai/gpt".into()),
        ..lab.new_session(Some(name))
    }
}

/// A run in each state that a run can be in, each in a session of the same name.
pub(crate) struct Scene {
    runs: BTreeMap<&'static str, RunId>,
    worker: WorkerId,
    child: RunId,
}

async fn session(lab: &Lab, name: &str) -> Result<SessionId> {
    Ok(lab.store.create_session(&named(lab, name)).await?.value.id)
}

async fn submit(lab: &Lab, session: SessionId) -> Result<RunId> {
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let input = RunInput::Message(message_input(CONTENTS));
    let run = NewRun { input, traceparent: Some(trace.into()), ..lab.new_run(session) };
    Ok(lab.store.submit(run).await?.run.id)
}

async fn started(lab: &Lab, name: &str, worker: WorkerId) -> Result<Grant> {
    let session = session(lab, name).await?;
    submit(lab, session).await?;
    lab.granted(session, worker).await
}

pub(crate) async fn scene(lab: &Lab) -> Result<Scene> {
    let worker = lab.worker(LONG_LEASE).await?;
    let mut runs = BTreeMap::new();
    runs.insert("queued", submit(lab, session(lab, "queued").await?).await?);

    let running = started(lab, "running", worker).await?;
    lab.store.commit(Commit { spent: spending(40), ..progress(&running, Vec::new()) }).await?;
    runs.insert("running", running.run.id);
    // Behind the running one in the same line.
    runs.insert("behind", submit(lab, running.fence.session).await?);

    let parked = started(lab, "parked", worker).await?;
    let below = child();
    let commit =
        Commit { children: vec![below.clone()], ..awaiting(&parked, std::slice::from_ref(&below), 1) };
    lab.store.commit(commit).await?;
    runs.insert("parked", parked.run.id);

    let completed_one = started(lab, "completed", worker).await?;
    lab.store.commit(Commit { spent: spending(100), ..progress(&completed_one, Vec::new()) }).await?;
    lab.store.commit(Commit { spent: spending(200), ..completed(&completed_one) }).await?;
    runs.insert("completed", completed_one.run.id);

    let failed = started(lab, "failed", worker).await?;
    let failure = Failure { code: "tool_failed".into(), message: format!("{CONTENTS} \u{0} said") };
    let end = RunEnd { state: RunState::Failed, outcomes: Vec::new(), failure: Some(failure) };
    let then = match completed(&failed).then {
        Then::End(finish) => Then::End(Finish { end, ..finish }),
        other => other,
    };
    lab.store.commit(Commit { then, ..progress(&failed, Vec::new()) }).await?;
    runs.insert("failed", failed.run.id);

    let cancelled = started(lab, "cancelled", worker).await?;
    lab.store.request_cancel(lab.tenant, cancelled.run.id, CONTENTS).await?;
    lab.store.commit(ending(&cancelled, RunState::Cancelled)).await?;
    runs.insert("cancelled", cancelled.run.id);

    let late = started(lab, "timed_out", worker).await?;
    lab.store.commit(ending(&late, RunState::TimedOut)).await?;
    runs.insert("timed_out", late.run.id);
    Ok(Scene { runs, worker, child: below.run })
}

pub(crate) async fn runs_are_shown_in_each_state(lab: &Lab) -> Result<()> {
    let Scene { runs, worker, child } = scene(lab).await?;
    for (name, run) in &runs {
        let (state, seq, owner) = match *name {
            "behind" => ("queued", 2, "-".to_owned()),
            "running" => ("running", 1, worker.to_string()),
            other => (other, 1, "-".to_owned()),
        };
        let unfinished = u8::from(matches!(state, "queued" | "running" | "parked"));
        let known = lab.run(*run).await?;
        assert_eq!(known.state.as_str(), state);
        assert_eq!(
            one(
                lab,
                "tenant, tenant_id, run_id, session_id, pool, seq, kind, state, unfinished, worker_id",
                &of(*run)
            )
            .await?,
            format!(
                "acme {} {run} {} default {seq} message {state} {unfinished} {owner}",
                lab.tenant, known.session
            )
        );
        let session_name = if *name == "behind" { "running" } else { name };
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert_eq!(one(lab, "session_name, trace_id", &of(*run)).await?, format!("{session_name} {trace}"));
        assert_eq!(number(lab, "attempts", &of(*run)).await?, f64::from(known.attempt), "attempts of {name}");
        let begun = one(lab, "started_at", &of(*run)).await? != "-";
        assert_eq!(begun, known.started_at.is_some(), "{name}");
        assert_eq!(one(lab, "run_seconds", &of(*run)).await? != "-", begun, "{name}");
        assert!(number(lab, "queue_seconds", &of(*run)).await? >= 0.0);
        assert_eq!(number(lab, "timeout_seconds", &of(*run)).await?, 60.0);
        assert_eq!(one(lab, "finished_at", &of(*run)).await? == "-", unfinished == 1);
    }
    let waits = one(lab, "waits_for, paused_seconds, parent_run_id", &of(runs["parked"])).await?;
    assert_eq!(waits, "children 0 -");
    assert!(one(lab, "waits_since", &of(runs["parked"])).await? != "-");
    assert_eq!(one(lab, "parent_run_id, session_name", &of(child)).await?, format!("{} -", runs["parked"]));
    assert_eq!(one(lab, "failure_code", &of(runs["failed"])).await?, "tool_failed");
    assert_eq!(one(lab, "failure_code", &of(runs["completed"])).await?, "-");
    // A request that nobody had to be told of, and the end.
    assert!(number(lab, "cancel_seconds", &of(runs["cancelled"])).await? >= 0.0);
    assert!(one(lab, "cancel_requested_at", &of(runs["cancelled"])).await? != "-");
    assert_eq!(one(lab, "cancel_requested_at, cancel_seconds", &of(runs["completed"])).await?, "- -");
    let money = "model_calls, input_tokens, output_tokens, cached_tokens, cache_write_tokens, reasoning_tokens, cost_usd";
    assert_eq!(one(lab, money, &of(runs["completed"])).await?, "2 300 14 6 4 2 0.3");
    assert_eq!(one(lab, money, &of(runs["running"])).await?, "1 40 7 3 2 1 0.04");
    assert_eq!(one(lab, money, &of(runs["queued"])).await?, "- - - - - - -");
    Ok(())
}

pub(crate) async fn queues_and_sessions_are_shown(lab: &Lab) -> Result<()> {
    let Scene { runs, worker, child } = scene(lab).await?;
    let counts = "tenant, tenant_id, pool, runnable_sessions, running_sessions, queued_runs, parked_runs";
    // Runnable are the queued one and the child; behind the running one another waits.
    assert_eq!(one(lab, counts, "v_queue").await?, format!("acme {} default 2 1 3 1", lab.tenant));
    let stats = lab.store.queue_stats().await?;
    let [pool] = &stats[..] else { panic!("{stats:?}") };
    let said = (pool.runnable_sessions, pool.running_sessions, pool.queued_runs);
    assert_eq!(said, (2, 1, 3), "as the API says");
    let seen = lab.store.fleet_view(100).await?.pools;
    assert_eq!(seen[0].stats, *pool, "as top shows");
    let oldest = number(lab, "oldest_runnable_seconds", "v_queue").await?;
    let waited = number(lab, "queue_seconds", &of(runs["queued"])).await?;
    assert!((oldest - waited).abs() < 10.0 && oldest > 0.0, "{oldest} and {waited}");

    let columns = "tenant, pool, status, activity, unfinished_runs, runs, agent, model, workspace";
    for (name, activity, unfinished, all) in [
        ("queued", "runnable", 1, 1),
        ("running", "running", 2, 2),
        ("parked", "parked", 1, 1),
        ("completed", "idle", 0, 1),
        ("cancelled", "idle", 0, 1),
    ] {
        let row = one(lab, columns, &format!("v_sessions WHERE session_name = '{name}'")).await?;
        let expected = format!("acme default open {activity} {unfinished} {all} build openai/gpt default");
        assert_eq!(row, expected, "{name}");
    }
    let running = "v_sessions WHERE session_name = 'running'";
    let owned = one(lab, "worker_id, head_run_id, epoch", running).await?;
    assert_eq!(owned, format!("{worker} {} 1", runs["running"]));
    let below = format!("v_sessions WHERE head_run_id = '{child}'");
    let parent = lab.run(runs["parked"]).await?.session;
    assert_eq!(one(lab, "parent_session_id, depth", &below).await?, format!("{parent} 1"));

    let events = number(lab, "events", running).await?;
    let known = lab.look(lab.run(runs["running"]).await?.session).await?;
    assert_eq!(events.to_string(), known.last_cursor.to_string());

    let limit = Limit { tokens: Some(1000), micros: Some(2_500_000) };
    let rich = NewSession { budget: Some(limit), ..named(lab, "rich") };
    lab.store.create_session(&rich).await?;
    lab.submit(rich.id).await?;
    let grant = lab.granted(rich.id, worker).await?;
    lab.store.commit(Commit { spent: spending(40), ..progress(&grant, Vec::new()) }).await?;
    let budget = "budget_usd, budget_spent_usd, budget_tokens, budget_spent_tokens";
    assert_eq!(one(lab, budget, "v_sessions WHERE session_name = 'rich'").await?, "2.5 0.04 1000 47");
    assert_eq!(one(lab, budget, running).await?, "- - - -");
    Ok(())
}

pub(crate) async fn costs_are_summed_by_session_and_day(lab: &Lab) -> Result<()> {
    let Scene { runs, worker, .. } = scene(lab).await?;
    let session = lab.run(runs["completed"]).await?.session;
    submit(lab, session).await?;
    let again = lab.granted(session, worker).await?;
    lab.store.commit(Commit { spent: spending(5), ..completed(&again) }).await?;
    // One that asks no model counts nowhere.
    submit(lab, session).await?;
    lab.work_off(session).await?;
    let today = chrono::Utc::now().date_naive();
    let columns = "tenant, tenant_id, session_id, agent, model, runs, model_calls, input_tokens, output_tokens, cost_usd";
    let row = one(lab, columns, "v_costs WHERE session_name = 'completed'").await?;
    assert_eq!(row, format!("acme {} {session} build openai/gpt 2 3 305 21 0.305", lab.tenant));
    let days = rows(lab, "day, cost_usd", "v_costs ORDER BY cost_usd").await?;
    assert_eq!(days.len(), 2, "sessions that asked: {days:?}");
    for row in &days {
        // The test may have begun yesterday.
        let day: chrono::NaiveDate = row["day"].clone().context("no day")?.parse()?;
        assert!((today - day).num_days() <= 1, "{day}");
    }
    // Yesterday's are another row.
    let shift = if lab.is_postgres() {
        "UPDATE runs SET created_at = created_at - interval '1 day' WHERE input_tokens = 5"
    } else {
        "UPDATE runs SET created_at = created_at - 86400000000 WHERE input_tokens = 5"
    };
    crate::plans::execute(lab, shift).await?;
    let row = rows(lab, "cost_usd", "v_costs WHERE session_name = 'completed' ORDER BY day").await?;
    let costs: Vec<_> = row.iter().map(|row| row["cost_usd"].clone().unwrap_or_default()).collect();
    assert_eq!(costs, ["0.005", "0.3"]);
    Ok(())
}

pub(crate) async fn workers_and_sandboxes_are_shown(lab: &Lab) -> Result<()> {
    let (active, draining, gone, lost) = (
        lab.worker(LONG_LEASE).await?,
        lab.worker(LONG_LEASE).await?,
        lab.worker(LONG_LEASE).await?,
        lab.worker(SHORT_LEASE).await?,
    );
    lab.store.drain_worker(draining).await?;
    lab.store.retire_worker(gone).await?;
    lab.outlive(lost).await;
    let session = lab.session().await?;
    let run = lab.submit(session).await?.run.id;
    lab.granted(session, active).await?;
    let beat = remuda_store::Heartbeat { worker: active, lease: LONG_LEASE, running: vec![run] };
    lab.store.renew_lease(&beat).await?;
    for (worker, expected) in [
        (active, "host 0.1.0 default active 4 1 3"),
        (draining, "host 0.1.0 default draining 4 0 0"),
        (gone, "host 0.1.0 default gone 4 0 0"),
        (lost, "host 0.1.0 default gone 4 0 0"),
    ] {
        let rest = format!("v_workers WHERE worker_id = '{worker}'");
        assert_eq!(one(lab, "host, version, pool, state, slots, busy, free", &rest).await?, expected);
        let left = number(lab, "lease_seconds", &rest).await?;
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
    let holder = Some(Holder { tenant: lab.tenant, session, epoch: 1 });
    let held = SandboxRecord {
        id: SandboxId::new(),
        holder,
        worker: lost,
        state: SandboxState::Active,
        ..record.clone()
    };
    lab.store.save_sandbox(&record).await?;
    lab.store.save_sandbox(&held).await?;
    let columns = "tenant, tenant_id, session_id, worker_id, worker_alive, state, backend, engine, handle, image, digest, epoch";
    for (sandbox, expected) in [
        (&record, format!("- - - {active} 1 spare docker engine-1 abc busybox:1 sha256:abc -")),
        (
            &held,
            format!(
                "acme {} {session} {lost} 0 active docker engine-1 abc busybox:1 sha256:abc 1",
                lab.tenant
            ),
        ),
    ] {
        let rest = format!("v_sandboxes WHERE sandbox_id = '{}'", sandbox.id);
        assert_eq!(one(lab, columns, &rest).await?, expected);
        let between = number(lab, "age_seconds - idle_seconds", &rest).await?;
        let idle = number(lab, "idle_seconds", &rest).await?;
        assert!((between - 50.0).abs() < 0.01 && idle >= 49.9, "{between} and {idle}");
    }
    Ok(())
}

/// A lost worker's session is runnable before anybody took it back, though its run still counts as running.
pub(crate) async fn what_a_lost_worker_had_is_runnable(lab: &Lab) -> Result<()> {
    let worker = lab.worker(SHORT_LEASE).await?;
    let grant = started(lab, "lost", worker).await?;
    lab.outlive(worker).await;
    assert_eq!(one(lab, "runnable_sessions, running_sessions, queued_runs", "v_queue").await?, "1 0 1");
    assert_eq!(one(lab, "activity", "v_sessions").await?, "runnable");
    assert_eq!(one(lab, "state", &of(grant.run.id)).await?, "running");
    let parked = started(lab, "waiting", lab.worker(LONG_LEASE).await?).await?;
    lab.store.commit(parking(&parked, ParkReason::External)).await?;
    assert_eq!(one(lab, "waits_for", &of(parked.run.id)).await?, "external");
    Ok(())
}

/// Ids at the ends of what an id can be, and any between.
pub(crate) async fn ids_are_printed_as_the_api_does(lab: &Lab) -> Result<()> {
    let ids = [u128::MAX, 0, 1, 0x8000_0000_0000_0000_0000_0000_0000_0000, rand::random(), rand::random()];
    let url = lab.options().url;
    for id in ids.map(uuid::Uuid::from_u128) {
        let tenant = TenantId::from_uuid(id);
        let insert = "INSERT INTO sessions (id, tenant_id, workspace_id, title, pool, created_at) \
                      SELECT $1, tenant_id, workspace_id, title, pool, created_at FROM sessions LIMIT 1";
        lab.session().await?;
        let session = SessionId::from_uuid(id);
        if lab.is_postgres() {
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
        let found = one(lab, "session_name", &format!("v_sessions WHERE session_id = '{session}'")).await?;
        assert_eq!(found, "-", "{session} is there");
    }
    Ok(())
}
