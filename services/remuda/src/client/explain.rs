//! `remuda explain`: why a run is not finished.

use remuda_client::Client;
use remuda_domain::error::Result;
use remuda_proto::{convert, v1};

use super::{exit::Exit, json, receipts::Receipts, render, spending};
use crate::output::{Output, Style, ago, elapsed, one_line};

pub(super) const EXAMPLES: &str = "\
Examples:
  remuda explain run_01k9…
  remuda explain run_01k9… --json | jq -r .reason";

pub(super) async fn explain(run_id: String, client: &Client, output: Output) -> Result<Exit> {
    let answer = client.explain_run(v1::ExplainRunRequest { run_id }).await?;
    if output.json {
        output.json_line(&json::explanation(&answer));
        return Ok(Exit::Ok);
    }
    let sink = output.out;
    let state = json::state_name(answer.state);
    sink.line(&format!(
        "{}  {}",
        sink.paint(Style::Bold, &one_line(&answer.run_id)),
        render::paint_state(sink, state)
    ));
    sink.text(&one_line(&answer.message));
    let field = |name: &str, value: &str| {
        if !value.is_empty() {
            sink.line(&format!("  {} {}", sink.paint(Style::Dim, &format!("{name:9}")), one_line(value)));
        }
    };
    field("reason", &answer.reason);
    field("waits for", &answer.waits_for);
    for wait in &answer.waits {
        waiting(wait, output);
    }
    if answer.position > 0 {
        field("position", &format!("{} unfinished ahead of it in its session", answer.position));
    }
    Receipts::of_explanation(&answer).print(sink);
    if !answer.hint.is_empty() {
        sink.line(&format!("{} {}", sink.paint(Style::Accent, "hint:"), one_line(&answer.hint)));
    }
    Ok(Exit::Ok)
}

/// One thing that a parked run waits for, and what to type about it.
fn waiting(wait: &v1::Wait, output: Output) {
    let sink = output.out;
    let (kind, message) =
        (sink.paint(Style::Warn, &format!("{:9}", one_line(&wait.kind))), one_line(&wait.message));
    sink.line(&format!("  {kind} {message}"));
    let detail = |name: &str, value: &str| {
        if !value.is_empty() {
            sink.line(&format!("            {} {}", sink.paint(Style::Dim, name), one_line(value)));
        }
    };
    if wait.kind == "approval" {
        let now = chrono::Utc::now();
        let since = wait.since.as_ref().and_then(convert::from_timestamp).map(|at| ago(at, now));
        let left = wait.expires_at.as_ref().and_then(convert::from_timestamp);
        let left = left.and_then(|at| (at - now).to_std().ok());
        let left = left.map_or("does not expire".to_owned(), |left| format!("expires in {}", elapsed(left)));
        detail("asked", &format!("{}, {left}", since.unwrap_or_default()));
    }
    detail("session", if wait.kind == "child" { &wait.session_id } else { "" });
    detail("budget", &spending::budget_words(wait.budget.as_ref()));
    detail("see", &wait.hint);
}
