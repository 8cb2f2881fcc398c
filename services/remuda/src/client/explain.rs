//! `remuda explain`: why a run is not finished.

use remuda_client::Client;
use remuda_domain::error::Result;
use remuda_proto::v1;

use super::{exit::Exit, json, receipts::Receipts, render};
use crate::output::{Output, Style, one_line};

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
    if answer.position > 0 {
        field("position", &format!("{} unfinished ahead of it in its session", answer.position));
    }
    Receipts::of_explanation(&answer).print(sink);
    if !answer.hint.is_empty() {
        sink.line(&format!("{} {}", sink.paint(Style::Accent, "hint:"), one_line(&answer.hint)));
    }
    Ok(Exit::Ok)
}
