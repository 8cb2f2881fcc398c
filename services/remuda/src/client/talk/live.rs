//! A run as it happens: events, and pieces of messages that are being said, become what a screen shows.

mod utterance;

use std::collections::HashMap;

use remuda_proto::v1;
use serde_json::Value;

use self::utterance::Utterance;
use super::{
    Helpers, Length, Line, Printed, call::shorten, headline, news, result::LINE_CHARS, result_lines,
};
use crate::{
    client::json,
    output::{one_line, sanitize},
};

/// Pieces that overtook the news that their message is being said.
const MAX_EARLY: usize = 1024;
/// The tool that sends helpers.
const DELEGATE: &str = "SubAgent";

/// Something to show.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Piece {
    /// Who acts from here on.
    Header {
        agent: String,
        model: String,
    },
    Reasoning(String),
    /// A part of what the agent says, or all of it.
    Text(String),
    /// What was shown of the message does not count.
    Restarted,
    /// The message is complete. An agent that calls tools has more to say.
    Said {
        calls: bool,
    },
    Call {
        tool: String,
        detail: String,
    },
    /// What the call that was shown last prints.
    Printed(Vec<Line>),
    /// What came of a call; named unless it is the one that was shown last.
    Result {
        call: Option<(String, String)>,
        lines: Vec<Line>,
    },
    /// What others do, or what has changed.
    Facts(Vec<Line>),
    /// Nothing goes on before somebody does something.
    Waits(Vec<Line>),
    /// Anything else that matters.
    Event(Box<v1::Event>),
}

/// What a run took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Questions to models and calls of tools.
    pub(crate) steps: u64,
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
    /// In millionths of a dollar.
    pub(crate) micros: u64,
}

/// Follows one run, and those that work for it.
#[derive(Debug, Default)]
pub(crate) struct Live {
    run: String,
    helpers: Helpers,
    /// Who acts: agent and model.
    acting: (String, String),
    /// What is being said.
    utterance: Option<Utterance>,
    early: Vec<v1::Delta>,
    /// Calls without a result: tool and headline, by id.
    calls: HashMap<String, (String, String)>,
    /// The call that was shown last, if nothing was shown since.
    last_call: Option<String>,
    printed: Printed,
    tally: Tally,
    activity: String,
    /// Its wait was told of, and so is its end.
    resumes: bool,
}

impl Live {
    pub(crate) fn of(run: &str) -> Self {
        Self { run: run.to_owned(), ..Self::default() }
    }

    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    /// What is waited for, in a few words.
    pub(crate) fn activity(&self) -> &str {
        self.helpers.activity().unwrap_or(&self.activity)
    }

