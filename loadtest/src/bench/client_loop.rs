//! Scenarios in which clients submit runs and wait for their ends.

use std::{sync::Arc, time::Duration};

use serde_json::json;

use super::{BenchPlan, Scenario, agent_workspace::AgentWorkspace, report::Report};
use crate::{
    check::Verdict,
    collector::Collector,
    database_seed::{self, Seeded},
    deployment::Deployment,
    load::{self, LoadModel, LoadTarget, Measurement, ObservedRun, StageTimings, Work},
    workload::Addresses,
};

/// How long a single client is measured to get the latency of an idle system.
const IDLE_SECONDS: u64 = 3;

/// The clients of one measurement, and all runs they have made.
struct ClientLoop {
    target: Arc<LoadTarget>,
    work: Work,
    runs: Vec<ObservedRun>,
}

impl ClientLoop {
    fn new(target: LoadTarget, work: Work) -> Self {
        Self { target: Arc::new(target), work, runs: Vec::new() }
    }

    /// Runs the load with cleared stage timings, so that only this part is measured.
    async fn measure(&mut self, model: LoadModel, seconds: u64) -> anyhow::Result<Measurement> {
        self.target.clear_stages();
        self.run(model, seconds).await
    }

    /// Runs the load and keeps its runs for the check.
    async fn run(&mut self, model: LoadModel, seconds: u64) -> anyhow::Result<Measurement> {
        let measured = load::drive(&self.target, &self.work, model, Duration::from_secs(seconds)).await?;
        self.runs.extend(measured.runs.iter().cloned());
        Ok(measured)
    }

    async fn verify(&self) -> anyhow::Result<Verdict> {
        load::verify(&self.target, &self.work, &self.runs).await
    }
}

/// Starts the servers and measures.
pub(super) async fn measure(plan: &BenchPlan, half: bool) -> anyhow::Result<Report> {
    let stages = StageTimings::default();
    let collector = Collector::start(stages.clone()).await?;
    let mut deployment = Deployment::start(plan.mode, &plan.options(&collector)).await?;
    let measured = measure_on(plan, half, &mut deployment, &stages).await;
    let mut report = measured.inspect_err(|_| deployment.mark_failed())?;
    report.memory = deployment.memory();
    report.failures.extend(deployment.problems());
    if !report.passed() {
        deployment.mark_failed();
    }
    Ok(report)
}

/// Measures running servers: nothing can be seeded there, and there are no stage timings.
pub(super) async fn measure_at(plan: &BenchPlan, half: bool, addresses: Addresses) -> anyhow::Result<Report> {
    let unseeded = plan.session_seed().is_none() && plan.waiting_seed().is_none();
    anyhow::ensure!(
        unseeded,
        "this many sessions or queued runs need a server of their own: omit --endpoint"
    );
    // Kept until the measurement is over.
    let (_workspace, target) = target(plan, addresses).await?;
    measure_load(plan, half, ClientLoop::new(target, plan.scenario.work())).await
}

async fn measure_on(
    plan: &BenchPlan,
    half: bool,
    deployment: &mut Deployment,
    stages: &StageTimings,
) -> anyhow::Result<Report> {
    let (sessions, waiting) = (plan.session_seed(), plan.waiting_seed());
    let seeds: Vec<_> = sessions.into_iter().chain(waiting).collect();
    let mut seeded_sets = Vec::new();
    if !seeds.is_empty() {
        seeded_sets = database_seed::seed_database(deployment, &seeds).await?;
        deployment.resume().await?;
    }
    let seeding: Duration = seeded_sets.iter().map(|seeded| seeded.took).sum();
    let idle_memory = deployment.memory();
    let (_workspace, target) = match seeded_sets.first().filter(|_| sessions.is_some()) {
        Some(seeded) => {
            (None, LoadTarget::with_existing_sessions(deployment.addresses(), seeded.sessions())?)
        }
        None => target(plan, deployment.addresses()).await?,
    };
    let mut report = measure_load(
        plan,
        half,
        ClientLoop::new(target.with_stages(Some(stages.clone())), plan.scenario.work()),
    )
    .await?;
    report.stages = stages.summary()?;
    report.idle_memory = idle_memory;
    if !seeded_sets.is_empty() {
        report.extra.insert("seeding_s".to_owned(), json!(seeding.as_secs_f64()));
    }
    if let Some(seeded) = seeded_sets.last().filter(|_| waiting.is_some()) {
        check_still_queued(deployment, seeded, &mut report).await?;
    }
    Ok(report)
}

