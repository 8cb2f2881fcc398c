//! Reading a workspace's memory: a file that is told as a whole, and others of which the names are.

use std::path::Path;

use crate::{
    files::is_inside,
    memory::{Memory, MemoryFile},
    report::Place,
    settings::MemorySettings,
    source::Source,
    text::{Fields, Position, Text},
};

/// Files that agents are told of.
const MAX_FILES: usize = 100;
/// What is read of each to find its first line.
const MAX_HEAD: u64 = 2048;
const MAX_SUMMARY: usize = 160;

/// The settings. Those that are wrong in any way switch it off.
pub(super) fn settings(fields: &Fields<'_>) -> MemorySettings {
    let mut settings = MemorySettings::default();
    let enabled = fields.boolean("enabled").unwrap_or(false);
    let mut usable = true;
    let mut path = |key: &'static str, into: &mut String| {
        let Some(given) = fields.text(key) else { return };
        let inside = is_inside(&given.text) && !given.text.chars().any(char::is_control);
        if inside {
            *into = without_end(&given);
        } else {
            let message = format!("{}: {} is no path within the workspace", fields.name(key), given.shown());
            fields.place.error(given.at, message);
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

fn without_end(path: &Text) -> String {
    path.text.trim_end_matches('/').to_owned()
}

/// What there is; nothing unless it is switched on.
pub(crate) fn read(source: Source<'_>, settings: &MemorySettings) -> Option<Memory> {
    if !settings.enabled {
        return None;
    }
    let mut memory =
        Memory { file: settings.file.clone(), directory: settings.directory.clone(), ..Memory::default() };
    let place = Place::new(source.report, &settings.file);
    let limit = u64::from(settings.max_bytes);
    let contents = source.take(source.files.read_some(Path::new(&settings.file), limit), &place).flatten();
    if let Some(contents) = contents {
        if contents.cut {
            let message = format!("is larger than memory.max_bytes ({limit}): the rest is left off");
            place.warn(Position::FILE, message);
        }
        memory.cut = contents.cut;
        let text = contents.text.trim();
        memory.text = (!text.is_empty()).then(|| text.to_owned());
    }
    list(source, &mut memory);
    Some(memory)
}

fn list(source: Source<'_>, memory: &mut Memory) {
    let place = Place::new(source.report, &memory.directory);
    let listed = source.take(source.files.list(Path::new(&memory.directory)), &place).flatten();
    // Names go into a prompt, where a line break would look like another file.
    let usable = |name: &String| {
        let strange = |c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER;
        name.ends_with(".md") && !name.contains(strange)
    };
    let names: Vec<String> = listed.unwrap_or_default().into_iter().filter(usable).collect();
    memory.left_off = names.len().saturating_sub(MAX_FILES);
    for name in names.into_iter().take(MAX_FILES) {
        let path = Path::new(&memory.directory).join(&name);
        let shown = source.files.shown(&path);
        let place = Place::new(source.report, &shown);
        let head = source.take(source.files.read_some(&path, MAX_HEAD), &place).flatten();
        if let Some(head) = head {
            memory.files.push(MemoryFile { name, summary: summary(&head.text) });
        }
    }
}

/// The first line that says something, as text of one line.
fn summary(text: &str) -> String {
    let plain = |line: &str| line.trim_start_matches('#').trim().to_owned();
    let line = text.lines().map(plain).find(|line| !line.is_empty() && line != "---").unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(MAX_SUMMARY).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_says_what_a_file_is_about() {
        assert_eq!(summary("\n\n# How to release\n\nText.\n"), "How to release");
        assert_eq!(summary("---\nname: x\n---\n"), "name: x");
        assert_eq!(summary(""), "");
        assert_eq!(summary(&"x".repeat(1000)).len(), MAX_SUMMARY);
    }
}
