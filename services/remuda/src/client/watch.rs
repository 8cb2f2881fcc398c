//! `remuda watch`: shows the events of a session or a run live.

mod delta_lines;

use std::collections::HashSet;

use futures::StreamExt as _;
use remuda_client::{Client, FollowItem, FollowOptions, Target, terminal_state};
use remuda_domain::{Error, RunId, SessionId, error::Result};
use remuda_proto::v1;

use self::delta_lines::DeltaLines;
use super::{
    conversation::{ChildRuns, CommandOutput, Line, message_lines, notice, painted},
    exit::Exit,
    json, render,
};
use crate::output::{Interrupted, Output, Progress, Style};

pub(super) const EXAMPLES: &str = "\
Examples:
  remuda watch s1                    past and new events of the session s1
  remuda watch s1 --after 120        only events after the one with cursor 120
  remuda watch s1 --deltas           also stream messages and command output before they are complete
  remuda watch run_01k9…             one run; stops at its end, with its exit code
  remuda watch s1 --alone            without the child sessions of sub-agents
  remuda watch s1 --json | jq .type  one JSON document per event";

/// Column of the text below an event.
const INDENT: usize = 27;

/// What to watch.
#[derive(Debug, clap::Args)]
pub(crate) struct WatchArgs {
    /// A session (name or id), or the id of a run.
    #[arg(value_name = "SESSION|RUN_ID")]
    target: String,
    /// Skip events up to and including this cursor.
    #[arg(long, value_name = "CURSOR", default_value_t = 0)]
    after: i64,
    /// Also show messages and command output line by line while they are produced. Lines may be missing; the complete text
    /// follows with its event.
    #[arg(long)]
    deltas: bool,
    /// Leave out the child sessions, in which sub-agents work.
    #[arg(long)]
    alone: bool,
}

/// Tells events of the watched session or run from events of its children.
enum WatchScope {
    Session(String),
    Run(String),
    /// The server sends no events of children.
    Alone,
}

impl WatchScope {
    async fn of(target: &Target, alone: bool, client: &Client) -> Result<Self> {
        match target {
            _ if alone => Ok(Self::Alone),
            Target::Run(run) => Ok(Self::Run(run.clone())),
            Target::Session(session) if session.parse::<SessionId>().is_ok() => {
                Ok(Self::Session(session.clone()))
            }
            // Events contain session ids, not names.
            Target::Session(name) => {
                let request = v1::GetSessionRequest { session: name.clone() };
                let session = client.get_session(request).await?.session;
                let session = session.ok_or_else(|| Error::internal("the server sent no session"))?;
                Ok(Self::Session(session.id))
            }
        }
    }

    fn contains(&self, event: &v1::Event) -> bool {
        match self {
            Self::Session(session) => event.session_id == *session,
            Self::Run(run) => event.run_id == *run,
            Self::Alone => true,
        }
    }
}

pub(super) async fn watch(args: WatchArgs, client: &Client, output: Output) -> Result<Exit> {
    // A session may be named "run_something": only a complete id means a run.
    let target = match args.target.parse::<RunId>() {
        Ok(_) => Target::Run(args.target.clone()),
        Err(_) => Target::Session(args.target.clone()),
    };
    let single = matches!(target, Target::Run(_));
    let mut cursor = args.after;
    let mut exit = Exit::Ok;
    let scope = WatchScope::of(&target, args.alone, client).await?;
    let following = FollowOptions { after_cursor: cursor, deltas: args.deltas, tree: !args.alone };
    let mut followed = client.follow_with(target, following);
    let mut state = WatchState::default();
    let mut progress = Progress::new(&output, "watching");
    loop {
        let next = match progress.during(followed.next()).await {
            Ok(Some(next)) => next?,
            Ok(None) => return Ok(exit),
            Err(Interrupted) => {
                output.note(&format!(
                    "continue with: remuda watch {} --after {cursor}",
                    shell_word(&args.target)
                ));
                return Ok(Exit::Interrupted);
            }
        };
        let event = match next {
            FollowItem::Event(event) => event,
            FollowItem::Delta(delta) => {
                show_delta(&delta, &mut state, output);
                continue;
            }
        };
        if !scope.contains(&event) {
            show_child(&event, &mut state.children, output);
            continue;
        }
        cursor = event.cursor;
        state.track_run(&event);
        if let Some(end) = terminal_state(&event).filter(|_| single) {
            exit = Exit::of_state(end);
        }
        show(&event, &mut state, output);
    }
}