    pub(crate) fn event(&mut self, event: &v1::Event) -> Vec<Piece> {
        if event.run_id != self.run {
            let told = self.helpers.event(event);
            return self.helpers_say(told.lines, told.waits);
        }
        let data = json::embedded(&event.data);
        if let Some(told) = self.helpers.about(event, &data) {
            return self.helpers_say(told.lines, told.waits);
        }
        if let Some(news) = news(event, &data, &self.run) {
            self.resumes = news.waits && event.r#type == "run.parked";
            return self.others(news.lines, news.waits);
        }
        match event.r#type.as_str() {
            "run.queued" => self.waits("waiting for a worker"),
            "run.started" => self.waits("starting"),
            "model.started" => self.asked(&data),
            "model.completed" => self.answered(&data),
            "message.completed" if data["role"] == "assistant" => self.said(&data),
            "tool.started" => self.called(&data),
            "tool.completed" | "tool.failed" => self.returned(&data),
            // What it waits for is told by itself.
            "run.parked" if data["reason"] == "approval" => self.waits("waiting for approval"),
            "run.parked" if data["reason"] == "children" => self.waits("waiting for other agents"),
            "run.resumed" if !std::mem::take(&mut self.resumes) => self.waits("waiting for a worker"),
            "run.handed_over"
            | "run.attempt_lost"
            | "run.parked"
            | "run.resumed"
            | "run.cancel_requested"
            | "hook.notice" => {
                self.resumes = event.r#type == "run.parked";
                self.last_call = None;
                vec![Piece::Event(Box::new(event.clone()))]
            }
            _ => Vec::new(),
        }
    }

    /// What helpers do stands beneath the call that sent them, and above its result.
    fn helpers_say(&mut self, lines: Vec<Line>, waits: bool) -> Vec<Piece> {
        let sends = |call: &String| self.calls.get(call).is_some_and(|(tool, _)| tool == DELEGATE);
        let sender = self.last_call.clone().filter(sends);
        let pieces = self.others(lines, waits);
        self.last_call = self.last_call.take().or(sender);
        pieces
    }

    /// Lines about what others do, or have to.
    fn others(&mut self, lines: Vec<Line>, waits: bool) -> Vec<Piece> {
        if lines.is_empty() {
            return Vec::new();
        }
        self.last_call = None;
        vec![if waits { Piece::Waits(lines) } else { Piece::Facts(lines) }]
    }

    pub(crate) fn delta(&mut self, delta: v1::Delta) -> Vec<Piece> {
        // Of others only what comes of it is shown.
        if delta.run_id != self.run {
            return Vec::new();
        }
        if !delta.call_id.is_empty() {
            return self.prints(&delta);
        }
        match &mut self.utterance {
            Some(utterance) if utterance.message == delta.message_id => {
                self.last_call = None;
                utterance.hear(&delta)
            }
            _ if self.early.len() < MAX_EARLY => {
                self.early.push(delta);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// Output stands beneath its call. Of several at once each is shown with its result.
    fn prints(&mut self, delta: &v1::Delta) -> Vec<Piece> {
        if self.last_call.as_ref() != Some(&delta.call_id) {
            return Vec::new();
        }
        let lines =
            self.printed.hear(delta).into_iter().map(|(style, text)| (style, shorten(&text, LINE_CHARS)));
        let lines: Vec<Line> = lines.collect();
        if lines.is_empty() { Vec::new() } else { vec![Piece::Printed(lines)] }
    }

    fn waits(&mut self, activity: &str) -> Vec<Piece> {
        activity.clone_into(&mut self.activity);
        Vec::new()
    }

    fn asked(&mut self, data: &Value) -> Vec<Piece> {
        let text = |name: &str| data[name].as_str().unwrap_or_default();
        let acting = (one_line(text("agent")), one_line(text("model")));
        let mut pieces = Vec::new();
        // Another worker asks the question of a lost one again.
        if self.utterance.take().is_some_and(|utterance| utterance.has_spoken()) {
            pieces.push(Piece::Restarted);
        }
        if acting != self.acting {
            pieces.push(Piece::Header { agent: acting.0.clone(), model: acting.1.clone() });
        }
        self.activity = format!("{} thinks", acting.1);
        self.acting = acting;
        self.last_call = None;
        let mut utterance = Utterance::new(text("message"));
        for delta in std::mem::take(&mut self.early) {
            if delta.message_id == utterance.message {
                pieces.extend(utterance.hear(&delta));
            }
        }
        self.utterance = Some(utterance);
        pieces
    }

    fn answered(&mut self, data: &Value) -> Vec<Piece> {
        let tokens = |name: &str| data["usage"][name].as_u64().unwrap_or_default();
        self.tally.steps += 1;
        self.tally.input_tokens += tokens("input_tokens");
        self.tally.output_tokens += tokens("output_tokens");
        self.tally.micros += data["cost"].as_u64().unwrap_or_default();
        Vec::new()
    }

    /// The whole message: what was not heard of it is said now.
    fn said(&mut self, data: &Value) -> Vec<Piece> {
        let id = data["message"].as_str().unwrap_or_default();
        let parts = data["parts"].as_array().map(Vec::as_slice).unwrap_or_default();
        let heard = self.utterance.take().filter(|utterance| utterance.message == id);
        let mut pieces = heard.unwrap_or_else(|| Utterance::new(id)).complete(parts);
        let mut calls = false;
        for call in parts.iter().filter(|part| part["type"] == "tool_use").map(|part| &part["call"]) {
            calls = true;
            let text = |name: &str| call[name].as_str().unwrap_or_default();
            let shown = (one_line(text("tool")), headline(text("tool"), &call["arguments"]));
            self.calls.insert(text("id").to_owned(), shown);
        }
        self.last_call = None;
        pieces.push(Piece::Said { calls });
        pieces
    }

    fn called(&mut self, data: &Value) -> Vec<Piece> {
        let id = data["call"].as_str().unwrap_or_default();
        let (tool, detail) = self.known(id, data);
        self.activity = format!("{tool} {detail}").trim_end().to_owned();
        self.calls.insert(id.to_owned(), (tool.clone(), detail.clone()));
        // Of several at once each is shown with its result.
        if self.calls.len() > 1 {
            return Vec::new();
        }
        self.last_call = Some(id.to_owned());
        vec![Piece::Call { tool, detail }]
    }

    fn returned(&mut self, outcome: &Value) -> Vec<Piece> {
        let id = outcome["id"].as_str().unwrap_or_default();
        self.tally.steps += 1;
        let call = self.known(id, outcome);
        self.calls.remove(id);
        let beneath = self.last_call.take().is_some_and(|last| last == id);
        let lines = result_lines(&self.printed.rest(outcome), Length::Short);
        vec![Piece::Result { call: (!beneath).then_some(call), lines }]
    }

    /// What is known of a call: more than its tool if its message was seen.
    fn known(&self, id: &str, data: &Value) -> (String, String) {
        let tool = || one_line(data["tool"].as_str().unwrap_or_default());
        self.calls.get(id).cloned().unwrap_or_else(|| (tool(), String::new()))
    }
}

/// All texts among some parts, harmless.
pub(super) fn text_of(parts: &[Value]) -> String {
    sanitize(&raw_text_of(parts))
}

fn raw_text_of(parts: &[Value]) -> String {
    let texts = parts.iter().filter(|part| part["type"] == "text").filter_map(|part| part["text"].as_str());
    texts.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
