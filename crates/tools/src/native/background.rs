//! How the tools tell of a background task.

use remuda_sandbox::ExecStatus;
use serde_json::Value;

use crate::background::{News, Report, Status};

/// Adds status and news of a task to an answer.
pub(super) fn report(answer: &mut Value, report: Report) {
    let status = match report.status {
        Status::Running => "running",
        Status::Failed(error) => {
            answer["error"] = error.into();
            "failed"
        }
        Status::Ended { how, artifacts } => {
            if !artifacts.is_empty() {
                answer["artifacts"] = artifacts.into();
            }
            match how {
                ExecStatus::TimedOut => "timed_out",
                ExecStatus::Cancelled => "killed",
                ExecStatus::Exited(code) => {
                    answer["exit_code"] = code.into();
                    "exited"
                }
                ExecStatus::Signalled(signal) => {
                    answer["exit_code"] = Value::Null;
                    answer["signal"] = signal.into();
                    "exited"
                }
                ExecStatus::OutOfMemory => {
                    answer["exit_code"] = Value::Null;
                    answer["out_of_memory"] = true.into();
                    "exited"
                }
            }
        }
    };
    answer["status"] = status.into();
    add(answer, "stdout", report.stdout);
    add(answer, "stderr", report.stderr);
}

fn add(answer: &mut Value, stream: &str, news: News) {
    answer[stream] = news.text.into();
    if news.missed > 0 {
        answer[format!("{stream}_missed_bytes")] = news.missed.into();
    }
    if news.more {
        answer["more"] = true.into();
    }
}
