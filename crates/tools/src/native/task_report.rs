//! Formats the report of a background task for tool results.

use remuda_sandbox::ExecStatus;
use serde_json::Value;

use crate::background::{NewOutput, TaskReport, TaskStatus};

/// Adds the status and new output of a task to a result.
pub(super) fn add_report(answer: &mut Value, report: TaskReport) {
    let status = match report.status {
        TaskStatus::Running => "running",
        TaskStatus::Failed(error) => {
            answer["error"] = error.into();
            "failed"
        }
        TaskStatus::Ended { how, artifacts } => {
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
                ExecStatus::DiskFull => {
                    answer["exit_code"] = Value::Null;
                    answer["disk_full"] = true.into();
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

fn add(answer: &mut Value, stream: &str, new_output: NewOutput) {
    answer[stream] = new_output.text.into();
    if new_output.missed > 0 {
        answer[format!("{stream}_missed_bytes")] = new_output.missed.into();
    }
    if new_output.more {
        answer["more"] = true.into();
    }
}