/// Connects, creates the sessions, and registers the workspace that they need.
async fn target(
    plan: &BenchPlan,
    addresses: Addresses,
) -> anyhow::Result<(Option<AgentWorkspace>, LoadTarget)> {
    let workspace = match plan.scenario {
        Scenario::Agent => Some(AgentWorkspace::register(&addresses).await?),
        _ => None,
    };
    let template = workspace.as_ref().map(|_| AgentWorkspace::session_request()).unwrap_or_default();
    let target = LoadTarget::with_session_template(addresses, plan.sessions, template).await?;
    Ok((workspace, target))
}

/// Warms up, measures, and checks all runs.
async fn measure_load(plan: &BenchPlan, half: bool, mut client_loop: ClientLoop) -> anyhow::Result<Report> {
    let BenchPlan { model, seconds, warm_up, .. } = *plan;
    if half {
        return measure_at_half_rate(plan, client_loop).await;
    }
    client_loop.run(model, warm_up).await?;
    let measured = client_loop.measure(model, seconds).await?;
    let verdict = client_loop.verify().await?;
    let mut report = Report::of_runs(plan, measured);
    report.add_verdict(&verdict);
    Ok(report)
}

/// Measures the latency of a single client, the highest rate, and the latency at half of that rate.
async fn measure_at_half_rate(plan: &BenchPlan, mut client_loop: ClientLoop) -> anyhow::Result<Report> {
    let alone = LoadModel::Closed { clients: 1 };
    client_loop.run(alone, 1).await?;
    let idle = client_loop.run(alone, IDLE_SECONDS).await?;
    client_loop.run(plan.model, plan.warm_up).await?;
    let most = client_loop.run(plan.model, plan.seconds).await?;
    let half =
        BenchPlan { model: LoadModel::Open { per_second: most.runs_per_second() / 2.0 }, ..plan.clone() };
    client_loop.run(half.model, plan.warm_up).await?;
    let measured = client_loop.measure(half.model, plan.seconds).await?;
    let verdict = client_loop.verify().await?;
    let mut report = Report::of_runs(&half, measured);
    report.add_verdict(&verdict);
    let (idle_p50, ratio) = (idle.millis(0.5), report.millis(0.99) / idle.millis(0.5));
    report.extra.insert("idle_p50_ms".to_owned(), json!(idle_p50));
    report.extra.insert("max_runs_per_s".to_owned(), json!(most.runs_per_second()));
    report.extra.insert("max_p99_ms".to_owned(), json!(most.millis(0.99)));
    report.extra.insert("p99_to_idle_p50".to_owned(), json!(ratio));
    let reached = if ratio < HALF_GOAL { "reached" } else { "MISSED" };
    report.notes.push(format!(
        "one client: p50 {idle_p50:.2} ms; at most {:.0} runs/s ({})",
        most.runs_per_second(),
        plan.load()
    ));
    report.notes.push(format!(
        "p99 at half of that is {ratio:.1} times the p50 of one client (goal: below {HALF_GOAL}): {reached}"
    ));
    Ok(report)
}

/// The goal for the p99 at half of the highest rate, as a multiple of the p50 of one client.
const HALF_GOAL: f64 = 10.0;

/// Checks that the runs of the pool without workers are still queued.
async fn check_still_queued(
    deployment: &Deployment,
    seeded: &Seeded,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut database = deployment.database().await?;
    let (first, last) = seeded.run_range();
    let sql = format!(
        "SELECT count(*) FROM runs WHERE state = 0 AND id BETWEEN {} AND {}",
        database.literal(first),
        database.literal(last)
    );
    let left = database.number(&sql).await?;
    database.close().await?;
    if u64::try_from(left) != Ok(seeded.runs()) {
        report.violations += 1;
        report
            .failures
            .push(format!("{left} of {} runs of the pool without workers are still queued", seeded.runs()));
    }
    Ok(())
}
