//! Follows the runs of sub-agents and shows each of their actions in one line, indented below the parent.

use std::collections::HashMap;

use remuda_client::terminal_state;
use remuda_domain::RunState;
use remuda_proto::v1;
use serde_json::Value;

use super::{Length, Line, headline, notice::notice, result_lines};
use crate::{
    client::json,
    output::{Style, count, counted, one_line},
};

/// Precedes the end of the run id while the agent's name is unknown.
const UNNAMED_PREFIX: char = '…';

/// The runs below the run that is shown.
#[derive(Debug, Default)]
pub(crate) struct ChildRuns {
    by_run: HashMap<String, ChildRun>,
    /// Children seen so far, by agent.
    numbers: HashMap<String, usize>,
    activity: String,
}

#[derive(Debug, Default)]
struct ChildRun {
    /// The agent, with a number from the second one on.
    name: String,
    /// Number of runs above it.
    depth: usize,
    /// Id of the topmost run.
    root: String,
    /// Calls without a result: tool and headline, by id.
    calls: HashMap<String, (String, String)>,
    steps: usize,
    tokens: u64,
    /// Its end was shown.
    ended: bool,
}

/// Lines about a child run.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ChildNotice {
    pub(crate) lines: Vec<Line>,
    /// The run is blocked until someone acts.
    pub(crate) action_needed: bool,
}

impl ChildRuns {
    /// What the child that was active last is doing, in a few words.
    pub(crate) fn activity(&self) -> Option<&str> {
        Some(self.activity.as_str()).filter(|text| !text.is_empty() && !self.by_run.is_empty())
    }

    /// The notice for an event of a parent about one of its children; `None` for all other events.
    pub(crate) fn parent_event(&mut self, event: &v1::Event, data: &Value) -> Option<ChildNotice> {
        let run = data["run"].as_str().unwrap_or_default();
        match event.r#type.as_str() {
            "subagent.started" => {
                let above = self.by_run.get(&event.run_id);
                let depth = above.map_or(0, |child| child.depth) + 1;
                let root = above.map_or(&event.run_id, |child| &child.root).clone();
                let child = self.begin(run, data["agent"].as_str().unwrap_or_default(), (depth, root));
                let mut text = format!("▸ {}", child.name);
                let description = one_line(data["description"].as_str().unwrap_or_default());
                if !description.is_empty() {
                    text.push_str(&format!(": {description}"));
                }
                if data["background"].as_bool().unwrap_or_default() {
                    text.push_str(" (in the background)");
                }
                let lead = "  ".repeat(depth);
                Some(ChildNotice {
                    lines: vec![(Some(Style::Dim), format!("{lead}{text}"))],
                    action_needed: false,
                })
            }
            "subagent.ended" => {
                let child = self.by_run.remove(run)?;
                let state = data["state"].as_str().unwrap_or_default().parse::<RunState>().ok();
                let notice = state.filter(|_| !child.ended).map(|state| child.end_notice(state, ""));
                Some(notice.unwrap_or_default())
            }
            _ => None,
        }
    }

    /// The notice for an event of a child run.
    pub(crate) fn event(&mut self, event: &v1::Event) -> ChildNotice {
        let data = json::embedded(&event.data);
        if let Some(notice) = self.parent_event(event, &data) {
            return notice;
        }
        if !self.by_run.contains_key(&event.run_id) {
            // Its `subagent.started` event was not received.
            if event.run_id.is_empty() || terminal_state(event).is_some() {
                return ChildNotice::default();
            }
            self.begin(&event.run_id, "", (1, event.run_id.clone()));
        }
        let Self { by_run, activity, .. } = self;
        let Some(child) = by_run.get_mut(&event.run_id) else { return ChildNotice::default() };
        if let Some(notice) = notice(event, &data, &child.root) {
            let lines = notice.lines.into_iter().map(|(style, text)| child.line(style, &text)).collect();
            return ChildNotice { lines, action_needed: notice.action_needed };
        }
        if let Some(state) = terminal_state(event) {
            child.ended = true;
            let why = one_line(data["message"].as_str().unwrap_or_default());
            return child.end_notice(state, &why);
        }
        let mut notice = ChildNotice::default();
        match event.r#type.as_str() {
            "model.started" => {
                let agent = one_line(data["agent"].as_str().unwrap_or_default());
                if child.name.starts_with(UNNAMED_PREFIX) && !agent.is_empty() {
                    child.name = agent;
                }
                *activity = format!("{} thinks", child.name);
            }
            "model.completed" => child.count_model_call(&data),
            "message.completed" => child.remember_calls(&data),
            "tool.started" => {
                let (tool, detail) =
                    child.tool_and_headline(data["call"].as_str().unwrap_or_default(), &data);
                *activity = format!("{}: {tool} {detail}", child.name).trim_end().to_owned();
            }
            "tool.completed" | "tool.failed" => notice.lines.push(child.result_line(&data)),
            "run.attempt_lost" => notice.lines.push(child.line(Some(Style::Warn), "its worker was lost")),
            _ => {}
        }
        notice
    }

    fn begin(&mut self, run: &str, agent: &str, (depth, root): (usize, String)) -> &mut ChildRun {
        let agent = one_line(agent);
        let name = if agent.is_empty() {
            let run = one_line(run);
            format!(
                "{UNNAMED_PREFIX}{}",
                run.chars().skip(run.chars().count().saturating_sub(6)).collect::<String>()
            )
        } else {
            let number = self.numbers.entry(agent.clone()).or_default();
            *number += 1;
            if *number == 1 { agent } else { format!("{agent} {number}") }
        };
        let child = self.by_run.entry(run.to_owned()).or_default();
        (child.name, child.depth, child.root) = (name, depth, root);
        child
    }
}

