//! Agents that work for others: what they do, in one line each, beneath those they work for.

use std::collections::HashMap;

use remuda_client::terminal_state;
use remuda_domain::RunState;
use remuda_proto::v1;
use serde_json::Value;

use super::{Length, Line, headline, news::news, result_lines};
use crate::{
    client::json,
    output::{Style, count, counted, one_line},
};

/// Stands before the end of an id where a name is not known.
const NAMELESS: char = '…';

/// The runs below the one that is shown.
#[derive(Debug, Default)]
pub(crate) struct Helpers {
    by_run: HashMap<String, Helper>,
    /// How many there were of each agent.
    numbers: HashMap<String, usize>,
    activity: String,
}

#[derive(Debug, Default)]
struct Helper {
    /// The agent, with a number from the second one on.
    name: String,
    /// How many are above it, and the first of them.
    depth: usize,
    root: String,
    /// Calls without a result: tool and headline, by id.
    calls: HashMap<String, (String, String)>,
    steps: usize,
    tokens: u64,
    /// Its end was told.
    ended: bool,
}

/// Lines about a helper, and whether nothing goes on before somebody does something.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Told {
    pub(crate) lines: Vec<Line>,
    pub(crate) waits: bool,
}

impl Helpers {
    /// What the busiest of them does, in a few words.
    pub(crate) fn activity(&self) -> Option<&str> {
        Some(self.activity.as_str()).filter(|text| !text.is_empty() && !self.by_run.is_empty())
    }

    /// What an event says about a helper of the run that it belongs to, if it does.
    pub(crate) fn about(&mut self, event: &v1::Event, data: &Value) -> Option<Told> {
        let run = data["run"].as_str().unwrap_or_default();
        match event.r#type.as_str() {
            "subagent.started" => {
                let above = self.by_run.get(&event.run_id);
                let depth = above.map_or(0, |helper| helper.depth) + 1;
                let root = above.map_or(&event.run_id, |helper| &helper.root).clone();
                let helper = self.begin(run, data["agent"].as_str().unwrap_or_default(), (depth, root));
                let mut text = format!("▸ {}", helper.name);
                let description = one_line(data["description"].as_str().unwrap_or_default());
                if !description.is_empty() {
                    text.push_str(&format!(": {description}"));
                }
                if data["background"].as_bool().unwrap_or_default() {
                    text.push_str(" (in the background)");
                }
                let lead = "  ".repeat(depth);
                Some(Told { lines: vec![(Some(Style::Dim), format!("{lead}{text}"))], waits: false })
            }
            "subagent.ended" => {
                let helper = self.by_run.remove(run)?;
                let state = data["state"].as_str().unwrap_or_default().parse::<RunState>().ok();
                let told = state.filter(|_| !helper.ended).map(|state| helper.end(state, ""));
                Some(told.unwrap_or_default())
            }
            _ => None,
        }
    }

    /// What a helper does.
    pub(crate) fn event(&mut self, event: &v1::Event) -> Told {
        let data = json::embedded(&event.data);
        if let Some(told) = self.about(event, &data) {
            return told;
        }
        if !self.by_run.contains_key(&event.run_id) {
            // Nobody told of its beginning.
            if event.run_id.is_empty() || terminal_state(event).is_some() {
                return Told::default();
            }
            self.begin(&event.run_id, "", (1, event.run_id.clone()));
        }
        let Self { by_run, activity, .. } = self;
        let Some(helper) = by_run.get_mut(&event.run_id) else { return Told::default() };
        if let Some(news) = news(event, &data, &helper.root) {
            let lines = news.lines.into_iter().map(|(style, text)| helper.line(style, &text)).collect();
            return Told { lines, waits: news.waits };
        }
        if let Some(state) = terminal_state(event) {
            helper.ended = true;
            let why = one_line(data["message"].as_str().unwrap_or_default());
            return helper.end(state, &why);
        }
        let mut told = Told::default();
        match event.r#type.as_str() {
            "model.started" => {
                let agent = one_line(data["agent"].as_str().unwrap_or_default());
                if helper.name.starts_with(NAMELESS) && !agent.is_empty() {
                    helper.name = agent;
                }
                *activity = format!("{} thinks", helper.name);
            }
            "model.completed" => helper.answered(&data),
            "message.completed" => helper.said(&data),
            "tool.started" => {
                let (tool, detail) = helper.known(data["call"].as_str().unwrap_or_default(), &data);
                *activity = format!("{}: {tool} {detail}", helper.name).trim_end().to_owned();
            }
            "tool.completed" | "tool.failed" => told.lines.push(helper.returned(&data)),
            "run.attempt_lost" => told.lines.push(helper.line(Some(Style::Warn), "its worker was lost")),
            _ => {}
        }
        told
    }

    fn begin(&mut self, run: &str, agent: &str, (depth, root): (usize, String)) -> &mut Helper {
        let agent = one_line(agent);
        let name = if agent.is_empty() {
            let run = one_line(run);
            format!(
                "{NAMELESS}{}",
                run.chars().skip(run.chars().count().saturating_sub(6)).collect::<String>()
            )
        } else {
            let number = self.numbers.entry(agent.clone()).or_default();
            *number += 1;
            if *number == 1 { agent } else { format!("{agent} {number}") }
        };
        let helper = self.by_run.entry(run.to_owned()).or_default();
        (helper.name, helper.depth, helper.root) = (name, depth, root);
        helper
    }
}

impl Helper {
    fn line(&self, style: Option<Style>, text: &str) -> Line {
        let lead = "  ".repeat(self.depth);
        (style.or(Some(Style::Dim)), format!("{lead}│ {}  {text}", self.name))
    }

    fn answered(&mut self, data: &Value) {
        let tokens = |name: &str| data["usage"][name].as_u64().unwrap_or_default();
        self.steps += 1;
        self.tokens += tokens("input_tokens") + tokens("output_tokens");
    }

    /// Notes what the calls are about.
    fn said(&mut self, data: &Value) {
        let parts = data["parts"].as_array().into_iter().flatten();
        for call in parts.filter(|part| part["type"] == "tool_use").map(|part| &part["call"]) {
            let text = |name: &str| call[name].as_str().unwrap_or_default();
            let shown = (one_line(text("tool")), headline(text("tool"), &call["arguments"]));
            self.calls.insert(text("id").to_owned(), shown);
        }
    }

    fn known(&self, id: &str, data: &Value) -> (String, String) {
        let tool = || one_line(data["tool"].as_str().unwrap_or_default());
        self.calls.get(id).cloned().unwrap_or_else(|| (tool(), String::new()))
    }

    fn returned(&mut self, outcome: &Value) -> Line {
        let id = outcome["id"].as_str().unwrap_or_default();
        let (tool, detail) = self.known(id, outcome);
        self.calls.remove(id);
        self.steps += 1;
        let (style, came) = result_lines(outcome, Length::Short).swap_remove(0);
        let call = format!("⏺ {tool}  {detail}");
        self.line(style, &format!("{} · {came}", call.trim_end()))
    }

    fn end(&self, state: RunState, why: &str) -> Told {
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
        Told { lines: vec![self.line(Some(style), &text)], waits: false }
    }
}

#[cfg(test)]
#[path = "helpers_tests.rs"]
mod tests;
