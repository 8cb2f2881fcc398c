//! Workers, queues and background tasks.

use std::time::Duration;

use remuda_domain::{
    WorkerId,
    error::Result,
    identity::Principal,
    logs::{self, LogChange, LogReport, Processes},
    task::TaskStatus,
    worker::{Signal, Worker},
};
use remuda_store::PoolStats;

use super::App;

impl App {
    pub async fn list_workers(&self, include_gone: bool) -> Result<Vec<Worker>> {
        self.store.list_workers(include_gone).await
    }

    pub async fn queue_stats(&self) -> Result<Vec<PoolStats>> {
        self.store.queue_stats().await
    }

    /// What the control plane does by itself, by name.
    pub async fn list_tasks(&self) -> Result<Vec<TaskStatus>> {
        self.store.list_tasks().await
    }

    /// Tells a worker to finish what it has and take nothing new.
    pub async fn drain_worker(&self, worker: WorkerId) -> Result<Worker> {
        let app = self.clone();
        self.to_the_end(async move {
            let drained = app.store.drain_worker(worker).await?;
            app.signal(worker, Signal::Drain).await;
            Ok(drained)
        })
        .await
    }

    /// What processes log.
    pub async fn log_filters(&self, only: Processes) -> Result<Vec<LogReport>> {
        self.logs.ask(&*self.transport, only).await
    }

    /// Changes what processes log, for a while. Without a filter they go back to what they started with.
    pub async fn set_log_filter(
        &self,
        caller: &Principal,
        filter: Option<String>,
        lasts: Duration,
        only: Processes,
    ) -> Result<Vec<LogReport>> {
        logs::check_lasting(lasts)?;
        let by = format!("{} of {}", caller.subject, caller.tenant);
        let app = self.clone();
        self.to_the_end(async move {
            app.logs.change(&*app.transport, LogChange { filter, lasts, only, by }).await
        })
        .await
    }
}
