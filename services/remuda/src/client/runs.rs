//! `remuda runs`: runs that exist already.

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use remuda_client::Client;
use remuda_domain::{Error, RunState, error::Result};
use remuda_proto::{convert, v1};

use super::{
    exit::Exit,
    json,
    pages::PageArgs,
    receipts::Receipts,
    render,
    run::{self, TransposeError as _},
};
use crate::output::{Output, Progress, Style, Table, ago, elapsed, one_line};

pub(super) const EXAMPLES: &str = "\
Examples:
  remuda runs list --session s1
  remuda runs list --state queued --state running --all --json
  remuda runs show run_01k9…
  remuda runs wait run_01k9… && echo it completed";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum RunsCommand {
    /// List runs, newest first.
    List {
        /// Only runs of this session (name or id).
        #[arg(long, short, value_name = "NAME_OR_ID")]
        session: Option<String>,
        /// Only runs in this state; may be repeated.
        #[arg(long, value_name = "STATE", value_parser = state_parser())]
        state: Vec<RunState>,
        #[command(flatten)]
        pages: PageArgs,
    },
    /// Show one run with its results.
    Show {
        #[arg(value_name = "RUN_ID")]
        run: String,
    },
    /// List the durable steps of a run.
    Steps {
        #[arg(value_name = "RUN_ID")]
        run: String,
    },
    /// Wait for the end of a run and exit with its exit code.
    Wait {
        #[arg(value_name = "RUN_ID")]
        run: String,
    },
}

fn state_parser() -> impl clap::builder::TypedValueParser<Value = RunState> {
    PossibleValuesParser::new(RunState::ALL.map(RunState::as_str)).try_map(|name| name.parse::<RunState>())
}

pub(super) async fn execute(command: RunsCommand, client: &Client, output: Output) -> Result<Exit> {
    match command {
        RunsCommand::List { session, state, pages } => list(session, &state, pages, client, output).await,
        RunsCommand::Show { run } => show(run, client, output).await,
        RunsCommand::Steps { run } => steps(run, client, output).await,
        RunsCommand::Wait { run } => {
            let mut progress = Progress::new(&output, "waiting for the run");
            match progress.during(client.wait_until_finished(&run)).await.transpose_error()? {
                Some(run) => run::finish(&run, false, output),
                None => Ok(Exit::Interrupted),
            }
        }
    }
}

async fn list(
    session: Option<String>,
    states: &[RunState],
    pages: PageArgs,
    client: &Client,
    output: Output,
) -> Result<Exit> {
    let session = session.unwrap_or_default();
    let states: Vec<i32> = states.iter().map(|state| v1::RunState::from(*state).into()).collect();
    let fetch = |page_size, page_token| {
        let request =
            v1::ListRunsRequest { session: session.clone(), states: states.clone(), page_size, page_token };
        async { client.list_runs(request).await.map(|page| (page.runs, page.next_page_token)) }
    };
    let mut rows = RunTable::new(output);
    let more = pages.each(fetch, |run| rows.add(&run)).await?;
    rows.print(more);
    Ok(Exit::Ok)
}

/// Runs as a table, or as JSON as they come.
pub(super) struct RunTable {
    output: Output,
    table: Table,
    now: chrono::DateTime<chrono::Utc>,
}

impl RunTable {
    pub(super) fn new(output: Output) -> Self {
        let header = ["RUN", "SESSION", "SEQ", "STATE", "WHAT", "CREATED", "TOOK"];
        Self { output, table: Table::new(output.out, &header), now: chrono::Utc::now() }
    }

    pub(super) fn add(&mut self, run: &v1::Run) {
        if self.output.json {
            return self.output.json_line(&json::run(run));
        }
        let state = json::state_name(run.state);
        let created = run.created_at.as_ref().and_then(convert::from_timestamp);
        self.table.row([
            (run.id.clone(), None),
            (run.session_id.clone(), Some(Style::Dim)),
            (run.seq.to_string(), None),
            (state.to_owned(), render::state_style(state)),
            (what(run), None),
            (created.map(|at| ago(at, self.now)).unwrap_or_default(), None),
            (render::run_duration(run).map(elapsed).unwrap_or_default(), None),
        ]);
    }

