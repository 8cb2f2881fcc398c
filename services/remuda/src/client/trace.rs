//! `remuda trace`: shows what a run spent its time and money on.

mod waterfall;

use remuda_client::Client;
use remuda_domain::error::Result;
use remuda_proto::v1;

use self::waterfall::Line;
use super::{exit::Exit, json};
use crate::output::{Output, Style, columns, one_line};

pub(super) const EXAMPLES: &str = "\
Examples:
  remuda trace run_01k9…                     the waterfall, including child runs
  remuda trace run_01k9… --no-children
  remuda trace run_01k9… --json | jq -r '.spans[] | [.name, .started_at, .ended_at] | @tsv'

If traces are exported (telemetry.otlp_endpoint) and this run was sampled, the collector has the trace under the same id.";

#[derive(Debug, clap::Args)]
pub(crate) struct TraceArgs {
    #[arg(value_name = "RUN_ID")]
    run: String,
    /// Leave out child runs.
    #[arg(long)]
    no_children: bool,
}

pub(super) async fn trace(args: TraceArgs, client: &Client, output: Output) -> Result<Exit> {
    let TraceArgs { run: run_id, no_children: without_children } = args;
    let trace = client.get_run_trace(v1::GetRunTraceRequest { run_id, without_children }).await?;
    if output.json {
        output.json_line(&json::trace(&trace));
        return Ok(Exit::Ok);
    }
    let sink = output.out;
    let collected = if trace.sampled { "sampled" } else { "not sampled" };
    let title = format!("trace {}", one_line(&trace.trace_id));
    sink.line(&format!("{}  {}", sink.paint(Style::Bold, &title), sink.paint(Style::Dim, collected)));
    for Line { name, bar, duration, detail, failed } in waterfall::draw(&trace, columns()) {
        let bar = sink.paint(if failed { Style::Bad } else { Style::Accent }, &bar);
        sink.line(format!("{name} {bar} {duration}  {}", sink.paint(Style::Dim, &detail)).trim_end());
    }
    if trace.truncated {
        output.note("the trace has more spans than are shown");
    }
    Ok(Exit::Ok)
}
