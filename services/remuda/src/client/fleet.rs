//! `remuda workers` and `remuda queue`: shows workers and the queues of pools.

use remuda_client::Client;
use remuda_domain::{Error, error::Result};
use remuda_proto::{convert, v1};

use super::{exit::Exit, json, render};
use crate::output::{Output, Style, Table, ago, one_line};

pub(super) const WORKERS_EXAMPLES: &str = "\
Examples:
  remuda workers
  remuda workers list --all            also workers whose lease has ended
  remuda workers drain wrk_01k9…       claim no more sessions and hand over the current ones";

pub(super) const QUEUE_EXAMPLES: &str = "\
Examples:
  remuda queue
  remuda queue stats --json | jq 'select(.runnable_sessions > 100)'";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum WorkersCommand {
    /// List the workers (also without a subcommand).
    List {
        /// Also list workers whose lease has ended.
        #[arg(long)]
        all: bool,
    },
    /// Drain a worker: it claims no more sessions and hands over its sessions at the next step boundary.
    Drain {
        #[arg(value_name = "WORKER_ID")]
        worker: String,
    },
}

#[derive(Clone, Copy, Debug, clap::Subcommand)]
pub(crate) enum QueueCommand {
    /// Show waiting and running sessions per pool (also without a subcommand).
    Stats,
}

pub(super) async fn workers(
    command: Option<WorkersCommand>,
    client: &Client,
    output: Output,
) -> Result<Exit> {
    match command.unwrap_or(WorkersCommand::List { all: false }) {
        WorkersCommand::List { all } => {
            let request = v1::ListWorkersRequest { include_gone: all };
            list(client.list_workers(request).await?.workers, output);
        }
        WorkersCommand::Drain { worker } => {
            let response = client.drain_worker(v1::DrainWorkerRequest { worker_id: worker }).await?;
            let worker = response.worker.ok_or_else(|| Error::internal("the server sent no worker"))?;
            if output.json {
                output.json_line(&json::worker(&worker));
            } else {
                let busy = worker.busy;
                output.out.line(&format!(
                    "{} is draining; it still executes {busy} sessions",
                    one_line(&worker.id)
                ));
            }
        }
    }
    Ok(Exit::Ok)
}

fn list(workers: Vec<v1::Worker>, output: Output) {
    if output.json {
        return workers.iter().for_each(|worker| output.json_line(&json::worker(worker)));
    }
    if workers.is_empty() {
        return output.note("there are no live workers; start one with `remuda worker`");
    }
    let now = chrono::Utc::now();
    let mut table =
        Table::new(output.out, &["WORKER", "HOST", "POOL", "STATE", "BUSY", "VERSION", "STARTED"]);
    for worker in workers {
        let style = render::state_style(&worker.state);
        let started = worker.started_at.as_ref().and_then(convert::from_timestamp);
        table.row([
            (worker.id, None),
            (worker.host, Some(Style::Bold)),
            (worker.pool, None),
            (worker.state, style),
            (format!("{}/{}", worker.busy, worker.slots), None),
            (worker.version, None),
            (started.map(|at| ago(at, now)).unwrap_or_default(), None),
        ]);
    }
    table.print();
}

pub(super) async fn queue(command: Option<QueueCommand>, client: &Client, output: Output) -> Result<Exit> {
    let QueueCommand::Stats = command.unwrap_or(QueueCommand::Stats);
    let pools = client.get_queue_stats(v1::GetQueueStatsRequest {}).await?.pools;
    if output.json {
        pools.iter().for_each(|pool| output.json_line(&json::pool(pool)));
        return Ok(Exit::Ok);
    }
    let now = chrono::Utc::now();
    let header =
        ["POOL", "RUNNABLE SESSIONS", "RUNNING SESSIONS", "QUEUED RUNS", "WORKERS", "SLOTS", "OLDEST WAITS"];
    let mut table = Table::new(output.out, &header);
    for pool in pools {
        let oldest = pool.oldest_runnable_at.as_ref().and_then(convert::from_timestamp);
        let starved = pool.runnable_sessions > 0 && pool.workers == 0;
        table.row([
            (pool.pool, Some(Style::Bold)),
            (pool.runnable_sessions.to_string(), None),
            (pool.running_sessions.to_string(), None),
            (pool.queued_runs.to_string(), None),
            (pool.workers.to_string(), starved.then_some(Style::Bad)),
            (pool.slots.to_string(), None),
            (oldest.map(|at| ago(at, now)).unwrap_or_default(), None),
        ]);
    }
    table.print();
    Ok(Exit::Ok)
}
