//! Reads and changes the log filters of all processes at run time.
//!
//! Every process [listens](ProcessLogs::listen) for requests and reports its filter. The control plane that serves a
//! request broadcasts it, collects the reports for a moment, and applies the change itself. A process that misses the
//! broadcast keeps its filter and is missing in the response.

use std::{sync::Arc, time::Duration};

use remuda_domain::{
    Error, Timestamp,
    error::Result,
    logs::{LogChange, LogReport, Notice, Processes, Role},
};
use remuda_telemetry::{AUDIT, Levels};
use remuda_transport::Transport;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Reports are collected until none came for `QUIET`, and never for longer than `MAX_COLLECT`.
const QUIET: Duration = Duration::from_millis(500);
const MAX_COLLECT: Duration = Duration::from_secs(3);
/// More processes than any installation has.
const MAX_REPORTS: usize = 10_000;
const RETRY: Duration = Duration::from_secs(1);

/// The log filter of this process, and access to those of others. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ProcessLogs {
    levels: Levels,
    process: Arc<str>,
    host: Arc<str>,
    roles: Arc<[Role]>,
}

impl ProcessLogs {
    /// `process` is a unique name of this process.
    #[must_use]
    pub fn new(levels: Levels, process: &str, host: &str, roles: &[Role]) -> Self {
        Self { levels, process: process.into(), host: host.into(), roles: roles.into() }
    }

    #[must_use]
    pub fn report(&self) -> LogReport {
        let level = self.levels.current();
        LogReport {
            process: self.process.to_string(),
            host: self.host.to_string(),
            roles: self.roles.to_vec(),
            filter: level.filter,
            start: level.start,
            until: level.until.map(Timestamp::from),
        }
    }

    /// Applies a change, and logs it whatever the filter is.
    fn apply(&self, change: &LogChange) -> Result<()> {
        let before = self.levels.current().filter;
        match &change.filter {
            Some(filter) => self.levels.set(filter, change.lasts).map_err(bad_filter)?,
            None => self.levels.reset(),
        }
        let after = self.levels.current();
        let until = after.until.map(|until| Timestamp::from(until).to_rfc3339());
        tracing::info!(target: AUDIT, by = change.by, only = %change.only, before, filter = after.filter, until,
            "log filter changed");
        Ok(())
    }

    /// Serves requests of other processes, and restores the initial filter when a change expires. Ends with `stop`.
    pub async fn listen(self, transport: Arc<dyn Transport>, stop: CancellationToken) {
        let expire = async {
            loop {
                let level = self.levels.wait_for_expiry().await;
                tracing::info!(target: AUDIT, filter = level.filter, "log filter change expired; initial filter restored");
            }
        };
        let serve = async {
            loop {
                if let Err(error) = self.serve_requests(&*transport).await {
                    tracing::debug!(error = error.chain(), "receiving notices failed; retrying");
                }
                tokio::time::sleep(RETRY).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = expire => {}
            () = serve => {}
        }
    }

    /// Serves requests until the source ends.
    async fn serve_requests(&self, transport: &dyn Transport) -> Result<()> {
        let mut notices = transport.subscribe_notices().await?;
        while let Some(notice) = notices.next().await {
            let question = match notice {
                Notice::LogFilter { .. } => continue,
                // This process handles its own requests itself.
                Notice::ChangeLog { from, .. } | Notice::AskLog { from, .. } if *from == *self.process => {
                    continue;
                }
                Notice::AskLog { question, only, .. } => only.include(&self.roles).then_some(question),
                Notice::ChangeLog { question, change, .. } if change.only.include(&self.roles) => {
                    if let Err(error) = self.apply(&change) {
                        tracing::warn!(error = error.chain(), "changing the log filter failed");
                    }
                    Some(question)
                }
                Notice::ChangeLog { .. } => None,
            };
            if let Some(question) = question {
                transport.broadcast(&Notice::LogFilter { question, report: self.report() }).await?;
            }
        }
        Ok(())
    }

    /// The log filters of the selected processes, this one first if it is among them.
    pub(crate) async fn ask(&self, transport: &dyn Transport, only: Processes) -> Result<Vec<LogReport>> {
        let from = self.process.to_string();
        let others = match only {
            Processes::Answering => Vec::new(),
            _ => collect(transport, |question| Notice::AskLog { question, from, only }).await?,
        };
        Ok(self.with_own(only, others))
    }

    /// Changes the filters of the selected processes, and returns the new ones.
    pub(crate) async fn change(
        &self,
        transport: &dyn Transport,
        change: LogChange,
    ) -> Result<Vec<LogReport>> {
        let (from, only) = (self.process.to_string(), change.only);
        if let Some(filter) = &change.filter {
            remuda_telemetry::check_change(filter).map_err(bad_filter)?;
        }
        // This process comes last: if the broadcast fails, nothing is changed.
        let others = match only {
            Processes::Answering => Vec::new(),
            _ => {
                let change = change.clone();
                collect(transport, |question| Notice::ChangeLog { question, from, change }).await?
            }
        };
        if self.is_selected(only) {
            self.apply(&change)?;
        }
        Ok(self.with_own(only, others))
    }

    fn is_selected(&self, only: Processes) -> bool {
        only == Processes::Answering || only.include(&self.roles)
    }

    fn with_own(&self, only: Processes, mut others: Vec<LogReport>) -> Vec<LogReport> {
        others.sort_by(|one, other| {
            let key = |it: &LogReport| {
                (it.roles.first().map(|role| role.as_str()), it.host.clone(), it.process.clone())
            };
            key(one).cmp(&key(other))
        });
        self.is_selected(only).then(|| self.report()).into_iter().chain(others).collect()
    }
}

/// Broadcasts a notice and collects the reports, one per process.
async fn collect(transport: &dyn Transport, notice: impl FnOnce(Uuid) -> Notice) -> Result<Vec<LogReport>> {
    let question = Uuid::now_v7();
    let mut answers = transport.subscribe_notices().await?;
    transport.broadcast(&notice(question)).await?;
    let end = Instant::now() + MAX_COLLECT;
    let mut quiet = Instant::now() + QUIET;
    let mut reports: Vec<LogReport> = Vec::new();
    while let Ok(Some(notice)) = timeout_at(quiet.min(end), answers.next()).await {
        let Notice::LogFilter { question: of, report } = notice else { continue };
        let is_duplicate = || reports.iter().any(|it| it.process == report.process);
        if of == question && reports.len() < MAX_REPORTS && !is_duplicate() {
            reports.push(report);
            quiet = Instant::now() + QUIET;
        }
    }
    Ok(reports)
}

fn bad_filter(error: remuda_telemetry::Error) -> Error {
    Error::invalid("filter", error.to_string()).with_source(error)
}

#[cfg(test)]
mod tests {
    use remuda_testkit::wait_for;
    use remuda_transport::Memory;
    use tokio_util::task::TaskTracker;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn logs(name: &str, role: Role) -> ProcessLogs {
        ProcessLogs::new(Levels::new("info").unwrap(), name, "host", &[role])
    }

