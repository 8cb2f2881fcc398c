//! What the demo plays: which tenants, sessions and runs, and how each run is meant to end.

use remuda_domain::RunState;
use remuda_proto::v1;
use serde_json::{Value, json};

pub(super) const TENANTS: [&str; 2] = ["acme", "globex"];

/// Where the run that gets cancelled writes the ids of its processes.
pub(super) const PID_FILE: &str = "deploy.pid";

/// One session with its runs, in the order in which they are submitted.
#[derive(Debug)]
pub(super) struct Scene {
    pub tenant: &'static str,
    pub session: &'static str,
    pub runs: Vec<Act>,
}

impl Scene {
    pub(super) fn title(&self) -> String {
        format!("{}/{}", self.tenant, self.session)
    }
}

/// One run.
#[derive(Debug)]
pub(super) struct Act {
    pub calls: Vec<Call>,
    pub fate: RunState,
}

#[derive(Debug)]
pub(super) struct Call {
    /// Names the call where it runs beside others.
    pub name: Option<&'static str>,
    pub tool: &'static str,
    pub arguments: Value,
}

impl Act {
    fn new<const N: usize>(calls: [Call; N]) -> Self {
        Self { calls: calls.into(), fate: RunState::Completed }
    }

    fn ending(self, fate: RunState) -> Self {
        Self { fate, ..self }
    }

    /// Whether its calls run together.
    pub(super) fn is_parallel(&self) -> bool {
        self.calls.len() > 1 && self.calls.iter().all(|call| call.name.is_some())
    }

    /// What the run does, for people.
    pub(super) fn title(&self) -> String {
        let separator = if self.is_parallel() { " ∥ " } else { " → " };
        self.calls.iter().map(Call::title).collect::<Vec<_>>().join(separator)
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

impl Call {
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

    fn beside(self, name: &'static str) -> Self {
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
pub(super) fn scenes() -> Vec<Scene> {
    let [acme, globex] = TENANTS;
    let beside = |command: &str, name| Call::bash(command).beside(name);
    let long = format!("sleep 300 & echo $! $$ > {PID_FILE}; wait");
    vec![
        Scene {
            tenant: acme,
            session: "build",
            runs: vec![
                Act::new([Call::bash("sleep 1; echo compiled")]),
                Act::new([
                    beside("sleep 1.5; echo lint is clean", "lint"),
                    beside("sleep 2.1; echo tests pass", "tests"),
                    beside("sleep 1.1; echo docs built", "docs"),
                ]),
                Act::new([Call::bash("sleep 0.9; echo packaged")]),
            ],
        },
        Scene {
            tenant: acme,
            session: "notes",
            runs: vec![
                Act::new([
                    Call::write("notes.md", "one herd, many riders\n"),
                    Call::bash("sleep 0.9"),
                    Call::read("notes.md"),
                ]),
                Act::new([Call::noop(700, "looking"), Call::read("no.md")]).ending(RunState::Failed),
                Act::new([Call::bash("sleep 1.3; echo a failure stops no session")]),
            ],
        },
        Scene {
            tenant: acme,
            session: "deploy",
            runs: vec![
                Act::new([Call::bash(&long)]).ending(RunState::Cancelled),
                Act::new([Call::bash("sleep 0.8; echo nor does a cancel")]),
            ],
        },
        Scene {
            tenant: globex,
            session: "crawl",
            runs: [(700, "page 1"), (1200, "page 2"), (600, "page 3"), (1000, "page 4")]
                .map(|(sleep, page)| Act::new([Call::noop(sleep, page)]))
                .into(),
        },
        Scene {
            tenant: globex,
            session: "report",
            runs: vec![
                Act::new([Call::bash("sleep 1.7; echo numbers gathered")]),
                Act::new([Call::noop(900, "numbers checked")]),
                Act::new([Call::bash("sleep 0.8; echo report written")]),
            ],
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_say_what_is_done() {
        let titles: Vec<String> = scenes()[1].runs.iter().map(Act::title).collect();
        assert_eq!(titles[0], "Write notes.md → Bash sleep 0.9 → Read notes.md");
        assert_eq!(titles[1], "noop for 700 ms → Read no.md");
        assert_eq!(scenes()[0].runs[1].title(), "lint ∥ tests ∥ docs");
    }

    #[test]
    fn every_kind_of_end_is_shown() {
        let fates: Vec<RunState> =
            scenes().iter().flat_map(|scene| &scene.runs).map(|run| run.fate).collect();
        for (fate, times) in [(RunState::Failed, 1), (RunState::Cancelled, 1)] {
            assert_eq!(fates.iter().filter(|one| **one == fate).count(), times);
        }
    }
}
