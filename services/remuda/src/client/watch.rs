//! `remuda watch`: events as they happen.

mod speech;

use std::collections::HashSet;

use futures::StreamExt as _;
use remuda_client::{Client, Followed, Following, Target, terminal_state};
use remuda_domain::{Error, RunId, SessionId, error::Result};
use remuda_proto::v1;

use self::speech::Speech;
use super::{
    exit::Exit,
    json, render,
    talk::{Helpers, Line, Printed, message_lines, news, painted},
};
use crate::output::{Interrupted, Output, Progress, Style};

pub(super) const EXAMPLES: &str = "\
Examples:
  remuda watch s1                    everything that happened and happens in the session s1
  remuda watch s1 --after 120        only what came after the event with cursor 120
  remuda watch s1 --deltas           also what agents say, and commands print, while they do
  remuda watch run_01k9…             one run; ends with it, and with its exit code
  remuda watch s1 --alone            without the sessions below it
  remuda watch s1 --json | jq .type  one JSON document per event";

/// Beneath an event, where its words begin.
const INDENT: usize = 27;

/// What to watch.
#[derive(Debug, clap::Args)]
pub(crate) struct WatchArgs {
    /// A session (name or id), or the id of a run.
    #[arg(value_name = "SESSION|RUN_ID")]
    target: String,
    /// Skip the events up to this cursor.
    #[arg(long, value_name = "CURSOR", default_value_t = 0)]
    after: i64,
    /// Also show what agents say and what commands print line by line, before that is complete. Lines may be missing; the whole
    /// follows.
    #[arg(long)]
    deltas: bool,
    /// Leave out what happens in the sessions below, where other agents work for this one.
    #[arg(long)]
    alone: bool,
}

/// What is watched, as opposed to what is below it.
enum Watched {
    Session(String),
    Run(String),
    /// Nothing else is shown.
    Alone,
}

impl Watched {
    async fn of(target: &Target, alone: bool, client: &Client) -> Result<Self> {
        match target {
            _ if alone => Ok(Self::Alone),
            Target::Run(run) => Ok(Self::Run(run.clone())),
            Target::Session(session) if session.parse::<SessionId>().is_ok() => {
                Ok(Self::Session(session.clone()))
            }
            // Events know sessions by their ids.
            Target::Session(name) => {
                let request = v1::GetSessionRequest { session: name.clone() };
                let session = client.get_session(request).await?.session;
                let session = session.ok_or_else(|| Error::internal("the server sent no session"))?;
                Ok(Self::Session(session.id))
            }
        }
    }

    fn has(&self, event: &v1::Event) -> bool {
        match self {
            Self::Session(session) => event.session_id == *session,
            Self::Run(run) => event.run_id == *run,
            Self::Alone => true,
        }
    }
}

pub(super) async fn watch(args: WatchArgs, client: &Client, output: Output) -> Result<Exit> {
    // A session may be called "run_something": only a whole id means a run.
    let target = match args.target.parse::<RunId>() {
        Ok(_) => Target::Run(args.target.clone()),
        Err(_) => Target::Session(args.target.clone()),
    };
    let single = matches!(target, Target::Run(_));
    let mut cursor = args.after;
    let mut exit = Exit::Ok;
    let watched = Watched::of(&target, args.alone, client).await?;
    let following = Following { after_cursor: cursor, deltas: args.deltas, tree: !args.alone };
    let mut followed = client.follow_by(target, following);
    let mut heard = Heard::default();
    let mut progress = Progress::new(&output, "watching");
    loop {
        let next = match progress.during(followed.next()).await {
            Ok(Some(next)) => next?,
            Ok(None) => return Ok(exit),
            Err(Interrupted) => {
                output
                    .note(&format!("go on with: remuda watch {} --after {cursor}", shell_word(&args.target)));
                return Ok(Exit::Interrupted);
            }
        };
        let event = match next {
            Followed::Event(event) => event,
            Followed::Delta(delta) => {
                say(&delta, &mut heard, output);
                continue;
            }
        };
        if !watched.has(&event) {
            show_below(&event, &mut heard.helpers, output);
            continue;
        }
        cursor = event.cursor;
        heard.note(&event);
        if let Some(state) = terminal_state(&event).filter(|_| single) {
            exit = Exit::of_state(state);
        }
        show(&event, &mut heard, output);
    }
}

/// What is known of what goes on.
#[derive(Default)]
struct Heard {
    helpers: Helpers,
    speech: Speech,
    printed: Printed,
    /// Runs at work that are watched themselves. Of those below only results are shown.
    runs: HashSet<String>,
}

impl Heard {
    fn note(&mut self, event: &v1::Event) {
        if terminal_state(event).is_some() {
            self.runs.remove(&event.run_id);
        } else if !self.runs.contains(&event.run_id) {
            self.runs.insert(event.run_id.clone());
        }
    }
}

/// Prints what helpers do, in short: their own sessions tell all of it.
fn show_below(event: &v1::Event, helpers: &mut Helpers, output: Output) {
    if output.json {
        return output.json_line(&json::event(event));
    }
    tell(event, &helpers.event(event).lines, output);
}

/// Prints lines about an event; the first with when it was.
fn tell(event: &v1::Event, lines: &[Line], output: Output) {
    let sink = output.out;
    for (index, line) in lines.iter().enumerate() {
        let lead =
            if index == 0 { render::event_prefix(sink, event) } else { format!("{:1$}", "", INDENT - 2) };
        sink.line(&format!("{lead}  {}", painted(sink, line)));
    }
}

fn say(delta: &v1::Delta, heard: &mut Heard, output: Output) {
    if output.json {
        return output.json_line(&json::delta(delta));
    }
    let sink = output.out;
    if !delta.call_id.is_empty() {
        if heard.runs.contains(&delta.run_id) {
            for line in heard.printed.hear(delta) {
                sink.line(&format!("{:INDENT$}{}", "", painted(sink, &line)));
            }
        }
        return;
    }
    for line in heard.speech.hear(delta) {
        sink.line(&format!("{:INDENT$}{}", "", sink.paint(Style::Dim, &format!("… {line}"))));
    }
}

/// Prints an event with what its tool printed or its agent said, indented: text of others cannot pass for a line of ours.
fn show(event: &v1::Event, heard: &mut Heard, output: Output) {
    if output.json {
        return output.json_line(&json::event(event));
    }
    let data = json::embedded(&event.data);
    if let Some(told) = heard.helpers.about(event, &data) {
        return tell(event, &told.lines, output);
    }
    if let Some(news) = news(event, &data, &event.run_id) {
        return tell(event, &news.lines, output);
    }
    let sink = output.out;
    sink.line(&format!("{}  {}", render::event_prefix(sink, event), render::event_line(sink, event)));
    let beneath = |line: &str| sink.line(format!("{:INDENT$}{line}", "").trim_end());
    if event.r#type == "message.completed" {
        message_lines(sink, &data["parts"]).iter().for_each(|line| beneath(line));
    }
    if event.r#type.starts_with("tool.") {
        let printed = render::printed(&heard.printed.rest(&data)["output"]);
        printed.out.lines().for_each(beneath);
        printed.err.lines().for_each(|line| beneath(&sink.paint(Style::Warn, line)));
    }
}

/// Quotes what a shell would not take as one word.
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
    fn commands_can_be_pasted() {
        assert_eq!(shell_word("s1"), "s1");
        assert_eq!(shell_word("build #7"), "'build #7'");
        assert_eq!(shell_word("it's; rm -rf /"), r"'it'\''s; rm -rf /'");
    }
}
