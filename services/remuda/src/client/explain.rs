//! `remuda explain`: explains why a run is not finished.

use remuda_client::Client;
use remuda_domain::error::Result;
use remuda_proto::{convert, v1};

use super::{exit::Exit, json, receipts::Receipts, render, spending};
use crate::output::{Output, Sink, Style, ago, elapsed, one_line};

pub(super) const EXAMPLES: &str = "\
Examples:
  remuda explain run_01k9…
  remuda explain run_01k9… --json | jq -r .reason";

pub(super) async fn explain(run_id: String, client: &Client, output: Output) -> Result<Exit> {
    let explanation = client.explain_run(v1::ExplainRunRequest { run_id }).await?;
    if output.json {
        output.json_line(&json::explanation(&explanation));
        return Ok(Exit::Ok);
    }
    lines(&explanation, output.out).iter().for_each(|line| output.out.text(line));
    Ok(Exit::Ok)
}

/// The lines of an explanation.
pub(crate) fn lines(explanation: &v1::ExplainRunResponse, sink: Sink) -> Vec<String> {
    let now = chrono::Utc::now();
    let time = |at: &Option<_>| at.as_ref().and_then(convert::from_timestamp);
    let state = render::paint_state(sink, json::state_name(explanation.state));
    let since = time(&explanation.since).and_then(|at| (now - at).to_std().ok());
    let is_over = explanation.estimate.is_none();
    let since =
        since.filter(|_| !is_over).map(|since| format!(" for {}", elapsed(since))).unwrap_or_default();
    let mut lines = vec![
        format!(
            "{}  {state}{}",
            sink.paint(Style::Bold, &one_line(&explanation.run_id)),
            sink.paint(Style::Dim, &since)
        ),
        one_line(&explanation.message),
    ];
    let field = |name: &str, value: &str| {
        (!value.is_empty())
            .then(|| format!("  {} {}", sink.paint(Style::Dim, &format!("{name:9}")), one_line(value)))
    };
    lines.extend(field("reason", &explanation.reason));
    lines.extend(field("waits for", &explanation.waits_for));
    for wait in &explanation.waits {
        wait_lines(wait, sink, &mut lines);
    }
    if explanation.position > 0 {
        lines.extend(field(
            "position",
            &format!("{} unfinished runs ahead of it in its session", explanation.position),
        ));
    }
    lines.extend(explanation.place.as_ref().and_then(|place| field("in pool", &queue_position(place))));
    if let Some(estimate) = &explanation.estimate {
        let latest = time(&estimate.at_latest).and_then(|at| (at - now).to_std().ok());
        let latest = latest.map(|left| format!("; at the latest in {}", elapsed(left))).unwrap_or_default();
        let name = match estimate.of.as_str() {
            "resume" => "resumes",
            "end" => "ends",
            _ => "starts",
        };
        lines.extend(field(name, &format!("{}{latest}", estimate.message)));
    }
    lines.extend(Receipts::of_explanation(explanation).text_lines(sink));
    if !explanation.hint.is_empty() {
        lines.push(format!("{} {}", sink.paint(Style::Accent, "hint:"), one_line(&explanation.hint)));
    }
    lines
}

fn queue_position(place: &v1::QueuePlace) -> String {
    let v1::QueuePlace { pool, ahead, at_least, slots, free_slots } = place;
    let many = if *at_least { format!("at least {ahead}") } else { ahead.to_string() };
    let sessions = if *ahead == 1 { "session" } else { "sessions" };
    format!("{many} runnable {sessions} before it in {pool}, {free_slots} of {slots} slots free")
}

/// Something that a parked run waits for, and the command that helps.
fn wait_lines(wait: &v1::Wait, sink: Sink, lines: &mut Vec<String>) {
    let (kind, message) =
        (sink.paint(Style::Warn, &format!("{:9}", one_line(&wait.kind))), one_line(&wait.message));
    lines.push(format!("  {kind} {message}"));
    let mut detail = |name: &str, value: &str| {
        if !value.is_empty() {
            lines.push(format!("            {} {}", sink.paint(Style::Dim, name), one_line(value)));
        }
    };
    if wait.kind == "approval" {
        let now = chrono::Utc::now();
        let since = wait.since.as_ref().and_then(convert::from_timestamp).map(|at| ago(at, now));
        let left = wait.expires_at.as_ref().and_then(convert::from_timestamp);
        let left = left.and_then(|at| (at - now).to_std().ok());
        let left = left.map_or("does not expire".to_owned(), |left| format!("expires in {}", elapsed(left)));
        detail("requested", &format!("{}, {left}", since.unwrap_or_default()));
    }
    detail("session", if wait.kind == "child" { &wait.session_id } else { "" });
    detail("budget", &spending::budget_summary(wait.budget.as_ref()));
    detail("see", &wait.hint);
}
