//! Conversions of workers, background tasks and log filters.

use remuda_domain::{
    background_task::{TaskRound, TaskStatus},
    logs::LogReport,
    worker::Worker,
};

use super::{timestamp, to_duration};
use crate::v1;

impl From<Worker> for v1::Worker {
    fn from(worker: Worker) -> Self {
        let registration = worker.registration;
        Self {
            id: registration.id.to_string(),
            host: registration.host,
            version: registration.version,
            pool: registration.pool.to_string(),
            slots: registration.slots,
            busy: worker.busy,
            state: worker.state.as_str().to_owned(),
            started_at: Some(timestamp(worker.started_at)),
            lease_until: Some(timestamp(worker.lease_until)),
        }
    }
}

impl From<TaskRound> for v1::TaskRound {
    fn from(round: TaskRound) -> Self {
        let (counts, error) = match round.result {
            Ok(counts) => (counts, String::new()),
            // An empty error would look like a success.
            Err(error) if error.is_empty() => (Default::default(), "failed".to_owned()),
            Err(error) => (Default::default(), error),
        };
        Self {
            holder: round.holder,
            started_at: Some(timestamp(round.started_at)),
            duration: to_duration(round.duration),
            counts,
            error,
        }
    }
}

impl From<TaskStatus> for v1::Task {
    fn from(task: TaskStatus) -> Self {
        Self {
            name: task.last.name.clone(),
            rounds: task.rounds,
            failures: task.failures,
            last: Some(task.last.into()),
            last_notable: task.last_notable.map(Into::into),
        }
    }
}

impl From<LogReport> for v1::LogFilter {
    fn from(report: LogReport) -> Self {
        Self {
            process: report.process,
            host: report.host,
            roles: report.roles.into_iter().map(|role| role.as_str().to_owned()).collect(),
            filter: report.filter,
            start_filter: report.start,
            until: report.until.map(timestamp),
        }
    }
}
