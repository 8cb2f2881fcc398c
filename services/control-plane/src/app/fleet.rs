//! Workers, queues, background tasks and log filters.

use std::time::Duration;

use remuda_domain::{
    WorkerId,
    background_task::TaskStatus,
    error::Result,
    identity::Operator,
    logs::{self, LogChange, LogReport, Processes},
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

    /// The background tasks of the control plane, by name.
    pub async fn list_tasks(&self) -> Result<Vec<TaskStatus>> {
        self.store.list_tasks().await
    }

    /// Drains a worker: it finishes what it executes and takes nothing new.
    pub async fn drain_worker(&self, worker: WorkerId) -> Result<Worker> {
        let app = self.clone();
        self.run_to_completion(async move {
            let drained = app.store.drain_worker(worker).await?;
            app.dispatcher.signal(worker, Signal::Drain).await;
            Ok(drained)
        })
        .await
    }

    /// The log filters of processes.
    pub async fn log_filters(&self, only: Processes) -> Result<Vec<LogReport>> {
        self.logs.ask(&*self.transport, only).await
    }

    /// Changes the log filters of processes for a limited time. `None` restores the filters that they started with.
    pub async fn set_log_filter(
        &self,
        caller: &Operator,
        filter: Option<String>,
        lasts: Duration,
        only: Processes,
    ) -> Result<Vec<LogReport>> {
        logs::check_lasting(lasts)?;
        let by = caller.subject.clone();
        let app = self.clone();
        self.run_to_completion(async move {
            app.logs.change(&*app.transport, LogChange { filter, lasts, only, by }).await
        })
        .await
    }
}
