//! How people see the result of a tool call.

use serde_json::Value;

use crate::display::{counted, one_line};

/// The output of a completed call for people. Screens add style, duration and limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResultDisplay {
    /// The parts of the first line.
    pub summary: Vec<String>,
    /// The first line needs attention: the call completed, but what it did failed.
    pub warns: bool,
    pub body: ResultBody,
}

/// The lines below the first one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ResultBody {
    /// The whole output: its main text, or JSON.
    #[default]
    Output,
    /// The same, but only where everything is shown: only the agent needs it.
    OutputIfFull,
    Nothing,
    Lines(Vec<String>),
    /// A unified diff, not sanitized.
    Diff(String),
    /// Lines that are shown completely, each with its emphasis.
    Checklist(Vec<(Emphasis, String)>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emphasis {
    Strong,
    Normal,
    Weak,
}

impl ResultDisplay {
    /// Parts that are missing or empty are left out.
    pub fn new(summary: impl IntoIterator<Item = Option<String>>, body: ResultBody) -> Self {
        let summary = summary.into_iter().flatten().filter(|part| !part.is_empty()).collect();
        Self { summary, warns: false, body }
    }
}

/// Reads fields of arguments or results for people: sanitized, each on one line.
#[derive(Clone, Copy, Debug)]
pub struct DisplayFields<'a>(pub &'a Value);

impl<'a> DisplayFields<'a> {
    /// A nonempty text.
    #[must_use]
    pub fn text(self, name: &str) -> Option<String> {
        self.0[name].as_str().map(one_line).filter(|text| !text.is_empty())
    }

    /// A number with its noun.
    #[must_use]
    pub fn count(self, name: &str, what: &str) -> Option<String> {
        self.0[name].as_u64().map(|count| counted(usize::try_from(count).unwrap_or(usize::MAX), what))
    }

    /// The length of a list with its noun.
    #[must_use]
    pub fn length(self, name: &str, what: &str) -> Option<String> {
        self.list(name).map(|list| counted(list.len(), what))
    }

    #[must_use]
    pub fn list(self, name: &str) -> Option<&'a [Value]> {
        self.0[name].as_array().map(Vec::as_slice)
    }

    /// The items of a list, each as a line; the whole output if there is no such list.
    #[must_use]
    pub fn lines(self, name: &str, line: impl Fn(&Value) -> String) -> ResultBody {
        let lines = |list: &[Value]| list.iter().map(|item| one_line(&line(item))).collect();
        self.list(name).map_or(ResultBody::Output, |list| ResultBody::Lines(lines(list)))
    }

    #[must_use]
    pub fn is_set(self, name: &str) -> bool {
        self.0[name].as_bool().unwrap_or_default()
    }

    /// `cut` if the output is truncated.
    #[must_use]
    pub fn cut(self) -> Option<String> {
        self.is_set("truncated").then(|| "cut".to_owned())
    }
}
