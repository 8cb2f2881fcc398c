//! `remuda runs steps`: lists the stored steps of a run.

use std::time::Duration;

use remuda_client::Client;
use remuda_domain::error::Result;
use remuda_proto::v1;

use crate::{
    client::{conversation::headline, exit::Exit, json, render},
    output::{Output, Style, Table, count, elapsed, one_line},
};

pub(super) async fn steps(run_id: String, client: &Client, output: Output) -> Result<Exit> {
    let steps = client.list_steps(v1::ListStepsRequest { run_id }).await?.steps;
    if output.json {
        steps.iter().for_each(|step| output.json_line(&json::step(step)));
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(output.out, &["#", "STEP", "KIND", "WHAT", "STATUS", "TOOK", "DETAIL"]);
    for step in &steps {
        let Row { action, status, took, detail } = row(step);
        table.row([
            (step.index.to_string(), None),
            (step.id.clone(), Some(Style::Dim)),
            (step.kind.clone(), None),
            (action, Some(Style::Bold)),
            (status.clone(), render::state_style(&status)),
            (took.map(elapsed).unwrap_or_default(), None),
            (detail, None),
        ]);
    }
    table.print();
    Ok(Exit::Ok)
}

/// The steps without a table, for narrow views.
pub(crate) fn step_lines(steps: &[v1::Step]) -> Vec<String> {
    let line = |step: &v1::Step| {
        let Row { action, status, took, detail } = row(step);
        let took = took.map(elapsed).unwrap_or_default();
        one_line(&format!("{:>3}  {action}  {status}  {took}  {detail}", step.index + 1))
    };
    steps.iter().map(line).collect()
}

#[derive(Debug, Default, PartialEq)]
struct Row {
    action: String,
    status: String,
    took: Option<Duration>,
    detail: String,
}

fn row(step: &v1::Step) -> Row {
    if let Some(call) = &step.model_call {
        return model_call(call);
    }
    let status = step.outcome.as_ref().map_or("running", |outcome| outcome.status.as_str());
    let took = step.outcome.as_ref().and_then(|outcome| u64::try_from(outcome.duration_ms).ok());
    let call = step.call.as_ref();
    Row {
        action: call.map(|call| call.tool.clone()).unwrap_or_default(),
        status: status.to_owned(),
        took: took.map(Duration::from_millis),
        detail: call.map(|call| headline(&call.tool, &json::embedded(&call.arguments))).unwrap_or_default(),
    }
}

/// The row of a model call: tokens, finish reason, attempts, called tools and failure.
fn model_call(call: &v1::ModelCall) -> Row {
    let finished = !call.status.is_empty();
    let mut details = Vec::new();
    if let Some(usage) = call.usage.as_ref().filter(|_| finished) {
        details.push(format!("{} in, {} out", count(usage.input_tokens), count(usage.output_tokens)));
    }
    if !call.finish.is_empty() {
        details.push(call.finish.replace('_', " "));
    }
    if call.attempts > 1 {
        details.push(format!("{} attempts", call.attempts));
    }
    let parts = json::embedded(&call.parts);
    let called = parts.as_array().into_iter().flatten().filter(|part| part["type"] == "tool_use");
    let called: Vec<&str> = called.filter_map(|part| part["call"]["tool"].as_str()).collect();
    if !called.is_empty() {
        details.push(format!("calls {}", called.join(", ")));
    }
    if let Some(failure) = &call.failure {
        details.push(format!("{}: {}", failure.code, failure.message));
    }
    let took = u64::try_from(call.duration_ms).ok().filter(|_| finished);
    Row {
        action: format!("{} calls {}", call.agent, call.model),
        status: if finished { call.status.clone() } else { "running".to_owned() },
        took: took.map(Duration::from_millis),
        detail: details.join(" · "),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn model_call_row_shows_tokens_attempts_and_tools() {
        let parts: Value =
            json!([{ "type": "text", "text": "x" }, { "type": "tool_use", "call": { "tool": "Bash" } }]);
        let call = v1::ModelCall {
            agent: "build".into(),
            model: "platform/m".into(),
            status: "completed".into(),
            finish: "tool_calls".into(),
            usage: Some(v1::Usage { input_tokens: 1500, output_tokens: 20, ..Default::default() }),
            parts: parts.to_string(),
            duration_ms: 1200,
            attempts: 2,
            ..Default::default()
        };
        let step = v1::Step { kind: "model_call".into(), model_call: Some(call), ..Default::default() };
        let expected = Row {
            action: "build calls platform/m".into(),
            status: "completed".into(),
            took: Some(Duration::from_millis(1200)),
            detail: "1.5k in, 20 out · tool calls · 2 attempts · calls Bash".into(),
        };
        assert_eq!(row(&step), expected);
        let unfinished = v1::Step { model_call: Some(v1::ModelCall::default()), ..Default::default() };
        assert_eq!((row(&unfinished).status.as_str(), row(&unfinished).detail.as_str()), ("running", ""));
    }
}
