//! `remuda runs steps`: what a run did, durably.

use std::time::Duration;

use remuda_client::Client;
use remuda_domain::error::Result;
use remuda_proto::v1;

use crate::{
    client::{exit::Exit, json, render, talk::headline},
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
        let Row { what, status, took, detail } = row(step);
        table.row([
            (step.index.to_string(), None),
            (step.id.clone(), Some(Style::Dim)),
            (step.kind.clone(), None),
            (what, Some(Style::Bold)),
            (status.clone(), render::state_style(&status)),
            (took.map(elapsed).unwrap_or_default(), None),
            (detail, None),
        ]);
    }
    table.print();
    Ok(Exit::Ok)
}

/// The same without a table, for where there is little room.
pub(crate) fn step_lines(steps: &[v1::Step]) -> Vec<String> {
    let line = |step: &v1::Step| {
        let Row { what, status, took, detail } = row(step);
        let took = took.map(elapsed).unwrap_or_default();
        one_line(&format!("{:>3}  {what}  {status}  {took}  {detail}", step.index + 1))
    };
    steps.iter().map(line).collect()
}

#[derive(Debug, Default, PartialEq)]
struct Row {
    what: String,
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
        what: call.map(|call| call.tool.clone()).unwrap_or_default(),
        status: status.to_owned(),
        took: took.map(Duration::from_millis),
        detail: call.map(|call| headline(&call.tool, &json::embedded(&call.arguments))).unwrap_or_default(),
    }
}

/// What a model was asked and did: tokens, why it stopped, what it wants to be called, what went wrong.
fn model_call(call: &v1::ModelCall) -> Row {
    let finished = !call.status.is_empty();
    let mut words = Vec::new();
    if let Some(usage) = call.usage.as_ref().filter(|_| finished) {
        words.push(format!("{} in, {} out", count(usage.input_tokens), count(usage.output_tokens)));
    }
    if !call.finish.is_empty() {
        words.push(call.finish.replace('_', " "));
    }
    if call.attempts > 1 {
        words.push(format!("{} attempts", call.attempts));
    }
    let parts = json::embedded(&call.parts);
    let wanted = parts.as_array().into_iter().flatten().filter(|part| part["type"] == "tool_use");
    let wanted: Vec<&str> = wanted.filter_map(|part| part["call"]["tool"].as_str()).collect();
    if !wanted.is_empty() {
        words.push(format!("calls {}", wanted.join(", ")));
    }
    if let Some(failure) = &call.failure {
        words.push(format!("{}: {}", failure.code, failure.message));
    }
    let took = u64::try_from(call.duration_ms).ok().filter(|_| finished);
    Row {
        what: format!("{} asks {}", call.agent, call.model),
        status: if finished { call.status.clone() } else { "running".to_owned() },
        took: took.map(Duration::from_millis),
        detail: words.join(" · "),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_model_call_says_what_it_took() {
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
            what: "build asks platform/m".into(),
            status: "completed".into(),
            took: Some(Duration::from_millis(1200)),
            detail: "1.5k in, 20 out · tool calls · 2 attempts · calls Bash".into(),
        };
        assert_eq!(row(&step), expected);
        let asked = v1::Step { model_call: Some(v1::ModelCall::default()), ..Default::default() };
        assert_eq!((row(&asked).status.as_str(), row(&asked).detail.as_str()), ("running", ""));
    }
}
