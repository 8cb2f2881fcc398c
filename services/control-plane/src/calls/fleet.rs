use remuda_domain::{error::Result, identity::Operator, logs::DEFAULT_LASTING, session::Owner};
use remuda_proto::{
    convert::{plain_duration, sandbox, timestamp},
    v1,
};
use remuda_store::{Counts, PoolStats, PoolView};

use super::{Calls, runs::step_glance};
use crate::app::RunOverview;

fn pool_stats(stats: &PoolStats) -> v1::PoolStats {
    v1::PoolStats {
        pool: stats.pool.to_string(),
        runnable_sessions: stats.runnable_sessions,
        running_sessions: stats.running_sessions,
        queued_runs: stats.queued_runs,
        workers: stats.workers,
        slots: stats.slots,
        oldest_runnable_at: stats.oldest_runnable_at.map(timestamp),
    }
}

fn pool_overview(view: &PoolView) -> v1::PoolOverview {
    v1::PoolOverview {
        stats: Some(pool_stats(&view.stats)),
        parked_sessions: view.parked_sessions,
        busy: view.busy,
        draining: view.draining,
    }
}

fn counts(counts: Counts) -> v1::Counts {
    v1::Counts {
        submitted: counts.submitted,
        completed: counts.completed,
        failed: counts.failed,
        cancelled: counts.cancelled,
        timed_out: counts.timed_out,
        input_tokens: counts.input_tokens,
        output_tokens: counts.output_tokens,
        cost_micros: counts.cost_micros,
    }
}

fn run_glance(run: RunOverview) -> v1::RunGlance {
    let RunOverview { summary, reason, why, since, step } = run;
    let worker = match summary.owner {
        Owner::Alive { worker, .. } | Owner::Expired { worker } => worker.to_string(),
        Owner::Nobody => String::new(),
    };
    v1::RunGlance {
        run_id: summary.run.to_string(),
        session_id: summary.session.to_string(),
        session_name: summary.session_name.unwrap_or_default(),
        pool: summary.pool.to_string(),
        kind: summary.kind.to_owned(),
        agent: summary.agent.unwrap_or_default(),
        state: v1::RunState::from(summary.state).into(),
        reason: reason.to_owned(),
        why,
        since: Some(timestamp(since)),
        position: summary.ahead,
        worker_id: worker,
        step: step.map(step_glance),
        tokens: summary.spent.tokens,
        cost_micros: summary.spent.micros,
    }
}

impl Calls {
    /// The only fleet call with data of a tenant, which the operator names.
    pub(crate) async fn get_overview(
        &self,
        caller: Operator,
        body: v1::GetOverviewRequest,
    ) -> Result<v1::GetOverviewResponse> {
        let overview = self.app.overview(&caller, &body.tenant, body.limit).await?;
        let fleet = &overview.fleet;
        Ok(v1::GetOverviewResponse {
            at: Some(timestamp(fleet.at)),
            now: Some(timestamp(chrono::Utc::now())),
            version: self.info.version.clone(),
            mode: self.info.mode.to_owned(),
            pools: fleet.pools.iter().map(pool_overview).collect(),
            at_least: fleet.at_least,
            workers: fleet.workers.iter().cloned().map(Into::into).collect(),
            counts: Some(counts(fleet.counts)),
            running: overview.running.into_iter().map(run_glance).collect(),
            waiting: overview.waiting.into_iter().map(run_glance).collect(),
        })
    }
}

/// Calls about the whole installation. Their results do not depend on the caller.
impl Calls {
    pub(crate) async fn list_workers(
        &self,
        _: Operator,
        body: v1::ListWorkersRequest,
    ) -> Result<v1::ListWorkersResponse> {
        let workers = self.app.list_workers(body.include_gone).await?;
        Ok(v1::ListWorkersResponse { workers: workers.into_iter().map(Into::into).collect() })
    }

    pub(crate) async fn get_queue_stats(
        &self,
        _: Operator,
        _: v1::GetQueueStatsRequest,
    ) -> Result<v1::GetQueueStatsResponse> {
        let pools = self.app.queue_stats().await?;
        Ok(v1::GetQueueStatsResponse { pools: pools.iter().map(pool_stats).collect() })
    }

    pub(crate) async fn list_tasks(
        &self,
        _: Operator,
        _: v1::ListTasksRequest,
    ) -> Result<v1::ListTasksResponse> {
        let tasks = self.app.list_tasks().await?;
        Ok(v1::ListTasksResponse { tasks: tasks.into_iter().map(Into::into).collect() })
    }

    pub(crate) async fn list_sandboxes(
        &self,
        _: Operator,
        _: v1::ListSandboxesRequest,
    ) -> Result<v1::ListSandboxesResponse> {
        let found = self.app.list_sandboxes().await?;
        let sandboxes = found.into_iter().map(|(record, alive)| sandbox(record, alive)).collect();
        Ok(v1::ListSandboxesResponse { sandboxes })
    }

    pub(crate) async fn get_log_filter(
        &self,
        _: Operator,
        body: v1::GetLogFilterRequest,
    ) -> Result<v1::GetLogFilterResponse> {
        let processes = self.app.log_filters(body.only.parse()?).await?;
        Ok(v1::GetLogFilterResponse { processes: processes.into_iter().map(Into::into).collect() })
    }

    pub(crate) async fn set_log_filter(
        &self,
        caller: Operator,
        body: v1::SetLogFilterRequest,
    ) -> Result<v1::SetLogFilterResponse> {
        let filter = Some(body.filter).filter(|filter| !filter.is_empty());
        // An invalid duration becomes zero, which is refused as too short.
        let lasts = body.lasts.map_or(DEFAULT_LASTING, |lasts| plain_duration(lasts).unwrap_or_default());
        let processes = self.app.set_log_filter(&caller, filter, lasts, body.only.parse()?).await?;
        Ok(v1::SetLogFilterResponse { processes: processes.into_iter().map(Into::into).collect() })
    }

    pub(crate) async fn drain_worker(
        &self,
        _: Operator,
        body: v1::DrainWorkerRequest,
    ) -> Result<v1::DrainWorkerResponse> {
        let worker = self.app.drain_worker(body.worker_id.parse()?).await?;
        Ok(v1::DrainWorkerResponse { worker: Some(worker.into()) })
    }
}
