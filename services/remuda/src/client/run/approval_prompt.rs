//! Asks the user at the terminal to approve or deny tool calls.
//!
//! Other users may decide too: the prompt is dropped as soon as one of them has decided, whatever was typed so far. So the terminal
//! is read without blocking, and the reply is awaited together with the events of the run.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, IsTerminal as _, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    time::Duration,
};

use nix::fcntl::OFlag;
use remuda_domain::limits;
use remuda_proto::v1;
use serde_json::Value;
use tokio::{net::unix::pipe, time::sleep};

use crate::{
    client::{
        conversation::{Line, headline, script_of},
        json,
    },
    output::{Output, Style, json_text, one_line, sanitize},
};

/// Limit of queued approvals. Further ones are shown, but the user is not asked about them.
const MAX_PENDING: usize = 64;
/// Limit of a typed line.
const MAX_LINE_BYTES: usize = 16 * 1024;
/// Limit of lines shown of a call. `remuda approvals show` shows the rest.
const MAX_CALL_LINES: usize = 60;

/// How often a background process checks whether it may read the terminal again.
const BACKGROUND_POLL: Duration = Duration::from_millis(500);

/// Approvals that the user at the terminal is asked about, one after another.
pub(super) struct ApprovalPrompt {
    /// Reports when input is available; works for terminals as for pipes.
    terminal: pipe::Receiver,
    /// The same terminal, to discard old input without waiting.
    file: File,
    typed: Vec<u8>,
    pending: VecDeque<PendingApproval>,
    /// The first pending approval is shown.
    shown: bool,
    /// The next line may have been typed for an approval that was decided elsewhere.
    discard_line: bool,
}

/// A tool call that waits for approval.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PendingApproval {
    pub(super) approval: String,
    call_hash: String,
    agent: String,
    tool: String,
    arguments: Value,
    reason: String,
    /// The rules that the reply `always` adds to the session.
    always_rules: Vec<String>,
}

/// What the user typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Approve,
    Always,
    Deny(String),
    /// No decision here; someone else may decide.
    Later,
    /// Not understood.
    Unclear,
}

impl ApprovalPrompt {
    /// Opens the terminal, if the process runs interactively in the foreground.
    pub(super) fn at_terminal(output: Output) -> Option<Self> {
        let seen = io::stdin().is_terminal() && io::stdout().is_terminal() && io::stderr().is_terminal();
        if output.json || !seen || !in_foreground() {
            return None;
        }
        Self::at(Path::new("/dev/tty")).ok()
    }

    fn at(terminal: &Path) -> io::Result<Self> {
        // Opened again, so that O_NONBLOCK does not apply to the streams shared with the shell and other programs.
        let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
        let terminal = File::options().read(true).custom_flags(flags).open(terminal)?;
        let file = terminal.try_clone()?;
        let terminal = pipe::Receiver::from_file_unchecked(terminal)?;
        Ok(Self {
            terminal,
            file,
            typed: Vec::new(),
            pending: VecDeque::new(),
            shown: false,
            discard_line: false,
        })
    }

    /// Adds requested approvals and removes decided ones. True if the user will be asked about this event.
    pub(super) fn receive(&mut self, event: &v1::Event) -> bool {
        let data = || json::embedded(&event.data);
        match event.r#type.as_str() {
            "approval.requested" if self.pending.len() < MAX_PENDING => {
                let pending_approval = PendingApproval::from_event(&data());
                let will_prompt = pending_approval.is_some();
                self.pending.extend(pending_approval);
                will_prompt
            }
            "approval.decided" => {
                let data = data();
                let decided = data["approval"].as_str().unwrap_or_default();
                if self.shown
                    && self
                        .pending
                        .front()
                        .is_some_and(|pending_approval| pending_approval.approval == decided)
                {
                    (self.shown, self.discard_line) = (false, true);
                }
                self.pending.retain(|pending_approval| pending_approval.approval != decided);
                false
            }
            _ => false,
        }
    }

    /// The lines of the next approval, if none is shown. Discards input that was typed before.
    pub(super) fn show_next(&mut self) -> Option<Vec<Line>> {
        if self.shown {
            return None;
        }
        let lines = self.pending.front()?.lines();
        self.shown = true;
        self.typed.clear();
        let mut stale = [0; 1024];
        while self.may_read() && self.file.read(&mut stale).is_ok_and(|count| count > 0) {}
        Some(lines)
    }

    /// The prompt, if an approval is shown.
    pub(super) fn prompt(&self) -> Option<String> {
        let pending_approval = self.pending.front().filter(|_| self.shown)?;
        let always = if pending_approval.always_rules.is_empty() { "" } else { ", a(lways)" };
        Some(format!("allow it? y(es), n(o), n and what to do instead{always}: "))
    }

    /// Waits for a reply about the shown approval. Cancel-safe.
    pub(super) async fn reply(&mut self) -> io::Result<Reply> {
        if self.prompt().is_none() {
            return std::future::pending().await;
        }
        loop {
            if let Some(end) = self.typed.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.typed.drain(..=end).collect();
                if std::mem::take(&mut self.discard_line) {
                    return Ok(Reply::Unclear);
                }
                let can_always = self
                    .pending
                    .front()
                    .is_some_and(|pending_approval| !pending_approval.always_rules.is_empty());
                return Ok(parse(&String::from_utf8_lossy(&line), can_always));
            }
            let mut bytes = [0; 1024];
            self.terminal.readable().await?;
            if !self.may_read() {
                sleep(BACKGROUND_POLL).await;
                continue;
            }
            let read = match self.terminal.try_read(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                read => read?,
            };
            match bytes.get(..read) {
                None | Some([]) => return Ok(Reply::Later),
                Some(more) if self.typed.len() + more.len() <= MAX_LINE_BYTES => self.typed.extend(more),
                Some(_) => {
                    self.typed.clear();
                    return Ok(Reply::Unclear);
                }
            }
        }
    }

    /// The kernel stops a background process that reads the terminal.
    fn may_read(&self) -> bool {
        !self.file.is_terminal() || in_foreground()
    }

    /// All approvals that are still pending.
    pub(super) fn into_pending(self) -> impl Iterator<Item = PendingApproval> {
        self.pending.into_iter()
    }

    /// Removes the shown approval.
    pub(super) fn take(&mut self) -> Option<PendingApproval> {
        self.shown = false;
        self.pending.pop_front()
    }
}

