//! `remuda gc`: deletes what is over for long, straight from the database.

use std::{process::ExitCode, sync::Arc, time::Duration};

use clap::Args;
use humantime::format_duration;
use remuda_config::Config;
use remuda_domain::error::Result;
use remuda_store::{Store, Sweep, WORKERS_KEPT};
use serde_json::json;
use tokio::time::Instant;

use crate::{output::Output, serve::inferred_mode};

pub(crate) const EXAMPLES: &str = "\
Examples:
  remuda gc --dry-run                       what would go by the settings limits.runs_kept and its like
  remuda gc                                 delete that now, and not within the minute
  remuda gc --older-than 30d --dry-run      runs that ended more than 30 days ago
  remuda gc --older-than 30d --sessions-older-than 90d
  remuda gc --events-older-than 7d --json";

/// What is looked at together.
const RUNS: u32 = 200;
const SESSIONS: u32 = 50;

/// How often people are told how far it is.
const TELL_EVERY: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(crate) struct GcArgs {
    /// Delete runs that ended longer ago than this, instead of limits.runs_kept.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    older_than: Option<Duration>,
    /// Delete whole sessions in which nothing has happened for this long, open or closed, instead of limits.sessions_kept.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    sessions_older_than: Option<Duration>,
    /// Delete events of finished runs that are older than this, instead of limits.events_kept.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    events_older_than: Option<Duration>,
    /// Count what would be deleted, and delete nothing.
    #[arg(long)]
    dry_run: bool,
}

/// For how long things are kept. Nothing: for ever.
#[derive(Clone, Copy, Debug)]
struct Policy {
    runs: Option<Duration>,
    sessions: Option<Duration>,
    events: Option<Duration>,
}

impl Policy {
    fn new(args: &GcArgs, config: &Config) -> Self {
        let limits = &config.limits;
        let kept =
            |asked: Option<Duration>, setting: Duration| asked.or((!setting.is_zero()).then_some(setting));
        Self {
            runs: kept(args.older_than, limits.runs_kept),
            sessions: kept(args.sessions_older_than, limits.sessions_kept),
            events: kept(args.events_older_than, limits.events_kept),
        }
    }
}

/// What went, or would go.
#[derive(Clone, Copy, Debug, Default)]
struct Gone {
    runs: u64,
    sessions: u64,
    event_rows: u64,
    workers: u64,
}

pub(crate) async fn execute(args: &GcArgs, config: &Config, output: Output) -> Result<ExitCode> {
    let policy = Policy::new(args, config);
    let options = remuda_node::store_options(config, inferred_mode(config))?;
    let store = remuda_store::connect(&options).await?;
    let mut collector = Collector {
        store,
        dry_run: args.dry_run,
        output,
        gone: Gone::default(),
        tell_at: Instant::now() + TELL_EVERY,
    };
    let done = collector.collect(policy).await;
    // What was deleted is gone, whatever came after it.
    report(&policy, &collector.gone, args.dry_run, output);
    done.map(|()| ExitCode::SUCCESS)
}

/// Goes through everything. Each call is a whole by itself, so that it may be interrupted at any time.
struct Collector {
    store: Arc<dyn Store>,
    dry_run: bool,
    output: Output,
    gone: Gone,
    tell_at: Instant,
}

impl Collector {
    async fn collect(&mut self, policy: Policy) -> Result<()> {
        // Sessions first: what goes with them does not have to be looked at again.
        if let Some(older_than) = policy.sessions {
            self.sessions(older_than).await?;
        }
        if let Some(older_than) = policy.runs {
            self.runs(older_than).await?;
        }
        if let Some(kept) = policy.events {
            // A long session is trimmed some at a time.
            while self.events(kept).await? > 0 && !self.dry_run {}
        }
        self.gone.workers = self.store.collect_workers(WORKERS_KEPT, self.dry_run).await?;
        Ok(())
    }

    async fn sessions(&mut self, older_than: Duration) -> Result<()> {
        let mut after = None;
        loop {
            let sweep = Sweep { older_than, after, limit: SESSIONS, dry_run: self.dry_run };
            let done = self.store.collect_sessions(sweep).await?;
            self.gone.sessions += done.deleted;
            self.tell();
            after = done.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    async fn runs(&mut self, older_than: Duration) -> Result<()> {
        let mut after = None;
        loop {
            let sweep = Sweep { older_than, after, limit: RUNS, dry_run: self.dry_run };
            let done = self.store.collect_runs(sweep).await?;
            self.gone.runs += done.deleted;
            self.tell();
            after = done.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Goes through all sessions once, and says how many rows that were.
    async fn events(&mut self, kept: Duration) -> Result<u64> {
        let (mut after, before) = (None, self.gone.event_rows);
        loop {
            let done = match self.dry_run {
                true => self.store.count_old_events(kept, after, SESSIONS).await?,
                false => self.store.trim_events(kept, after, SESSIONS).await?,
            };
            self.gone.event_rows += done.rows;
            self.tell();
            after = done.next;
            if after.is_none() {
                return Ok(self.gone.event_rows - before);
            }
        }
    }

    fn tell(&mut self) {
        if Instant::now() >= self.tell_at {
            self.tell_at = Instant::now() + TELL_EVERY;
            let Gone { runs, sessions, event_rows, .. } = self.gone;
            self.output
                .note(&format!("so far: sessions {sessions}, runs {runs}, rows of events {event_rows}"));
        }
    }
}

fn report(policy: &Policy, gone: &Gone, dry_run: bool, output: Output) {
    let Gone { runs, sessions, event_rows, workers } = *gone;
    if output.json {
        let seconds = |kept: Option<Duration>| kept.map(|kept| kept.as_secs());
        return output.json_line(&json!({
            "dry_run": dry_run,
            "runs": runs,
            "sessions": sessions,
            "event_rows": event_rows,
            "workers": workers,
            "runs_kept_seconds": seconds(policy.runs),
            "sessions_kept_seconds": seconds(policy.sessions),
            "events_kept_seconds": seconds(policy.events),
        }));
    }
    let done = if dry_run { "would be deleted" } else { "deleted" };
    for (number, what, kept) in [
        (sessions, "sessions in which nothing has happened for", policy.sessions),
        (runs, "runs that have been over for", policy.runs),
        (event_rows, "rows of events older than", policy.events),
        (workers, "workers that have been gone for", Some(WORKERS_KEPT)),
    ] {
        if let Some(kept) = kept {
            output.out.line(&format!("{done}: {number} {what} {}", format_duration(kept)));
        }
    }
    if policy.runs.is_none() && policy.sessions.is_none() && policy.events.is_none() {
        output.note(
            "runs, sessions and events are kept for ever: set limits.runs_kept, limits.sessions_kept or \
             limits.events_kept, or say e.g. --older-than 30d",
        );
    }
}
