//! Turns the events and deltas of a live run into items for a screen.

mod streamed_message;

use std::collections::HashMap;

use remuda_domain::tool::ToolRole;
use remuda_node::tool_catalog;
use remuda_proto::v1;
use serde_json::Value;

use self::streamed_message::StreamedMessage;
use super::{
    ChildRuns, CommandOutput, Length, Line, headline, headline::shorten, notice, result::LINE_CHARS,
    result_lines,
};
use crate::{
    client::json,
    output::{one_line, sanitize},
};

/// Limit of deltas that arrived before the `model.started` event of their message.
const MAX_EARLY_DELTAS: usize = 1024;

/// Something to show on a screen.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DisplayItem {
    /// The agent and the model of what follows.
    Header {
        agent: String,
        model: String,
    },
    Reasoning(String),
    /// A part of the agent's message, or all of it.
    Text(String),
    /// The model starts the message again; what was shown of it is void.
    Restarted,
    /// The message is complete. If it calls tools, it is not the answer.
    MessageEnd {
        calls: bool,
    },
    Call {
        tool: String,
        detail: String,
    },
    /// Output of the call that was shown last.
    CallOutput(Vec<Line>),
    /// The result of a call. The call is named unless it was shown last.
    Result {
        call: Option<(String, String)>,
        lines: Vec<Line>,
    },
    /// Lines about other agents or changed settings.
    Notice(Vec<Line>),
    /// The run is blocked until someone acts.
    ActionNeeded(Vec<Line>),
    /// Any other event worth showing.
    Event(Box<v1::Event>),
}

/// What a run has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunTotals {
    /// Model calls and tool calls.
    pub(crate) steps: u64,
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
    /// In millionths of a dollar.
    pub(crate) micros: u64,
}

/// The state of one run and its child runs, built from their events.
#[derive(Debug, Default)]
pub(crate) struct LiveRun {
    run: String,
    children: ChildRuns,
    /// Agent and model that were shown last.
    active_agent: (String, String),
    /// The message that is being streamed.
    message: Option<StreamedMessage>,
    /// Deltas that arrived before the `model.started` event of their message.
    early_deltas: Vec<v1::Delta>,
    /// Calls without a result: tool and headline, by id.
    calls: HashMap<String, (String, String)>,
    /// The call that was shown last, if nothing was shown since.
    last_call: Option<String>,
    output: CommandOutput,
    totals: RunTotals,
    activity: String,
    /// The wait was shown, so its end is shown too.
    show_resumed: bool,
}

impl LiveRun {
    pub(crate) fn for_run(run: &str) -> Self {
        Self { run: run.to_owned(), ..Self::default() }
    }

    pub(crate) fn totals(&self) -> RunTotals {
        self.totals
    }

    /// What the run is doing, in a few words.
    pub(crate) fn activity(&self) -> &str {
        self.children.activity().unwrap_or(&self.activity)
    }