/// What was received so far.
#[derive(Default)]
struct WatchState {
    children: ChildRuns,
    delta_lines: DeltaLines,
    command_output: CommandOutput,
    /// Running runs in scope. Of child runs only results are shown.
    runs: HashSet<String>,
}

impl WatchState {
    fn track_run(&mut self, event: &v1::Event) {
        if terminal_state(event).is_some() {
            self.runs.remove(&event.run_id);
        } else if !self.runs.contains(&event.run_id) {
            self.runs.insert(event.run_id.clone());
        }
    }
}

/// Prints an event of a child run, shortened.
fn show_child(event: &v1::Event, children: &mut ChildRuns, output: Output) {
    if output.json {
        return output.json_line(&json::event(event));
    }
    print_lines(event, &children.event(event).lines, output);
}

/// Prints lines about an event; the first one begins with time and cursor.
fn print_lines(event: &v1::Event, lines: &[Line], output: Output) {
    let sink = output.out;
    for (index, line) in lines.iter().enumerate() {
        let lead =
            if index == 0 { render::event_prefix(sink, event) } else { format!("{:1$}", "", INDENT - 2) };
        sink.line(&format!("{lead}  {}", painted(sink, line)));
    }
}

fn show_delta(delta: &v1::Delta, state: &mut WatchState, output: Output) {
    if output.json {
        return output.json_line(&json::delta(delta));
    }
    let sink = output.out;
    if !delta.call_id.is_empty() {
        if state.runs.contains(&delta.run_id) {
            for line in state.command_output.receive(delta) {
                sink.line(&format!("{:INDENT$}{}", "", painted(sink, &line)));
            }
        }
        return;
    }
    for line in state.delta_lines.receive(delta) {
        sink.line(&format!("{:INDENT$}{}", "", sink.paint(Style::Dim, &format!("… {line}"))));
    }
}

/// Prints an event, and below it the output of its tool or the text of its message. That text is indented, so it cannot imitate an event.
fn show(event: &v1::Event, state: &mut WatchState, output: Output) {
    if output.json {
        return output.json_line(&json::event(event));
    }
    let data = json::embedded(&event.data);
    if let Some(notice) = state.children.parent_event(event, &data) {
        return print_lines(event, &notice.lines, output);
    }
    if let Some(notice) = notice(event, &data, &event.run_id) {
        return print_lines(event, &notice.lines, output);
    }
    let sink = output.out;
    sink.line(&format!("{}  {}", render::event_prefix(sink, event), render::event_line(sink, event)));
    let below = |line: &str| sink.line(format!("{:INDENT$}{line}", "").trim_end());
    if event.r#type == "message.completed" {
        message_lines(sink, &data["parts"]).iter().for_each(|line| below(line));
    }
    if event.r#type.starts_with("tool.") {
        let printed = render::tool_output(&state.command_output.unshown(&data)["output"]);
        printed.out.lines().for_each(below);
        printed.err.lines().for_each(|line| below(&sink.paint(Style::Warn, line)));
    }
}

/// Quotes a text that a shell would not read as one word.
pub(super) fn shell_word(text: &str) -> String {
    let text = crate::output::one_line(text);
    if !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "_-./:".contains(c)) {
        return text;
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_with_special_characters_is_quoted() {
        assert_eq!(shell_word("s1"), "s1");
        assert_eq!(shell_word("build #7"), "'build #7'");
        assert_eq!(shell_word("it's; rm -rf /"), r"'it'\''s; rm -rf /'");
    }
}
