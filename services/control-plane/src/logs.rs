//! What the processes of the fleet log, and changing it while they run.
//!
//! Every process [listens](ProcessLogs::listen) for wishes and answers with what it logs then. The control plane that is asked does
//! so itself, tells the others, and collects their answers for a moment. Whoever does not hear it goes on as before, and is
//! missing in the answer.

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

/// Answers are collected until none came for this long, and never for longer than that.
const QUIET: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(3);
/// More processes than any installation has.
const MAX_REPORTS: usize = 10_000;
const RETRY: Duration = Duration::from_secs(1);

/// The log of this process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ProcessLogs {
    levels: Levels,
    process: Arc<str>,
    host: Arc<str>,
    roles: Arc<[Role]>,
}

impl ProcessLogs {
    /// `process` names this one among all others.
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

    /// Does what is wished, and says so in the log whatever the filter is.
    fn apply(&self, change: &LogChange) -> Result<()> {
        let before = self.levels.current().filter;
        match &change.filter {
            Some(filter) => self.levels.set(filter, change.lasts).map_err(bad_filter)?,
            None => self.levels.reset(),
        }
        let after = self.levels.current();
        let until = after.until.map(|until| Timestamp::from(until).to_rfc3339());
        tracing::info!(target: AUDIT, by = change.by, only = %change.only, before, filter = after.filter, until,
            "the log filter was changed");
        Ok(())
    }

    /// Does what others wish, and goes back to what this process started with when their time is over. Ends with `stop`.
    pub async fn listen(self, transport: Arc<dyn Transport>, stop: CancellationToken) {
        let expire = async {
            loop {
                let level = self.levels.keep().await;
                tracing::info!(target: AUDIT, filter = level.filter, "the log filter is back to what it was");
            }
        };
        let obey = async {
            loop {
                if let Err(error) = self.obey(&*transport).await {
                    tracing::debug!(error = error.chain(), "notices cannot be received at the moment");
                }
                tokio::time::sleep(RETRY).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = expire => {}
            () = obey => {}
        }
    }

    /// Until the source ends.
    async fn obey(&self, transport: &dyn Transport) -> Result<()> {
        let mut notices = transport.subscribe_notices().await?;
        while let Some(notice) = notices.next().await {
            let question = match notice {
                Notice::LogFilter { .. } => continue,
                // This process has done so before it told the others.
                Notice::ChangeLog { from, .. } | Notice::AskLog { from, .. } if *from == *self.process => {
                    continue;
                }
                Notice::AskLog { question, only, .. } => only.include(&self.roles).then_some(question),
                Notice::ChangeLog { question, change, .. } if change.only.include(&self.roles) => {
                    if let Err(error) = self.apply(&change) {
                        tracing::warn!(error = error.chain(), "the log filter stays as it is");
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

    /// What the processes log, this one first if it is meant.
    pub(crate) async fn ask(&self, transport: &dyn Transport, only: Processes) -> Result<Vec<LogReport>> {
        let from = self.process.to_string();
        let others = match only {
            Processes::Answering => Vec::new(),
            _ => collect(transport, |question| Notice::AskLog { question, from, only }).await?,
        };
        Ok(self.with_own(only, others))
    }

    /// Changes what they log, and says what became of it.
    pub(crate) async fn change(
        &self,
        transport: &dyn Transport,
        change: LogChange,
    ) -> Result<Vec<LogReport>> {
        let (from, only) = (self.process.to_string(), change.only);
        if let Some(filter) = &change.filter {
            remuda_telemetry::check_change(filter).map_err(bad_filter)?;
        }
        // This process comes last: a change that others cannot be told of is refused as a whole.
        let others = match only {
            Processes::Answering => Vec::new(),
            _ => {
                let change = change.clone();
                collect(transport, |question| Notice::ChangeLog { question, from, change }).await?
            }
        };
        if self.is_meant(only) {
            self.apply(&change)?;
        }
        Ok(self.with_own(only, others))
    }

    fn is_meant(&self, only: Processes) -> bool {
        only == Processes::Answering || only.include(&self.roles)
    }

    fn with_own(&self, only: Processes, mut others: Vec<LogReport>) -> Vec<LogReport> {
        others.sort_by(|one, other| {
            let key = |it: &LogReport| {
                (it.roles.first().map(|role| role.as_str()), it.host.clone(), it.process.clone())
            };
            key(one).cmp(&key(other))
        });
        self.is_meant(only).then(|| self.report()).into_iter().chain(others).collect()
    }
}

/// Tells all processes something and gives what they answer, each once.
async fn collect(transport: &dyn Transport, notice: impl FnOnce(Uuid) -> Notice) -> Result<Vec<LogReport>> {
    let question = Uuid::now_v7();
    let mut answers = transport.subscribe_notices().await?;
    transport.broadcast(&notice(question)).await?;
    let end = Instant::now() + LONGEST;
    let mut quiet = Instant::now() + QUIET;
    let mut reports: Vec<LogReport> = Vec::new();
    while let Ok(Some(notice)) = timeout_at(quiet.min(end), answers.next()).await {
        let Notice::LogFilter { question: of, report } = notice else { continue };
        let known = || reports.iter().any(|it| it.process == report.process);
        if of == question && reports.len() < MAX_REPORTS && !known() {
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

    /// One process of each kind, the control plane first.
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
    async fn all_or_some_are_changed_and_say_so() {
        let (transport, fleet, tasks, stop) = fleet().await;
        let answers = fleet[0].change(&transport, change(Some("debug"), Processes::All)).await.unwrap();
        let said: Vec<_> = answers.iter().map(|it| (it.process.as_str(), it.filter.as_str())).collect();
        assert_eq!(said, [("c", "debug"), ("s", "debug"), ("w", "debug")]);
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
    async fn a_bad_filter_changes_nothing_anywhere() {
        let (transport, fleet, _tasks, _stop) = fleet().await;
        let refused = fleet[0].change(&transport, change(Some("deubg"), Processes::All)).await.unwrap_err();
        assert_eq!(refused.field(), Some("filter"));
        assert!(refused.message().contains("deubg"), "{refused}");
        assert!(fleet.iter().all(|it| it.report().filter == "info"));
    }

    #[tokio::test]
    async fn what_was_wished_ends_by_itself() {
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