    pub(crate) fn event(&mut self, event: &v1::Event) -> Vec<DisplayItem> {
        if event.run_id != self.run {
            let notice = self.children.event(event);
            return self.child_items(notice.lines, notice.action_needed);
        }
        let data = json::embedded(&event.data);
        if let Some(notice) = self.children.parent_event(event, &data) {
            return self.child_items(notice.lines, notice.action_needed);
        }
        if let Some(notice) = notice(event, &data, &self.run) {
            self.show_resumed = notice.action_needed && event.r#type == "run.parked";
            return self.notice_items(notice.lines, notice.action_needed);
        }
        match event.r#type.as_str() {
            "run.queued" => self.set_activity("waiting for a worker"),
            "run.started" => self.set_activity("starting"),
            "model.started" => self.model_started(&data),
            "model.completed" => self.model_completed(&data),
            "message.completed" if data["role"] == "assistant" => self.message_completed(&data),
            "tool.started" => self.tool_started(&data),
            "tool.completed" | "tool.failed" => self.tool_completed(&data),
            // The approval request and the child runs have notices of their own.
            "run.parked" if data["reason"] == "approval" => self.set_activity("waiting for approval"),
            "run.parked" if data["reason"] == "children" => self.set_activity("waiting for other agents"),
            "run.resumed" if !std::mem::take(&mut self.show_resumed) => {
                self.set_activity("waiting for a worker")
            }
            "run.handed_over"
            | "run.attempt_lost"
            | "run.parked"
            | "run.resumed"
            | "run.cancel_requested"
            | "model.retrying"
            | "hook.notice" => {
                self.show_resumed = event.r#type == "run.parked";
                if event.r#type == "model.retrying" {
                    self.activity = format!("waiting for {}", self.active_agent.1);
                }
                self.last_call = None;
                vec![DisplayItem::Event(Box::new(event.clone()))]
            }
            _ => Vec::new(),
        }
    }

    /// Keeps lines about child runs between the call that started them and its result.
    fn child_items(&mut self, lines: Vec<Line>, action_needed: bool) -> Vec<DisplayItem> {
        let delegate = tool_catalog().with_role(ToolRole::Delegate);
        let delegates = |call: &String| {
            self.calls.get(call).is_some_and(|(tool, _)| delegate.is_some_and(|it| it.name == *tool))
        };
        let delegation = self.last_call.clone().filter(delegates);
        let items = self.notice_items(lines, action_needed);
        self.last_call = self.last_call.take().or(delegation);
        items
    }

    fn notice_items(&mut self, lines: Vec<Line>, action_needed: bool) -> Vec<DisplayItem> {
        if lines.is_empty() {
            return Vec::new();
        }
        self.last_call = None;
        vec![if action_needed { DisplayItem::ActionNeeded(lines) } else { DisplayItem::Notice(lines) }]
    }

    pub(crate) fn delta(&mut self, delta: v1::Delta) -> Vec<DisplayItem> {
        // Of child runs only complete results are shown.
        if delta.run_id != self.run {
            return Vec::new();
        }
        if !delta.call_id.is_empty() {
            return self.output_delta(&delta);
        }
        match &mut self.message {
            Some(message) if message.id == delta.message_id => {
                self.last_call = None;
                message.receive(&delta)
            }
            _ if self.early_deltas.len() < MAX_EARLY_DELTAS => {
                self.early_deltas.push(delta);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// Shows output below its call. With several calls in parallel, output is shown with the results.
    fn output_delta(&mut self, delta: &v1::Delta) -> Vec<DisplayItem> {
        if self.last_call.as_ref() != Some(&delta.call_id) {
            return Vec::new();
        }
        let lines =
            self.output.receive(delta).into_iter().map(|(style, text)| (style, shorten(&text, LINE_CHARS)));
        let lines: Vec<Line> = lines.collect();
        if lines.is_empty() { Vec::new() } else { vec![DisplayItem::CallOutput(lines)] }
    }

    fn set_activity(&mut self, activity: &str) -> Vec<DisplayItem> {
        activity.clone_into(&mut self.activity);
        Vec::new()
    }

    fn model_started(&mut self, data: &Value) -> Vec<DisplayItem> {
        let text = |name: &str| data[name].as_str().unwrap_or_default();
        let active_agent = (one_line(text("agent")), one_line(text("model")));
        let mut items = Vec::new();
        // A worker repeats the model call of a lost worker.
        if self.message.take().is_some_and(|message| message.has_content()) {
            items.push(DisplayItem::Restarted);
        }
        if active_agent != self.active_agent {
            items.push(DisplayItem::Header { agent: active_agent.0.clone(), model: active_agent.1.clone() });
        }
        self.activity = format!("{} thinks", active_agent.1);
        self.active_agent = active_agent;
        self.last_call = None;
        let mut message = StreamedMessage::new(text("message"));
        for delta in std::mem::take(&mut self.early_deltas) {
            if delta.message_id == message.id {
                items.extend(message.receive(&delta));
            }
        }
        self.message = Some(message);
        items
    }

    fn model_completed(&mut self, data: &Value) -> Vec<DisplayItem> {
        let tokens = |name: &str| data["usage"][name].as_u64().unwrap_or_default();
        self.totals.steps += 1;
        self.totals.input_tokens += tokens("input_tokens");
        self.totals.output_tokens += tokens("output_tokens");
        self.totals.micros += data["cost"].as_u64().unwrap_or_default();
        Vec::new()
    }

    /// Shows what the deltas of the message did not contain.
    fn message_completed(&mut self, data: &Value) -> Vec<DisplayItem> {
        let id = data["message"].as_str().unwrap_or_default();
        let parts = data["parts"].as_array().map(Vec::as_slice).unwrap_or_default();
        let received = self.message.take().filter(|message| message.id == id);
        let mut items = received.unwrap_or_else(|| StreamedMessage::new(id)).complete(parts);
        let mut calls = false;
        for call in parts.iter().filter(|part| part["type"] == "tool_use").map(|part| &part["call"]) {
            calls = true;
            let text = |name: &str| call[name].as_str().unwrap_or_default();
            let shown = (one_line(text("tool")), headline(text("tool"), &call["arguments"]));
            self.calls.insert(text("id").to_owned(), shown);
        }
        self.last_call = None;
        items.push(DisplayItem::MessageEnd { calls });
        items
    }

    fn tool_started(&mut self, data: &Value) -> Vec<DisplayItem> {
        let id = data["call"].as_str().unwrap_or_default();
        let (tool, detail) = self.tool_and_headline(id, data);
        self.activity = format!("{tool} {detail}").trim_end().to_owned();
        self.calls.insert(id.to_owned(), (tool.clone(), detail.clone()));
        // With several calls in parallel, each is shown with its result.
        if self.calls.len() > 1 {
            return Vec::new();
        }
        self.last_call = Some(id.to_owned());
        vec![DisplayItem::Call { tool, detail }]
    }

    fn tool_completed(&mut self, outcome: &Value) -> Vec<DisplayItem> {
        let id = outcome["id"].as_str().unwrap_or_default();
        self.totals.steps += 1;
        let call = self.tool_and_headline(id, outcome);
        self.calls.remove(id);
        let follows_call = self.last_call.take().is_some_and(|last| last == id);
        let lines = result_lines(&self.output.unshown(outcome), Length::Short);
        vec![DisplayItem::Result { call: (!follows_call).then_some(call), lines }]
    }

    /// The tool of a call and its headline; the headline is empty if the message with the call was not received.
    fn tool_and_headline(&self, id: &str, data: &Value) -> (String, String) {
        let tool = || one_line(data["tool"].as_str().unwrap_or_default());
        self.calls.get(id).cloned().unwrap_or_else(|| (tool(), String::new()))
    }
}

/// All text parts of a message, sanitized.
pub(super) fn text_of(parts: &[Value]) -> String {
    sanitize(&raw_text_of(parts))
}

fn raw_text_of(parts: &[Value]) -> String {
    let texts = parts.iter().filter(|part| part["type"] == "text").filter_map(|part| part["text"].as_str());
    texts.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
#[path = "live_run_tests.rs"]
mod tests;
