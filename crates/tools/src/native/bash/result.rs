//! Converts the result of a command to a tool result.

use std::time::Duration;

use remuda_domain::tool::{DisplayFields, ResultBody, ResultDisplay};
use remuda_sandbox::{CapturedOutput, ExecResult, ExecStatus, Usage};
use serde_json::{Map, Value, json};

use super::ARTIFACT_BYTES;
use crate::{
    context::{cancelled, timed_out},
    tool::{CallError, CallResult},
};

/// Usage below these thresholds is not reported.
const NOTABLE_CPU: Duration = Duration::from_secs(1);
const NOTABLE_MEMORY: u64 = 256 << 20;

/// The tool result of a command that ended by itself; otherwise an error with the partial output.
pub(super) fn tool_result(result: ExecResult, timeout: Duration) -> CallResult {
    let (mut answer, error) = match result.status {
        ExecStatus::Exited(code) => (json!({ "exit_code": code }), None),
        ExecStatus::Signalled(signal) => (json!({ "exit_code": null, "signal": signal }), None),
        ExecStatus::OutOfMemory => (json!({ "exit_code": null, "out_of_memory": true }), None),
        ExecStatus::DiskFull => (json!({ "exit_code": null, "disk_full": true }), None),
        ExecStatus::TimedOut => (json!({}), Some(timed_out(timeout))),
        ExecStatus::Cancelled => (json!({}), Some(cancelled())),
    };
    let mut notes = Vec::new();
    for (stream, captured) in [("stdout", result.stdout), ("stderr", result.stderr)] {
        add(&mut answer, &mut notes, stream, captured);
    }
    if !notes.is_empty() {
        answer["note"] = notes.join("; ").into();
    }
    add_usage(&mut answer, result.usage);
    match error {
        None => Ok(answer),
        Some(error) => Err(CallError { error, output: answer }),
    }
}

/// The result of a command, or the state of a background task, for people.
pub(in crate::native) fn for_people(output: DisplayFields<'_>) -> ResultDisplay {
    let failed =
        |how: String| ResultDisplay { warns: true, ..ResultDisplay::new([Some(how)], ResultBody::Output) };
    if let Some(signal) = output.0["signal"].as_i64() {
        return failed(format!("killed by signal {signal}"));
    }
    if output.is_set("out_of_memory") {
        return failed("killed: out of memory".to_owned());
    }
    if output.is_set("disk_full") {
        return failed("killed: the disk is nearly full".to_owned());
    }
    match output.0["exit_code"].as_i64() {
        Some(0) => ResultDisplay::new([Some("exit code 0".to_owned())], ResultBody::Output),
        Some(code) => failed(format!("exit code {code}")),
        None => ResultDisplay::new([output.text("status"), output.text("task_id")], ResultBody::Output),
    }
}

/// Adds the text, and if it is truncated, its full size and the artifact.
fn add(answer: &mut Value, notes: &mut Vec<String>, stream: &str, captured: CapturedOutput) {
    if captured.truncated {
        answer["truncated"] = true.into();
        answer[format!("{stream}_bytes")] = captured.total_bytes.into();
    }
    if let Some(path) = captured.artifact {
        let kept = format!("the first {} MiB", ARTIFACT_BYTES >> 20);
        let what = if captured.total_bytes > ARTIFACT_BYTES { &kept } else { "all" };
        notes.push(format!("{what} of {stream} is in {path}: see the rest with Read or Grep"));
        if answer.get("artifacts").is_none() {
            answer["artifacts"] = Value::Object(Map::new());
        }
        answer["artifacts"][stream] = path.into();
    }
    answer[stream] = captured.text.into();
}

fn add_usage(answer: &mut Value, usage: Usage) {
    if usage.cpu >= NOTABLE_CPU {
        answer["cpu_ms"] = u64::try_from(usage.cpu.as_millis()).unwrap_or(u64::MAX).into();
    }
    if usage.max_memory_bytes >= NOTABLE_MEMORY {
        answer["max_memory_bytes"] = usage.max_memory_bytes.into();
    }
    if usage.left_behind > 0 {
        answer["processes_killed"] = usage.left_behind.into();
    }
}

#[cfg(test)]
mod tests {
    use remuda_domain::Code;

    use super::*;

    fn result(status: ExecStatus) -> ExecResult {
        let captured = |text: &str| CapturedOutput { text: text.into(), ..CapturedOutput::default() };
        ExecResult {
            status,
            stdout: captured("out"),
            stderr: captured(""),
            duration: Duration::ZERO,
            usage: Usage { cpu: Duration::from_millis(20), max_memory_bytes: 4 << 20, left_behind: 0 },
        }
    }

    #[test]
    fn result_contains_only_relevant_fields() {
        let value = tool_result(result(ExecStatus::Exited(2)), Duration::ZERO).unwrap();
        assert_eq!(value, json!({ "exit_code": 2, "stdout": "out", "stderr": "" }));
        let value = tool_result(result(ExecStatus::OutOfMemory), Duration::ZERO).unwrap();
        assert_eq!(value["out_of_memory"], true);
        let value = tool_result(result(ExecStatus::DiskFull), Duration::ZERO).unwrap();
        assert_eq!(value["disk_full"], true);
    }

    #[test]
    fn timeout_and_cancel_keep_the_partial_output() {
        for (status, code) in
            [(ExecStatus::TimedOut, Code::ToolTimedOut), (ExecStatus::Cancelled, Code::Cancelled)]
        {
            let failure = tool_result(result(status), Duration::from_millis(7)).unwrap_err();
            assert_eq!(failure.error.code(), code);
            assert_eq!(failure.output, json!({ "stdout": "out", "stderr": "" }));
        }
    }

    #[test]
    fn truncation_and_notable_usage_are_reported() {
        let mut long = result(ExecStatus::Exited(0));
        long.stdout = CapturedOutput {
            text: "a…z".into(),
            truncated: true,
            total_bytes: 20 << 20,
            artifact: Some("d/stdout".into()),
        };
        long.usage = Usage { cpu: Duration::from_secs(3), max_memory_bytes: 1 << 30, left_behind: 2 };
        let expected = json!({
            "exit_code": 0, "stdout": "a…z", "stderr": "", "truncated": true, "stdout_bytes": 20 << 20,
            "artifacts": { "stdout": "d/stdout" },
            "note": "the first 16 MiB of stdout is in d/stdout: see the rest with Read or Grep",
            "cpu_ms": 3000, "max_memory_bytes": 1 << 30, "processes_killed": 2
        });
        assert_eq!(tool_result(long, Duration::ZERO).unwrap(), expected);
    }
}
