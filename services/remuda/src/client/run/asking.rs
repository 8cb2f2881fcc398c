//! Asking the person at the terminal about calls that wait for approval.
//!
//! Whoever sits here is only one of those who may decide: a question is dropped as soon as someone else has decided, whatever
//! was typed so far. So the terminal is read without ever blocking, and an answer that is not there is waited for like any
//! other news.

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
        json,
        talk::{Line, headline},
    },
    output::{Output, Style, exactly, one_line, sanitize},
};

/// Questions that wait for their turn. Others are told of, not asked.
const MAX_QUESTIONS: usize = 64;
/// Of a line that is typed.
const MAX_LINE_BYTES: usize = 16 * 1024;
/// Lines of a call. Whoever wants more has to look at it elsewhere before deciding.
const MAX_CALL_LINES: usize = 60;

/// How often a program in the background looks whether it may read what was typed.
const BACKGROUND_PACE: Duration = Duration::from_millis(500);

/// Someone at a terminal.
pub(super) struct Asker {
    /// Says when there is something to read. A terminal is waited for as a pipe is.
    terminal: pipe::Receiver,
    /// The same, for what is not waited for.
    file: File,
    typed: Vec<u8>,
    questions: VecDeque<Question>,
    /// The first question was shown.
    shown: bool,
    /// The line that is typed may have been begun as the answer to a question that is gone.
    spoiled: bool,
}

/// A call that waits.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Question {
    pub(super) approval: String,
    call_hash: String,
    agent: String,
    tool: String,
    arguments: Value,
    why: String,
    /// What the session would no longer ask about.
    always: Vec<String>,
}

/// What someone typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Approve,
    Always,
    Deny(String),
    /// Not now: someone else may decide.
    Later,
    /// It is none of these.
    Unclear,
}

impl Asker {
    /// If there is someone to ask.
    pub(super) fn at_terminal(output: Output) -> Option<Self> {
        let seen = io::stdin().is_terminal() && io::stdout().is_terminal() && io::stderr().is_terminal();
        if output.json || !seen || !in_foreground() {
            return None;
        }
        Self::at(Path::new("/dev/tty")).ok()
    }

    fn at(terminal: &Path) -> io::Result<Self> {
        // Opened anew: what is set here does not change the streams that the shell and other programs share.
        let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
        let terminal = File::options().read(true).custom_flags(flags).open(terminal)?;
        let file = terminal.try_clone()?;
        let terminal = pipe::Receiver::from_file_unchecked(terminal)?;
        Ok(Self {
            terminal,
            file,
            typed: Vec::new(),
            questions: VecDeque::new(),
            shown: false,
            spoiled: false,
        })
    }

