//! What agents of a workspace remember from one session to the next.
//!
//! They write it themselves, with the tools that they have for files. The next run is told of it.

use serde::{Deserialize, Serialize};

/// What is told of a workspace's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Where the text comes from, as seen from the workspace's root.
    pub file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Whether only the beginning of the file is there.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Where the files are, as seen from the workspace's root.
    pub directory: String,
    /// By name, the first of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<MemoryFile>,
    /// Files that are not listed.
    #[serde(skip_serializing_if = "is_zero")]
    pub left_off: usize,
}

/// A file that agents can read when it matters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryFile {
    pub name: String,
    /// Its first line that says something.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl Memory {
    /// The part of the system prompt, for an agent that can or cannot read files.
    pub(crate) fn told(&self, reads: bool) -> Option<String> {
        if self.text.is_none() && self.files.is_empty() {
            return None;
        }
        let mut parts = Vec::new();
        if let Some(text) = &self.text {
            parts.push(format!("<file name=\"{}\">\n{text}\n</file>", self.file));
            if self.cut {
                let rest = if reads { ": read the rest with the tool Read" } else { "" };
                parts.push(format!("Only the beginning of {} is shown here{rest}.", self.file));
            }
        }
        if !self.files.is_empty() {
            let how = if reads { ". Read them with the tool Read when they matter" } else { "" };
            parts.push(format!("There are more files in {}{how}:", self.directory));
            parts.extend(self.files.iter().map(MemoryFile::line));
            if self.left_off > 0 {
                parts.push(format!("({} more are not listed)", self.left_off));
            }
        }
        Some(format!("<memory>\nWhat was remembered from earlier sessions.\n{}\n</memory>", parts.join("\n")))
    }
}

impl MemoryFile {
    fn line(&self) -> String {
        if self.summary.is_empty() {
            format!("- {}", self.name)
        } else {
            format!("- {} — {}", self.name, self.summary)
        }
    }
}