    pub(super) fn print(&self, more: bool) {
        if self.output.json {
            return;
        }
        self.table.print();
        if more {
            self.output.note("there are more: use --limit or --all");
        }
    }
}

/// The tools a run calls, in short.
fn what(run: &v1::Run) -> String {
    let Some(v1::run::Input::Tools(tools)) = &run.input else { return String::new() };
    let names: Vec<&str> = tools.calls.iter().take(3).map(|call| call.tool.as_str()).collect();
    match tools.calls.len() - names.len() {
        0 => names.join(", "),
        rest => format!("{} and {rest} more", names.join(", ")),
    }
}

async fn show(run_id: String, client: &Client, output: Output) -> Result<Exit> {
    let answer = client.get_run(v1::GetRunRequest { run_id }).await?;
    let run = answer.run.ok_or_else(|| Error::internal("the server sent no run"))?;
    if output.json {
        output.json_line(&json::run(&run));
        return Ok(Exit::Ok);
    }
    let sink = output.out;
    sink.line(&render::run_line(sink, &run));
    let field = |name: &str, value: &str| {
        if !value.is_empty() {
            sink.line(&format!("  {} {}", sink.paint(Style::Dim, &format!("{name:9}")), one_line(value)));
        }
    };
    let created = run.created_at.as_ref().and_then(convert::from_timestamp);
    field("session", &run.session_id);
    field("seq", &run.seq.to_string());
    field("created", &created.map(|at| at.to_rfc3339()).unwrap_or_default());
    field("attempts", &attempts(&run));
    field("parked", &run.park_reason);
    field("calls", &what(&run));
    if run.cancel_requested_at.is_some() {
        let reason = if run.cancel_reason.is_empty() { "requested" } else { run.cancel_reason.as_str() };
        field("cancel", reason);
        Receipts::of_run(&run).print(sink);
    }
    field("idem. key", &run.idempotency_key);
    for outcome in run.outcomes.iter().map(json::outcome) {
        sink.line(&render::outcome_line(sink, &outcome));
        let printed = render::printed(&outcome["output"]);
        for line in printed.out.lines().chain(printed.err.lines()) {
            sink.line(&format!("    {line}"));
        }
    }
    Ok(Exit::Ok)
}

fn attempts(run: &v1::Run) -> String {
    match run.lost_attempts {
        0 => run.attempt.to_string(),
        lost => format!("{} ({lost} lost their worker)", run.attempt),
    }
}

async fn steps(run_id: String, client: &Client, output: Output) -> Result<Exit> {
    let steps = client.list_steps(v1::ListStepsRequest { run_id }).await?.steps;
    let mut table = Table::new(output.out, &["#", "STEP", "KIND", "TOOL", "STATUS", "TOOK"]);
    for step in &steps {
        if output.json {
            output.json_line(&json::step(step));
            continue;
        }
        let status = step.outcome.as_ref().map_or("running", |outcome| outcome.status.as_str());
        let took = step.outcome.as_ref().and_then(|outcome| u64::try_from(outcome.duration_ms).ok());
        table.row([
            (step.index.to_string(), None),
            (step.id.clone(), Some(Style::Dim)),
            (step.kind.clone(), None),
            (step.call.as_ref().map(|call| call.tool.clone()).unwrap_or_default(), None),
            (status.to_owned(), render::state_style(status)),
            (took.map(|millis| elapsed(std::time::Duration::from_millis(millis))).unwrap_or_default(), None),
        ]);
    }
    if !output.json {
        table.print();
    }
    Ok(Exit::Ok)
}
