//! The scenario of the demo: tenants, sessions, runs, and the expected end state of each run.

use remuda_domain::RunState;
use remuda_proto::v1;
use serde_json::{Value, json};

pub(super) const TENANTS: [&str; 2] = ["acme", "globex"];

/// File to which the run that is cancelled writes its process ids.
pub(super) const PID_FILE: &str = "deploy.pid";

/// A session and its runs in the order of submission.
#[derive(Debug)]
pub(super) struct SessionPlan {
    pub tenant: &'static str,
    pub session: &'static str,
    pub runs: Vec<RunPlan>,
}

impl SessionPlan {
    pub(super) fn title(&self) -> String {
        format!("{}/{}", self.tenant, self.session)
    }
}

/// A run and its expected end state.
#[derive(Debug)]
pub(super) struct RunPlan {
    pub calls: Vec<CallPlan>,
    pub expected_state: RunState,
}

#[derive(Debug)]
pub(super) struct CallPlan {
    /// Display name of a parallel call; `None` for serial calls.
    pub name: Option<&'static str>,
    pub tool: &'static str,
    pub arguments: Value,
}

impl RunPlan {
    fn new<const N: usize>(calls: [CallPlan; N]) -> Self {
        Self { calls: calls.into(), expected_state: RunState::Completed }
    }

    fn expecting(self, expected_state: RunState) -> Self {
        Self { expected_state, ..self }
    }

    /// Whether its calls run in parallel.
    pub(super) fn is_parallel(&self) -> bool {
        self.calls.len() > 1 && self.calls.iter().all(|call| call.name.is_some())
    }

    /// A description of the run.
    pub(super) fn title(&self) -> String {
        let separator = if self.is_parallel() { " ∥ " } else { " → " };
        self.calls.iter().map(CallPlan::title).collect::<Vec<_>>().join(separator)
    }

    pub(super) fn input(&self) -> v1::ToolsInput {
        let calls = self.calls.iter().map(|call| v1::ToolCall {
            tool: call.tool.to_owned(),
            arguments: call.arguments.to_string(),
            parallel: call.name.is_some(),
            ..Default::default()
        });
        v1::ToolsInput { calls: calls.collect(), ..Default::default() }
    }
}

impl CallPlan {
    fn bash(command: &str) -> Self {
        Self { name: None, tool: "Bash", arguments: json!({ "command": command }) }
    }

    fn noop(sleep_ms: u64, echo: &str) -> Self {
        Self { name: None, tool: "noop", arguments: json!({ "sleep_ms": sleep_ms, "echo": echo }) }
    }

    fn read(path: &str) -> Self {
        Self { name: None, tool: "Read", arguments: json!({ "file_path": path }) }
    }

    fn write(path: &str, content: &str) -> Self {
        Self { name: None, tool: "Write", arguments: json!({ "file_path": path, "content": content }) }
    }

    fn named_parallel(self, name: &'static str) -> Self {
        Self { name: Some(name), ..self }
    }

    fn title(&self) -> String {
        if let Some(name) = self.name {
            return name.to_owned();
        }
        let text = |name: &str| self.arguments[name].as_str();
        match (text("command").or(text("file_path")), self.arguments["sleep_ms"].as_u64()) {
            (Some(text), _) => format!("{} {text}", self.tool),
            (None, Some(sleep)) => format!("{} for {sleep} ms", self.tool),
            (None, None) => self.tool.to_owned(),
        }
    }
}

/// Everything the demo submits.
pub(super) fn plans() -> Vec<SessionPlan> {
    let [acme, globex] = TENANTS;
    let named_parallel = |command: &str, name| CallPlan::bash(command).named_parallel(name);
    let background_command = format!("sleep 300 & echo $! $$ > {PID_FILE}; wait");
    vec![
        SessionPlan {
            tenant: acme,
            session: "build",
            runs: vec![
                RunPlan::new([CallPlan::bash("sleep 1; echo compiled")]),
                RunPlan::new([
                    named_parallel("sleep 1.5; echo lint is clean", "lint"),
                    named_parallel("sleep 2.1; echo tests pass", "tests"),
                    named_parallel("sleep 1.1; echo docs built", "docs"),
                ]),
                RunPlan::new([CallPlan::bash("sleep 0.9; echo packaged")]),
            ],
        },
        SessionPlan {
            tenant: acme,
            session: "notes",
            runs: vec![
                RunPlan::new([
                    CallPlan::write("notes.md", "one herd, many riders\n"),
                    CallPlan::bash("sleep 0.9"),
                    CallPlan::read("notes.md"),
                ]),
                RunPlan::new([CallPlan::noop(700, "looking"), CallPlan::read("no.md")])
                    .expecting(RunState::Failed),
                RunPlan::new([CallPlan::bash("sleep 1.3; echo a failure stops no session")]),
            ],
        },
        SessionPlan {
            tenant: acme,
            session: "deploy",
            runs: vec![
                RunPlan::new([CallPlan::bash(&background_command)]).expecting(RunState::Cancelled),
                RunPlan::new([CallPlan::bash("sleep 0.8; echo nor does a cancel")]),
            ],
        },
        SessionPlan {
            tenant: globex,
            session: "crawl",
            runs: [(700, "page 1"), (1200, "page 2"), (600, "page 3"), (1000, "page 4")]
                .map(|(sleep, page)| RunPlan::new([CallPlan::noop(sleep, page)]))
                .into(),
        },
        SessionPlan {
            tenant: globex,
            session: "report",
            runs: vec![
                RunPlan::new([CallPlan::bash("sleep 1.7; echo numbers gathered")]),
                RunPlan::new([CallPlan::noop(900, "numbers checked")]),
                RunPlan::new([CallPlan::bash("sleep 0.8; echo report written")]),
            ],
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_describe_the_calls() {
        let titles: Vec<String> = plans()[1].runs.iter().map(RunPlan::title).collect();
        assert_eq!(titles[0], "Write notes.md → Bash sleep 0.9 → Read notes.md");
        assert_eq!(titles[1], "noop for 700 ms → Read no.md");
        assert_eq!(plans()[0].runs[1].title(), "lint ∥ tests ∥ docs");
    }

    #[test]
    fn one_run_fails_and_one_is_cancelled() {
        let states: Vec<RunState> =
            plans().iter().flat_map(|plan| &plan.runs).map(|run| run.expected_state).collect();
        for (expected_state, times) in [(RunState::Failed, 1), (RunState::Cancelled, 1)] {
            assert_eq!(states.iter().filter(|state| **state == expected_state).count(), times);
        }
    }
}
