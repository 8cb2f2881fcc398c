//! The memory of a workspace: notes that agents keep from one session to the next.
//!
//! Agents write the notes with their file tools. The system prompt of the next run includes them.

use serde::{Deserialize, Serialize};

/// The memory of a workspace, as far as it is part of prompts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// The main file, relative to the workspace.
    pub file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Whether `text` is only the beginning of the file.
    #[serde(rename = "cut", skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// The directory of the other files, relative to the workspace.
    pub directory: String,
    /// The first files of the directory by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<MemoryFile>,
    /// The number of files that are not listed.
    #[serde(rename = "left_off", skip_serializing_if = "is_zero")]
    pub omitted: usize,
}

/// A file that agents can read when they need it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryFile {
    pub name: String,
    /// Its first nonempty line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl Memory {
    /// The segment of the system prompt. `reader` is the tool by which the agent reads files, if it has one.
    pub(crate) fn prompt_segment(&self, reader: Option<&str>) -> Option<String> {
        if self.text.is_none() && self.files.is_empty() {
            return None;
        }
        let mut parts = Vec::new();
        if let Some(text) = &self.text {
            parts.push(format!("<file name=\"{}\">\n{text}\n</file>", self.file));
            if self.truncated {
                let rest =
                    reader.map(|tool| format!(": read the rest with the tool {tool}")).unwrap_or_default();
                parts.push(format!("Only the beginning of {} is shown here{rest}.", self.file));
            }
        }
        if !self.files.is_empty() {
            let how = reader.map(|tool| format!(". Read them with the tool {tool} when they matter"));
            let how = how.unwrap_or_default();
            parts.push(format!("There are more files in {}{how}:", self.directory));
            parts.extend(self.files.iter().map(MemoryFile::line));
            if self.omitted > 0 {
                parts.push(format!("({} more are not listed)", self.omitted));
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