fn in_foreground() -> bool {
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else { return false };
    // Fields after the process name: state, parent, process group, session, terminal, foreground process group of the terminal.
    let fields: Vec<&str> =
        stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_ascii_whitespace().collect();
    fields.get(2).is_some() && fields.get(2) == fields.get(5)
}

impl PendingApproval {
    fn from_event(data: &Value) -> Option<Self> {
        let request = &data["request"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let rule = |rule: &Value| {
            let part = |name: &str| one_line(rule[name].as_str().unwrap_or_default());
            format!("{} {} {}", part("action"), part("permission"), part("pattern"))
        };
        Some(Self {
            approval: data["approval"].as_str()?.to_owned(),
            call_hash: text(&request["call_hash"]),
            agent: text(&request["agent"]),
            tool: text(&request["tool"]),
            arguments: request["arguments"].clone(),
            reason: text(&request["why"]),
            always_rules: request["always"].as_array().into_iter().flatten().map(rule).collect(),
        })
    }

    /// The exact call, for the terminal.
    fn lines(&self) -> Vec<Line> {
        let (agent, tool) = (one_line(&self.agent), one_line(&self.tool));
        let who = if agent.is_empty() { "the run" } else { agent.as_str() };
        let mut lines: Vec<Line> = vec![(Some(Style::Warn), format!("● {who} wants to call {tool}"))];
        let call = call_lines(&self.tool, &self.arguments);
        let more = call.len().saturating_sub(MAX_CALL_LINES);
        lines.extend(call.into_iter().take(MAX_CALL_LINES).map(|line| (None, format!("    {line}"))));
        let mut note = |text: String| lines.push((Some(Style::Dim), format!("  {text}")));
        if more > 0 {
            note(format!("… {more} more lines: remuda approvals show {}", one_line(&self.approval)));
        }
        if !self.reason.is_empty() {
            note(format!("why: {}", one_line(&self.reason)));
        }
        if !self.always_rules.is_empty() {
            note(format!("always: {}", self.always_rules.join(", ")));
        }
        lines
    }

    /// Says that the call is pending, and how to decide with another command.
    pub(super) fn hint(&self, reason: &str) -> Vec<Line> {
        let (id, tool) = (one_line(&self.approval), one_line(&self.tool));
        let call = format!("● {reason}: {tool}  {}", headline(&self.tool, &self.arguments));
        let todo =
            format!("    remuda approvals approve {id}   or: remuda approvals deny {id} --message '…'");
        vec![(Some(Style::Warn), call.trim_end().to_owned()), (None, todo)]
    }

    /// The request for this reply. The hash ensures that exactly this call is decided.
    pub(super) fn decide(&self, reply: Reply) -> Option<v1::DecideApprovalRequest> {
        let (approve, always, message) = match reply {
            Reply::Approve => (true, false, String::new()),
            Reply::Always => (true, true, String::new()),
            Reply::Deny(message) => (false, false, message),
            Reply::Later | Reply::Unclear => return None,
        };
        Some(v1::DecideApprovalRequest {
            approval_id: self.approval.clone(),
            approve,
            message,
            arguments: String::new(),
            always,
            call_hash: self.call_hash.clone(),
        })
    }
}

/// A shell script as plain text, unless that would hide something; any other call as JSON.
fn call_lines(tool: &str, arguments: &Value) -> Vec<String> {
    let alone = arguments.as_object().is_some_and(|all| all.len() == 1);
    let script = script_of(tool, arguments).map(|(_, script)| script);
    match script.filter(|text| alone && sanitize(text) == **text) {
        Some(script) => script.lines().map(str::to_owned).collect(),
        None => vec![json_text(arguments)],
    }
}

fn parse(line: &str, can_always: bool) -> Reply {
    let line = line.trim();
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    match word.to_lowercase().as_str() {
        "y" | "yes" if rest.is_empty() => Reply::Approve,
        "a" | "always" if rest.is_empty() && can_always => Reply::Always,
        "n" | "no" if rest.chars().count() <= limits::MAX_REASON_CHARS => Reply::Deny(rest.to_owned()),
        _ => Reply::Unclear,
    }
}

#[cfg(test)]
#[path = "approval_prompt_tests.rs"]
mod tests;