impl ChildRun {
    fn line(&self, style: Option<Style>, text: &str) -> Line {
        let lead = "  ".repeat(self.depth);
        (style.or(Some(Style::Dim)), format!("{lead}│ {}  {text}", self.name))
    }

    fn count_model_call(&mut self, data: &Value) {
        let tokens = |name: &str| data["usage"][name].as_u64().unwrap_or_default();
        self.steps += 1;
        self.tokens += tokens("input_tokens") + tokens("output_tokens");
    }

    /// Remembers the headlines of a message's tool calls, for their results.
    fn remember_calls(&mut self, data: &Value) {
        let parts = data["parts"].as_array().into_iter().flatten();
        for call in parts.filter(|part| part["type"] == "tool_use").map(|part| &part["call"]) {
            let text = |name: &str| call[name].as_str().unwrap_or_default();
            let shown = (one_line(text("tool")), headline(text("tool"), &call["arguments"]));
            self.calls.insert(text("id").to_owned(), shown);
        }
    }

    fn tool_and_headline(&self, id: &str, data: &Value) -> (String, String) {
        let tool = || one_line(data["tool"].as_str().unwrap_or_default());
        self.calls.get(id).cloned().unwrap_or_else(|| (tool(), String::new()))
    }

    fn result_line(&mut self, outcome: &Value) -> Line {
        let id = outcome["id"].as_str().unwrap_or_default();
        let (tool, detail) = self.tool_and_headline(id, outcome);
        self.calls.remove(id);
        self.steps += 1;
        let (style, summary) = result_lines(outcome, Length::Short).swap_remove(0);
        let call = format!("⏺ {tool}  {detail}");
        self.line(style, &format!("{} · {summary}", call.trim_end()))
    }

    fn end_notice(&self, state: RunState, why: &str) -> ChildNotice {
        let (style, mark) = match state {
            RunState::Completed => (Style::Dim, "✓"),
            RunState::Cancelled => (Style::Warn, "✗"),
            _ => (Style::Bad, "✗"),
        };
        let mut text = format!("{mark} {}", state.as_str().replace('_', " "));
        if !why.is_empty() {
            text.push_str(&format!(": {why}"));
        }
        if self.steps > 0 {
            text.push_str(&format!(" · {}", counted(self.steps, "step")));
        }
        if self.tokens > 0 {
            text.push_str(&format!(" · {} tokens", count(self.tokens)));
        }
        ChildNotice { lines: vec![self.line(Some(style), &text)], action_needed: false }
    }
}

#[cfg(test)]
#[path = "child_runs_tests.rs"]
mod tests;