    /// Notes calls that wait, and those that wait no longer. True if the event will be told as a question.
    pub(super) fn hear(&mut self, event: &v1::Event) -> bool {
        let data = || json::embedded(&event.data);
        match event.r#type.as_str() {
            "approval.requested" if self.questions.len() < MAX_QUESTIONS => {
                let question = Question::of(&data());
                let will_ask = question.is_some();
                self.questions.extend(question);
                will_ask
            }
            "approval.decided" => {
                let data = data();
                let decided = data["approval"].as_str().unwrap_or_default();
                if self.shown && self.questions.front().is_some_and(|question| question.approval == decided) {
                    (self.shown, self.spoiled) = (false, true);
                }
                self.questions.retain(|question| question.approval != decided);
                false
            }
            _ => false,
        }
    }

    /// The question to show, if it was not shown yet. What was typed before it is no answer to it.
    pub(super) fn next_question(&mut self) -> Option<Vec<Line>> {
        if self.shown {
            return None;
        }
        let lines = self.questions.front()?.lines();
        self.shown = true;
        self.typed.clear();
        let mut stale = [0; 1024];
        while self.may_read() && self.file.read(&mut stale).is_ok_and(|count| count > 0) {}
        Some(lines)
    }

    /// What to ask, if something is asked.
    pub(super) fn prompt(&self) -> Option<String> {
        let question = self.questions.front().filter(|_| self.shown)?;
        let always = if question.always.is_empty() { "" } else { ", a(lways)" };
        Some(format!("allow it? y(es), n(o), n and what to do instead{always}: "))
    }

    /// Waits for an answer to the question that was shown. Cancel-safe.
    pub(super) async fn reply(&mut self) -> io::Result<Reply> {
        if self.prompt().is_none() {
            return std::future::pending().await;
        }
        loop {
            if let Some(end) = self.typed.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.typed.drain(..=end).collect();
                if std::mem::take(&mut self.spoiled) {
                    return Ok(Reply::Unclear);
                }
                let can_always = self.questions.front().is_some_and(|question| !question.always.is_empty());
                return Ok(parse(&String::from_utf8_lossy(&line), can_always));
            }
            let mut bytes = [0; 1024];
            self.terminal.readable().await?;
            if !self.may_read() {
                sleep(BACKGROUND_PACE).await;
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

    /// Who reads a terminal in the background is stopped.
    fn may_read(&self) -> bool {
        !self.file.is_terminal() || in_foreground()
    }

    /// All that is left to decide, elsewhere.
    pub(super) fn give_up(self) -> impl Iterator<Item = Question> {
        self.questions.into_iter()
    }

    /// The question is answered, or given up.
    pub(super) fn take(&mut self) -> Option<Question> {
        self.shown = false;
        self.questions.pop_front()
    }
}

fn in_foreground() -> bool {
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else { return false };
    // After the name, which may hold anything: state, parent, group, session, terminal, and the terminal's foreground group.
    let fields: Vec<&str> =
        stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_ascii_whitespace().collect();
    fields.get(2).is_some() && fields.get(2) == fields.get(5)
}

impl Question {
    fn of(data: &Value) -> Option<Self> {
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
            why: text(&request["why"]),
            always: request["always"].as_array().into_iter().flatten().map(rule).collect(),
        })
    }

    /// What is decided about, exactly.
    fn lines(&self) -> Vec<Line> {
        let (agent, tool) = (one_line(&self.agent), one_line(&self.tool));
        let who = if agent.is_empty() { "an agent" } else { agent.as_str() };
        let mut lines: Vec<Line> = vec![(Some(Style::Warn), format!("● {who} wants to call {tool}"))];
        let call = call_lines(&self.tool, &self.arguments);
        let more = call.len().saturating_sub(MAX_CALL_LINES);
        lines.extend(call.into_iter().take(MAX_CALL_LINES).map(|line| (None, format!("    {line}"))));
        let mut note = |text: String| lines.push((Some(Style::Dim), format!("  {text}")));
        if more > 0 {
            note(format!("… {more} more lines: remuda approvals show {}", one_line(&self.approval)));
        }
        if !self.why.is_empty() {
            note(format!("why: {}", one_line(&self.why)));
        }
        if !self.always.is_empty() {
            note(format!("always: {}", self.always.join(", ")));
        }
        lines
    }

    /// That it still waits, and how to decide elsewhere.
    pub(super) fn hint(&self, why: &str) -> Vec<Line> {
        let (id, tool) = (one_line(&self.approval), one_line(&self.tool));
        let call = format!("● {why}: {tool}  {}", headline(&self.tool, &self.arguments));
        let todo =
            format!("    remuda approvals approve {id}   or: remuda approvals deny {id} --message '…'");
        vec![(Some(Style::Warn), call.trim_end().to_owned()), (None, todo)]
    }

    /// The request that decides so. Exactly this call is decided about.
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

/// A command as it is typed if nothing of it is hidden by that, everything else as the JSON that it is.
fn call_lines(tool: &str, arguments: &Value) -> Vec<String> {
    let alone = arguments.as_object().is_some_and(|all| all.len() == 1);
    let command =
        arguments["command"].as_str().filter(|text| alone && tool == "Bash" && sanitize(text) == **text);
    match command {
        Some(command) => command.lines().map(str::to_owned).collect(),
        None => vec![exactly(arguments)],
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
#[path = "asking_tests.rs"]
mod tests;
