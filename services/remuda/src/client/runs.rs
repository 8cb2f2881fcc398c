//! `remuda runs`: lists, shows and waits for runs.

mod retry;
mod steps;

use std::collections::BTreeMap;

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use remuda_client::Client;
use remuda_domain::{Error, Labels, RunState, error::Result};
use remuda_proto::{convert, v1};

use super::{
    exit::Exit,
    json,
    pages::PageArgs,
    receipts::Receipts,
    render,
    run::{self, TransposeError as _},
    spending,
};
pub(crate) use steps::step_lines;

use crate::output::{Output, Progress, Style, Table, ago, elapsed, one_line, sanitize};

pub(super) const EXAMPLES: &str = "\
Examples:
  remuda runs list --session s1
  remuda runs list --state queued --state running --all --json
  remuda runs list --label team=core --label env=prod
  remuda runs show run_01k9…
  remuda runs steps run_01k9…            all model calls and tool calls
  remuda runs steps run_01k9… --json | jq .model_call.usage
  remuda runs wait run_01k9… && echo it completed
  remuda runs retry run_01k9…            the same input again, as a new run";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum RunsCommand {
    /// List runs, newest first.
    List {
        /// Only runs of this session (name or id).
        #[arg(long, short, value_name = "NAME_OR_ID")]
        session: Option<String>,
        /// Only runs in this state. May be repeated.
        #[arg(long, value_name = "STATE", value_parser = state_parser())]
        state: Vec<RunState>,
        /// Only runs with this label. May be repeated: a run must have all of them.
        #[arg(long, value_name = "KEY=VALUE")]
        label: Vec<String>,
        #[command(flatten)]
        pages: PageArgs,
    },
    /// Show one run with its results.
    Show {
        #[arg(value_name = "RUN_ID")]
        run: String,
    },
    /// List the stored steps of a run: model calls and tool calls.
    Steps {
        #[arg(value_name = "RUN_ID")]
        run: String,
    },
    /// Submit the input of a run again, as a new run of its session.
    ///
    /// The new run has the same message or tool calls, time limit, budget and labels. The workspace, the definitions and the
    /// session's messages are as they are now, not as they were when the run started.
    Retry {
        #[arg(value_name = "RUN_ID")]
        run: String,
        /// Print the id of the new run and do not wait for its end.
        #[arg(long)]
        detach: bool,
    },
    /// Wait for the end of a run, print its results and exit with its exit code.
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
        RunsCommand::List { session, state, label, pages } => {
            let labels = Labels::parse(label.iter().map(String::as_str))?;
            list(session, &state, labels, pages, client, output).await
        }
        RunsCommand::Show { run } => show(run, client, output).await,
        RunsCommand::Steps { run } => steps::steps(run, client, output).await,
        RunsCommand::Retry { run, detach } => retry::retry(run, detach, client, output).await,
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
    labels: Labels,
    pages: PageArgs,
    client: &Client,
    output: Output,
) -> Result<Exit> {
    let session = session.unwrap_or_default();
    let states: Vec<i32> = states.iter().map(|state| v1::RunState::from(*state).into()).collect();
    let labels: BTreeMap<_, _> = labels.into_iter().collect();
    let fetch = |page_size, page_token| {
        let (session, states, labels) = (session.clone(), states.clone(), labels.clone());
        let request = v1::ListRunsRequest { session, states, page_size, page_token, labels };
        async { client.list_runs(request).await.map(|page| (page.runs, page.next_page_token)) }
    };
    let mut rows = RunTable::new(output);
    let more = pages.each(fetch, |run| rows.add(&run)).await?;
    rows.print(more);
    Ok(Exit::Ok)
}

/// Prints runs as a table, or each run immediately as JSON.
pub(super) struct RunTable {
    output: Output,
    rows: Vec<Row>,
    now: chrono::DateTime<chrono::Utc>,
}

/// The cells of a run; the last one is the cost.
type Row = [(String, Option<Style>); 8];

impl RunTable {
    pub(super) fn new(output: Output) -> Self {
        Self { output, rows: Vec::new(), now: chrono::Utc::now() }
    }

