//! Reads a workspace's memory: one file with its text, and the list of the other files.

use std::path::Path;

use crate::{
    definition_dir::Source,
    definition_files::is_descendant_path,
    memory::{Memory, MemoryFile},
    parse::{Fields, LocatedText, Position},
    report::Reporter,
    settings::MemorySettings,
};

/// Files in the list.
const MAX_FILES: usize = 100;
/// Bytes of each file that are read to find its first line.
const MAX_HEAD: u64 = 2048;
const MAX_SUMMARY: usize = 160;

/// Parses the settings. Invalid paths disable memory.
pub(super) fn settings(fields: &Fields<'_>) -> MemorySettings {
    let mut settings = MemorySettings::default();
    let enabled = fields.boolean("enabled").unwrap_or(false);
    let mut usable = true;
    let mut path = |key: &'static str, into: &mut String| {
        let Some(given) = fields.text(key) else { return };
        let inside = is_descendant_path(&given.text) && !given.text.chars().any(char::is_control);
        if inside {
            *into = without_end(&given);
        } else {
            let message =
                format!("{}: {} is not a path inside the workspace", fields.name(key), given.display());
            fields.reporter.error(given.at, message);
            usable = false;
        }
    };
    path("file", &mut settings.file);
    path("directory", &mut settings.directory);
    let max_bytes = fields.integer("max_bytes", 1, MemorySettings::MAX_BYTES);
    settings.max_bytes = max_bytes.unwrap_or(settings.max_bytes);
    fields.finish();
    settings.enabled = enabled && usable;
    settings
}

fn without_end(path: &LocatedText) -> String {
    path.text.trim_end_matches('/').to_owned()
}

/// Reads the memory; `None` unless it is enabled.
pub(crate) fn read(source: Source<'_>, settings: &MemorySettings) -> Option<Memory> {
    if !settings.enabled {
        return None;
    }
    let mut memory =
        Memory { file: settings.file.clone(), directory: settings.directory.clone(), ..Memory::default() };
    let reporter = Reporter::for_file(source.report, &settings.file);
    let limit = u64::from(settings.max_bytes);
    let contents =
        source.ok_or_report(source.files.read_some(Path::new(&settings.file), limit), &reporter).flatten();
    if let Some(contents) = contents {
        if contents.truncated {
            let message = format!("is larger than memory.max_bytes ({limit}): the rest is left off");
            reporter.warn(Position::FILE, message);
        }
        memory.truncated = contents.truncated;
        let text = contents.text.trim();
        memory.text = (!text.is_empty()).then(|| text.to_owned());
    }
    list(source, &mut memory);
    Some(memory)
}

fn list(source: Source<'_>, memory: &mut Memory) {
    let reporter = Reporter::for_file(source.report, &memory.directory);
    let listed = source.ok_or_report(source.files.list(Path::new(&memory.directory)), &reporter).flatten();
    // Names become part of a prompt, where a line break would look like another file.
    let usable = |name: &String| {
        let strange = |c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER;
        name.ends_with(".md") && !name.contains(strange)
    };
    let names: Vec<String> = listed.unwrap_or_default().into_iter().filter(usable).collect();
    memory.omitted = names.len().saturating_sub(MAX_FILES);
    for name in names.into_iter().take(MAX_FILES) {
        let path = Path::new(&memory.directory).join(&name);
        let shown = source.files.display_path(&path);
        let reporter = Reporter::for_file(source.report, &shown);
        let head = source.ok_or_report(source.files.read_some(&path, MAX_HEAD), &reporter).flatten();
        if let Some(head) = head {
            memory.files.push(MemoryFile { name, summary: summary(&head.text) });
        }
    }
}

/// The first nonempty line, without heading marks and control characters.
fn summary(text: &str) -> String {
    let plain = |line: &str| line.trim_start_matches('#').trim().to_owned();
    let line = text.lines().map(plain).find(|line| !line.is_empty() && line != "---").unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(MAX_SUMMARY).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_is_the_first_nonempty_line() {
        assert_eq!(summary("\n\n# How to release\n\nText.\n"), "How to release");
        assert_eq!(summary("---\nname: x\n---\n"), "name: x");
        assert_eq!(summary(""), "");
        assert_eq!(summary(&"x".repeat(1000)).len(), MAX_SUMMARY);
    }
}
