use remuda_domain::{error::Result, identity::Principal};
use remuda_proto::{
    convert::{sandbox, timestamp},
    v1,
};
use remuda_store::PoolStats;

use super::Calls;

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

/// What concerns the whole installation: which operator asks makes no difference.
impl Calls {
    pub(crate) async fn list_workers(
        &self,
        _: Principal,
        body: v1::ListWorkersRequest,
    ) -> Result<v1::ListWorkersResponse> {
        let workers = self.app.list_workers(body.include_gone).await?;
        Ok(v1::ListWorkersResponse { workers: workers.into_iter().map(Into::into).collect() })
    }

    pub(crate) async fn get_queue_stats(
        &self,
        _: Principal,
        _: v1::GetQueueStatsRequest,
    ) -> Result<v1::GetQueueStatsResponse> {
        let pools = self.app.queue_stats().await?;
        Ok(v1::GetQueueStatsResponse { pools: pools.iter().map(pool_stats).collect() })
    }

    pub(crate) async fn list_tasks(
        &self,
        _: Principal,
        _: v1::ListTasksRequest,
    ) -> Result<v1::ListTasksResponse> {
        let tasks = self.app.list_tasks().await?;
        Ok(v1::ListTasksResponse { tasks: tasks.into_iter().map(Into::into).collect() })
    }

    pub(crate) async fn list_sandboxes(
        &self,
        _: Principal,
        _: v1::ListSandboxesRequest,
    ) -> Result<v1::ListSandboxesResponse> {
        let found = self.app.list_sandboxes().await?;
        let sandboxes = found.into_iter().map(|(record, alive)| sandbox(record, alive)).collect();
        Ok(v1::ListSandboxesResponse { sandboxes })
    }

    pub(crate) async fn drain_worker(
        &self,
        _: Principal,
        body: v1::DrainWorkerRequest,
    ) -> Result<v1::DrainWorkerResponse> {
        let worker = self.app.drain_worker(body.worker_id.parse()?).await?;
        Ok(v1::DrainWorkerResponse { worker: Some(worker.into()) })
    }
}