    pub(super) fn add(&mut self, run: &v1::Run) {
        if self.output.json {
            return self.output.json_line(&json::run(run));
        }
        let state = json::state_name(run.state);
        let created = run.created_at.as_ref().and_then(convert::from_timestamp);
        self.rows.push([
            (run.id.clone(), None),
            (run.session_id.clone(), Some(Style::Dim)),
            (run.seq.to_string(), None),
            (state.to_owned(), render::state_style(state)),
            (input_summary(run), None),
            (created.map(|at| ago(at, self.now)).unwrap_or_default(), None),
            (render::run_duration(run).map(elapsed).unwrap_or_default(), None),
            (spending::short(run.spent.as_ref()), None),
        ]);
    }

    pub(super) fn print(self, more: bool) {
        if self.output.json {
            return;
        }
        // Leave out an empty cost column.
        let has_costs = self.rows.iter().any(|[.., (cost, _)]| !cost.is_empty());
        const HEADER: [&str; 8] = ["RUN", "SESSION", "SEQ", "STATE", "WHAT", "CREATED", "TOOK", "COST"];
        let mut table = Table::new(self.output.out, if has_costs { &HEADER } else { &HEADER[..7] });
        for row in self.rows {
            if has_costs {
                table.row(row);
            } else {
                let [a, b, c, d, e, f, g, _] = row;
                table.row([a, b, c, d, e, f, g]);
            }
        }
        table.print();
        if more {
            self.output.note("there are more: use --limit or --all");
        }
    }
}

/// The input of a run in short: its tools, or the message to its agent.
fn input_summary(run: &v1::Run) -> String {
    let tools = match &run.input {
        Some(v1::run::Input::Tools(tools)) => tools,
        Some(v1::run::Input::Message(message)) => return message_summary(message),
        None => return String::new(),
    };
    let names: Vec<&str> = tools.calls.iter().take(3).map(|call| call.tool.as_str()).collect();
    match tools.calls.len() - names.len() {
        0 => names.join(", "),
        rest => format!("{} and {rest} more", names.join(", ")),
    }
}

fn message_summary(message: &v1::MessageInput) -> String {
    /// Limit that fits into a table.
    const MAX_CHARS: usize = 40;
    let text = one_line(&message.text);
    let mut shown: String = text.chars().take(MAX_CHARS).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    match message.images.len() {
        0 => format!("\"{shown}\""),
        images => format!("\"{shown}\" and {images} images"),
    }
}

async fn show(run_id: String, client: &Client, output: Output) -> Result<Exit> {
    let response = client.get_run(v1::GetRunRequest { run_id }).await?;
    let run = response.run.ok_or_else(|| Error::internal("the server sent no run"))?;
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
    field("parent", &run.parent_run_id);
    field("cost", &spending::summary(run.spent.as_ref()));
    field("total", &spending::tree_summary(run.spent.as_ref(), run.tree_spent.as_ref()));
    field("budget", &spending::budget_summary(run.budget.as_ref()));
    match &run.input {
        Some(v1::run::Input::Message(message)) => {
            field("agent", &message.agent);
            for image in &message.images {
                field("image", if image.url.is_empty() { &image.media_type } else { &image.url });
            }
        }
        _ => field("calls", &input_summary(&run)),
    }
    if run.cancel_requested_at.is_some() {
        let reason = if run.cancel_reason.is_empty() { "requested" } else { run.cancel_reason.as_str() };
        field("cancel", reason);
        Receipts::of_run(&run).print(sink);
    }
    field("idem. key", &run.idempotency_key);
    for (key, value) in &run.labels {
        field("label", &format!("{key}={value}"));
    }
    let indented = |mark: &str, text: &str| {
        for (index, line) in sanitize(text).lines().enumerate() {
            let mark = if index == 0 { mark } else { " " };
            sink.line(&format!("{} {line}", sink.paint(Style::Accent, mark)));
        }
    };
    if let Some(v1::run::Input::Message(message)) = &run.input {
        indented("❯", &message.text);
    }
    for outcome in run.outcomes.iter().map(json::outcome) {
        if matches!(run.input, Some(v1::run::Input::Message(_))) {
            continue;
        }
        sink.line(&render::outcome_line(sink, &outcome));
        let tool_output = render::tool_output(&outcome["output"]);
        for line in tool_output.out.lines().chain(tool_output.err.lines()) {
            sink.line(&format!("    {line}"));
        }
    }
    indented("●", &run.answer);
    Ok(Exit::Ok)
}

fn attempts(run: &v1::Run) -> String {
    match run.lost_attempts {
        0 => run.attempt.to_string(),
        lost => format!("{} ({lost} lost their worker)", run.attempt),
    }
}
