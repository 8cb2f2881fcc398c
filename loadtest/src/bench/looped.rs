//! Clients that submit runs and wait for their ends.

use std::{sync::Arc, time::Duration};

use serde_json::json;

use super::{Plan, Scenario, report::Report, team::Team};
use crate::{
    check::Verdict,
    collector::Collector,
    load::{self, Measured, Pace, RunFact, Site, Stages, Work},
    seed::{self, Seeded},
    stage::Stage,
    workload::Addresses,
};

/// How long one client is listened to, to know what a run takes when nothing is in its way.
const IDLE_SECONDS: u64 = 3;

/// Everything that clients of one measurement did.
struct Drive {
    site: Arc<Site>,
    work: Work,
    facts: Vec<RunFact>,
}

impl Drive {
    fn new(site: Site, work: Work) -> Self {
        Self { site: Arc::new(site), work, facts: Vec::new() }
    }

    /// Drives for so long, so that nothing else is in the picture.
    async fn measure(&mut self, pace: Pace, seconds: u64) -> anyhow::Result<Measured> {
        self.site.forget_stages();
        self.go(pace, seconds).await
    }

    /// Drives for so long, and remembers what is to be judged.
    async fn go(&mut self, pace: Pace, seconds: u64) -> anyhow::Result<Measured> {
        let measured = load::drive(&self.site, &self.work, pace, Duration::from_secs(seconds)).await?;
        self.facts.extend(measured.facts.iter().cloned());
        Ok(measured)
    }

    async fn judge(&self) -> anyhow::Result<Verdict> {
        load::judge(&self.site, &self.work, &self.facts).await
    }
}

/// Starts what is needed, and measures.
pub(super) async fn measure(plan: &Plan, half: bool) -> anyhow::Result<Report> {
    let stages = Stages::default();
    let collector = Collector::start(stages.clone()).await?;
    let mut stage = Stage::start(plan.mode, &plan.setting(&collector)).await?;
    let measured = on_stage(plan, half, &mut stage, &stages).await;
    let mut report = measured.inspect_err(|_| stage.mark_failed())?;
    report.memory = stage.memory();
    report.failures.extend(stage.troubles());
    if !report.is_good() {
        stage.mark_failed();
    }
    Ok(report)
}

/// The same on servers that run already: nothing can be seeded there, and no stages are told.
pub(super) async fn measure_at(plan: &Plan, half: bool, addresses: Addresses) -> anyhow::Result<Report> {
    let unseeded = plan.session_seed().is_none() && plan.waiting_seed().is_none();
    anyhow::ensure!(
        unseeded,
        "so many sessions or queued runs need a server of their own: leave --endpoint away"
    );
    // Gone when all is over.
    let (_team, site) = site(plan, addresses).await?;
    driven(plan, half, Drive::new(site, plan.scenario.work())).await
}

async fn on_stage(plan: &Plan, half: bool, stage: &mut Stage, stages: &Stages) -> anyhow::Result<Report> {
    let (sessions, waiting) = (plan.session_seed(), plan.waiting_seed());
    let seeds: Vec<_> = sessions.into_iter().chain(waiting).collect();
    let mut planted = Vec::new();
    if !seeds.is_empty() {
        planted = seed::plant(stage, &seeds).await?;
        stage.resume().await?;
    }
    let seeding: Duration = planted.iter().map(|seeded| seeded.took).sum();
    let idle_memory = stage.memory();
    let (_team, site) = match planted.first().filter(|_| sessions.is_some()) {
        Some(seeded) => (None, Site::existing(stage.addresses(), seeded.sessions())?),
        None => site(plan, stage.addresses()).await?,
    };
    let mut report =
        driven(plan, half, Drive::new(site.staged(Some(stages.clone())), plan.scenario.work())).await?;
    report.stages = stages.summary()?;
    report.idle_memory = idle_memory;
    if !planted.is_empty() {
        report.more.insert("seeding_s".to_owned(), json!(seeding.as_secs_f64()));
    }
    if let Some(seeded) = planted.last().filter(|_| waiting.is_some()) {
        still_queued(stage, seeded, &mut report).await?;
    }
    Ok(report)
}

/// Connections and sessions, and what they need.
async fn site(plan: &Plan, addresses: Addresses) -> anyhow::Result<(Option<Team>, Site)> {
    let team = match plan.scenario {
        Scenario::Agent => Some(Team::gather(&addresses).await?),
        _ => None,
    };
    let like = team.as_ref().map(|_| Team::session()).unwrap_or_default();
    let site = Site::prepared(addresses, plan.sessions, like).await?;
    Ok((team, site))
}

/// Warms up, measures, and judges both.
async fn driven(plan: &Plan, half: bool, mut drive: Drive) -> anyhow::Result<Report> {
    let Plan { pace, seconds, warm_up, .. } = *plan;
    if half {
        return halfway(plan, drive).await;
    }
    drive.go(pace, warm_up).await?;
    let measured = drive.measure(pace, seconds).await?;
    let verdict = drive.judge().await?;
    let mut report = Report::of_runs(plan, measured);
    report.judged(&verdict);
    Ok(report)
}

/// What a run takes when it is alone, how many are possible at most, and what one takes at half of that.
async fn halfway(plan: &Plan, mut drive: Drive) -> anyhow::Result<Report> {
    let alone = Pace::Closed { clients: 1 };
    drive.go(alone, 1).await?;
    let idle = drive.go(alone, IDLE_SECONDS).await?;
    drive.go(plan.pace, plan.warm_up).await?;
    let most = drive.go(plan.pace, plan.seconds).await?;
    let half = Plan { pace: Pace::Open { per_second: most.runs_per_second() / 2.0 }, ..plan.clone() };
    drive.go(half.pace, plan.warm_up).await?;
    let measured = drive.measure(half.pace, plan.seconds).await?;
    let verdict = drive.judge().await?;
    let mut report = Report::of_runs(&half, measured);
    report.judged(&verdict);
    let (idle_p50, ratio) = (idle.millis(0.5), report.millis(0.99) / idle.millis(0.5));
    report.more.insert("idle_p50_ms".to_owned(), json!(idle_p50));
    report.more.insert("max_runs_per_s".to_owned(), json!(most.runs_per_second()));
    report.more.insert("max_p99_ms".to_owned(), json!(most.millis(0.99)));
    report.more.insert("p99_to_idle_p50".to_owned(), json!(ratio));
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

/// What the p99 at half of the highest rate may be, as a multiple of the p50 of one client.
const HALF_GOAL: f64 = 10.0;

/// Runs of a pool without workers were left alone.
async fn still_queued(stage: &Stage, seeded: &Seeded, report: &mut Report) -> anyhow::Result<()> {
    let mut database = stage.database().await?;
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
        report.failures.push(format!("{left} of {} runs are queued that nobody could take", seeded.runs()));
    }
    Ok(())
}
