//! `remuda gc`: deletes old runs, sessions, events and workers directly in the database.

use std::{process::ExitCode, sync::Arc, time::Duration};

use clap::Args;
use humantime::format_duration;
use remuda_config::Config;
use remuda_domain::error::Result;
use remuda_store::{Store, Sweep, WORKER_RETENTION};
use serde_json::json;
use tokio::time::Instant;

use crate::{output::Output, serve::inferred_mode};

pub(crate) const EXAMPLES: &str = "\
Examples:
  remuda gc --dry-run                       count what the settings limits.runs_kept and so on would delete
  remuda gc                                 delete it now, without waiting for the servers
  remuda gc --older-than 30d --dry-run      runs that ended more than 30 days ago
  remuda gc --older-than 30d --sessions-older-than 90d
  remuda gc --events-older-than 7d --json";

/// Batch sizes.
const RUN_BATCH: u32 = 200;
const SESSION_BATCH: u32 = 50;

/// Interval of progress notes.
const REPORT_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(crate) struct GcArgs {
    /// Delete runs that ended longer ago than this, instead of limits.runs_kept.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    older_than: Option<Duration>,
    /// Delete whole sessions, open or closed, that have been idle for longer than this, instead of limits.sessions_kept.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    sessions_older_than: Option<Duration>,
    /// Delete events of finished runs that are older than this, instead of limits.events_kept.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    events_older_than: Option<Duration>,
    /// Count what would be deleted, without deleting it.
    #[arg(long)]
    dry_run: bool,
}

/// Retention times. `None` means forever.
#[derive(Clone, Copy, Debug)]
struct Retention {
    runs: Option<Duration>,
    sessions: Option<Duration>,
    events: Option<Duration>,
}

impl Retention {
    fn new(args: &GcArgs, config: &Config) -> Self {
        let limits = &config.limits;
        let kept =
            |flag: Option<Duration>, setting: Duration| flag.or((!setting.is_zero()).then_some(setting));
        Self {
            runs: kept(args.older_than, limits.runs_kept),
            sessions: kept(args.sessions_older_than, limits.sessions_kept),
            events: kept(args.events_older_than, limits.events_kept),
        }
    }
}

/// Counts of deleted rows, or of rows that would be deleted.
#[derive(Clone, Copy, Debug, Default)]
struct Deleted {
    runs: u64,
    sessions: u64,
    event_rows: u64,
    workers: u64,
}

pub(crate) async fn execute(args: &GcArgs, config: &Config, output: Output) -> Result<ExitCode> {
    let retention = Retention::new(args, config);
    let options = remuda_node::store_options(config, inferred_mode(config))?;
    let store = remuda_store::connect(&options).await?;
    let mut collector = Collector {
        store,
        dry_run: args.dry_run,
        output,
        deleted: Deleted::default(),
        next_report: Instant::now() + REPORT_INTERVAL,
    };
    let result = collector.collect(retention).await;
    // Report also after an error: earlier batches are committed.
    report(&retention, &collector.deleted, args.dry_run, output);
    result.map(|()| ExitCode::SUCCESS)
}

/// Deletes in batches. Each batch is complete by itself, so the collection may be interrupted at any time.
struct Collector {
    store: Arc<dyn Store>,
    dry_run: bool,
    output: Output,
    deleted: Deleted,
    next_report: Instant,
}

impl Collector {
    async fn collect(&mut self, retention: Retention) -> Result<()> {
        // Sessions first: their runs and events are deleted with them.
        if let Some(older_than) = retention.sessions {
            self.sessions(older_than).await?;
        }
        if let Some(older_than) = retention.runs {
            self.runs(older_than).await?;
        }
        if let Some(kept) = retention.events {
            // A round trims only a part of a long session.
            while self.events(kept).await? > 0 && !self.dry_run {}
        }
        self.deleted.workers = self.store.collect_workers(WORKER_RETENTION, self.dry_run).await?;
        Ok(())
    }

    async fn sessions(&mut self, older_than: Duration) -> Result<()> {
        let mut after = None;
        loop {
            let sweep = Sweep { older_than, after, limit: SESSION_BATCH, dry_run: self.dry_run };
            let batch = self.store.collect_sessions(sweep).await?;
            self.deleted.sessions += batch.deleted;
            self.report_progress();
            after = batch.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    async fn runs(&mut self, older_than: Duration) -> Result<()> {
        let mut after = None;
        loop {
            let sweep = Sweep { older_than, after, limit: RUN_BATCH, dry_run: self.dry_run };
            let batch = self.store.collect_runs(sweep).await?;
            self.deleted.runs += batch.deleted;
            self.report_progress();
            after = batch.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Trims all sessions once and returns the number of rows.
    async fn events(&mut self, kept: Duration) -> Result<u64> {
        let (mut after, before) = (None, self.deleted.event_rows);
        loop {
            let batch = match self.dry_run {
                true => self.store.count_old_events(kept, after, SESSION_BATCH).await?,
                false => self.store.trim_events(kept, after, SESSION_BATCH).await?,
            };
            self.deleted.event_rows += batch.rows;
            self.report_progress();
            after = batch.next;
            if after.is_none() {
                return Ok(self.deleted.event_rows - before);
            }
        }
    }

    fn report_progress(&mut self) {
        if Instant::now() >= self.next_report {
            self.next_report = Instant::now() + REPORT_INTERVAL;
            let Deleted { runs, sessions, event_rows, .. } = self.deleted;
            self.output.note(&format!("so far: sessions {sessions}, runs {runs}, event rows {event_rows}"));
        }
    }
}

fn report(retention: &Retention, deleted: &Deleted, dry_run: bool, output: Output) {
    let Deleted { runs, sessions, event_rows, workers } = *deleted;
    if output.json {
        let seconds = |kept: Option<Duration>| kept.map(|kept| kept.as_secs());
        return output.json_line(&json!({
            "dry_run": dry_run,
            "runs": runs,
            "sessions": sessions,
            "event_rows": event_rows,
            "workers": workers,
            "runs_kept_seconds": seconds(retention.runs),
            "sessions_kept_seconds": seconds(retention.sessions),
            "events_kept_seconds": seconds(retention.events),
        }));
    }
    let verb = if dry_run { "would be deleted" } else { "deleted" };
    for (number, what, kept) in [
        (sessions, "sessions that have been idle for more than", retention.sessions),
        (runs, "runs that have been finished for more than", retention.runs),
        (event_rows, "event rows older than", retention.events),
        (workers, "workers that have been gone for more than", Some(WORKER_RETENTION)),
    ] {
        if let Some(kept) = kept {
            output.out.line(&format!("{verb}: {number} {what} {}", format_duration(kept)));
        }
    }
    if retention.runs.is_none() && retention.sessions.is_none() && retention.events.is_none() {
        output.note(
            "runs, sessions and events are kept forever: set limits.runs_kept, limits.sessions_kept or \
             limits.events_kept, or use a flag such as --older-than 30d",
        );
    }
}
