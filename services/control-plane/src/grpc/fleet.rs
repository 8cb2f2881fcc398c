use remuda_domain::identity::Scope;
use remuda_proto::{
    convert::{sandbox, timestamp},
    v1::{self, fleet_service_server::FleetService},
};
use remuda_store::PoolStats;
use tonic::{Request, Response, Status, async_trait};

use super::Api;

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

#[async_trait]
impl FleetService for Api {
    async fn list_workers(
        &self,
        request: Request<v1::ListWorkersRequest>,
    ) -> Result<Response<v1::ListWorkersResponse>, Status> {
        self.gate
            .answer(request, Scope::Admin, |_, body| async move {
                let workers = self.app.list_workers(body.include_gone).await?;
                Ok(v1::ListWorkersResponse { workers: workers.into_iter().map(Into::into).collect() })
            })
            .await
    }

    async fn get_queue_stats(
        &self,
        request: Request<v1::GetQueueStatsRequest>,
    ) -> Result<Response<v1::GetQueueStatsResponse>, Status> {
        self.gate
            .answer(request, Scope::Admin, |_, _| async move {
                let pools = self.app.queue_stats().await?;
                Ok(v1::GetQueueStatsResponse { pools: pools.iter().map(pool_stats).collect() })
            })
            .await
    }

    async fn list_tasks(
        &self,
        request: Request<v1::ListTasksRequest>,
    ) -> Result<Response<v1::ListTasksResponse>, Status> {
        self.gate
            .answer(request, Scope::Admin, |_, _| async move {
                let tasks = self.app.list_tasks().await?;
                Ok(v1::ListTasksResponse { tasks: tasks.into_iter().map(Into::into).collect() })
            })
            .await
    }

    async fn list_sandboxes(
        &self,
        request: Request<v1::ListSandboxesRequest>,
    ) -> Result<Response<v1::ListSandboxesResponse>, Status> {
        self.gate
            .answer(request, Scope::Admin, |_, _| async move {
                let found = self.app.list_sandboxes().await?;
                let sandboxes = found.into_iter().map(|(record, alive)| sandbox(record, alive)).collect();
                Ok(v1::ListSandboxesResponse { sandboxes })
            })
            .await
    }

    async fn drain_worker(
        &self,
        request: Request<v1::DrainWorkerRequest>,
    ) -> Result<Response<v1::DrainWorkerResponse>, Status> {
        self.gate
            .answer(request, Scope::Admin, |_, body| async move {
                let worker = self.app.drain_worker(body.worker_id.parse()?).await?;
                Ok(v1::DrainWorkerResponse { worker: Some(worker.into()) })
            })
            .await
    }
}