    fn change(filter: Option<&str>, only: Processes) -> LogChange {
        let lasts = Duration::from_secs(60);
        LogChange { filter: filter.map(str::to_owned), lasts, only, by: "ann".to_owned() }
    }

    /// One process of each role, the control plane first.
    async fn fleet() -> (Memory, Vec<ProcessLogs>, TaskTracker, CancellationToken) {
        let (transport, tasks, stop) = (Memory::new(), TaskTracker::new(), CancellationToken::new());
        let fleet = vec![logs("c", Role::ControlPlane), logs("w", Role::Worker), logs("s", Role::Stream)];
        for process in &fleet {
            tasks.spawn(process.clone().listen(Arc::new(transport.clone()), stop.clone()));
        }
        wait_for("all to listen", PATIENCE, || async {
            fleet[0].ask(&transport, Processes::All).await.unwrap().len() == 3
        })
        .await;
        (transport, fleet, tasks, stop)
    }

    #[tokio::test]
    async fn change_applies_to_the_selected_processes_and_is_reported() {
        let (transport, fleet, tasks, stop) = fleet().await;
        let answers = fleet[0].change(&transport, change(Some("debug"), Processes::All)).await.unwrap();
        let filters: Vec<_> = answers.iter().map(|it| (it.process.as_str(), it.filter.as_str())).collect();
        assert_eq!(filters, [("c", "debug"), ("s", "debug"), ("w", "debug")]);
        assert!(answers.iter().all(|it| it.until.is_some() && it.start == "info"));

        let only = Processes::With(Role::Worker);
        let answers = fleet[0].change(&transport, change(None, only)).await.unwrap();
        assert_eq!(answers, [fleet[1].report()]);
        assert_eq!((fleet[1].report().filter.as_str(), fleet[2].report().filter.as_str()), ("info", "debug"));

        let answers = fleet[0].change(&transport, change(Some("warn"), Processes::Answering)).await.unwrap();
        assert_eq!(answers, [fleet[0].report()]);
        assert_eq!((fleet[0].report().filter.as_str(), fleet[2].report().filter.as_str()), ("warn", "debug"));
        stop.cancel();
        tasks.close();
        tasks.wait().await;
    }

    #[tokio::test]
    async fn invalid_filter_changes_no_process() {
        let (transport, fleet, _tasks, _stop) = fleet().await;
        let refused = fleet[0].change(&transport, change(Some("deubg"), Processes::All)).await.unwrap_err();
        assert_eq!(refused.field(), Some("filter"));
        assert!(refused.message().contains("deubg"), "{refused}");
        assert!(fleet.iter().all(|it| it.report().filter == "info"));
    }

    #[tokio::test]
    async fn change_expires_in_all_processes() {
        let (transport, fleet, _tasks, _stop) = fleet().await;
        let short = LogChange { lasts: Duration::from_millis(1500), ..change(Some("trace"), Processes::All) };
        let answers = fleet[0].change(&transport, short).await.unwrap();
        assert_eq!(answers.len(), 3);
        wait_for("the filters to go back", PATIENCE, || {
            std::future::ready(fleet.iter().all(|it| it.report().filter == "info"))
        })
        .await;
    }
}
