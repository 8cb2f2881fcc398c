//! What is known about a tool besides how it executes.

use std::borrow::Cow;

use serde_json::Value;

use super::{CallSubject, DisplayFields, Effects, ResultDisplay};
use crate::display::one_line;

/// The facts about a tool that permission rules, workspaces, contexts of agents and screens need.
///
/// Each tool declares its own, in its own file. Besides the code that executes it, nothing matches it by name.
#[derive(Clone, Debug)]
pub struct ToolDescriptor {
    /// As models call it.
    pub name: Cow<'static, str>,
    pub effects: Effects,
    /// The permission that governs it. Several tools may share one.
    pub permission: Cow<'static, str>,
    /// The part of a call that rules decide about.
    pub subject: fn(&Value) -> CallSubject<'_>,
    /// The permission mode `plan` allows it although it is not read-only: it changes no files itself.
    pub allowed_in_plan_mode: bool,
    pub offer: ToolOffer,
    /// It only follows up on calls of another tool, which has the same permission. A rule that names it must not extend
    /// to that tool, and read-only agents have neither.
    pub is_follow_up: bool,
    pub role: Option<ToolRole>,
    /// Its names in agents written for other systems.
    pub foreign_names: &'static [(ForeignFormat, &'static str)],
    /// An agent may repeat the same call with the same result: it waits for a change.
    pub polls: bool,
    pub long_results: LongResults,
    /// The main argument of a call for people; `None` shows all arguments.
    pub headline: fn(DisplayFields<'_>) -> Option<String>,
    /// The output of a completed call for people.
    pub result: fn(DisplayFields<'_>) -> ResultDisplay,
}

/// How agents get a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolOffer {
    /// By the list `tools` of an agent. Without the list, agents have it.
    Listed,
    /// Automatically, if there is something to use it on: skills, or other agents.
    Automatic,
    /// Not at all: only runs without an agent call it.
    Never,
}

/// What other parts of the system rely on a tool for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolRole {
    ReadFiles,
    ReadSkills,
    SwitchAgents,
    Delegate,
}

/// A system whose agent definitions name its own tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignFormat {
    OpenHarness,
    CodingCode,
}

/// What happens to long results in the context of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongResults {
    /// They are stored as files and shortened, and cleared when the context is full.
    Offload,
    /// The same, but they are in a file already.
    InFile,
    /// They stay as they are: the agent needs them all the time.
    Keep,
}

impl ToolDescriptor {
    /// A tool of which only name and effects are known, such as one of a tool server. Its permission is its name.
    pub fn new(name: impl Into<Cow<'static, str>>, effects: Effects) -> Self {
        let name = name.into();
        Self {
            permission: name.clone(),
            name,
            effects,
            subject: |_| CallSubject::Unknown,
            allowed_in_plan_mode: false,
            offer: ToolOffer::Listed,
            is_follow_up: false,
            role: None,
            foreign_names: &[],
            polls: false,
            long_results: LongResults::Offload,
            headline: |_| None,
            result: |_| ResultDisplay::default(),
        }
    }

    /// The fallback for a tool that the process does not know, such as one of a newer server.
    #[must_use]
    pub fn unknown(name: &str) -> Self {
        Self::new(name.to_owned(), Effects::Mutating)
    }

    /// Whether a call changes no files, whatever its arguments.
    #[must_use]
    pub fn changes_no_files(&self) -> bool {
        self.effects == Effects::ReadOnly || self.allowed_in_plan_mode
    }

    /// A call in one line of any length, sanitized; empty if it has no arguments.
    #[must_use]
    pub fn headline(&self, arguments: &Value) -> String {
        (self.headline)(DisplayFields(arguments)).unwrap_or_else(|| all_arguments(arguments))
    }

    /// The output of a completed call, sanitized.
    #[must_use]
    pub fn result(&self, output: &Value) -> ResultDisplay {
        (self.result)(DisplayFields(output))
    }
}

/// All arguments as `key=value`.
fn all_arguments(arguments: &Value) -> String {
    let Value::Object(fields) = arguments else { return String::new() };
    let word = |(name, value): (&String, &Value)| match value {
        Value::String(text) => format!("{}={}", one_line(name), one_line(text)),
        value => format!("{}={}", one_line(name), one_line(&value.to_string())),
    };
    fields.iter().map(word).collect::<Vec<_>>().join(" ")
}
