//! Skills: directories with a `SKILL.md`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::{
    definitions::Skill,
    environment::Notation,
    files::is_inside,
    report::Place,
    source::Source,
    text::{Fields, Position, Style, Text, is_name, split},
};

pub(crate) type Skills = BTreeMap<String, Skill>;

/// Adds the skills of the directories which a workspace names.
pub(crate) fn read_named(source: Source<'_>, file: &str, directories: &[Text], skills: &mut Skills) {
    let place = Place::new(source.report, file);
    for directory in directories {
        if !is_inside(&directory.text) {
            let message = format!("skill_dirs: {} is no path within the workspace", directory.shown());
            place.error(directory.at, message);
            continue;
        }
        match source.files.list(Path::new(&directory.text)) {
            Ok(Some(_)) => read(source, Path::new(&directory.text), skills),
            Ok(None) => {
                place.warn(directory.at, format!("skill_dirs: {} does not exist", directory.shown()));
            }
            Err(fault) => {
                let message = format!("skill_dirs: {} {}", directory.shown(), fault.message);
                place.error(directory.at, message);
            }
        }
    }
}

/// Adds the skills of a directory, except those that are there already.
pub(crate) fn read(source: Source<'_>, directory: &Path, skills: &mut Skills) {
    // By name in small letters, in this directory.
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    for folder in source.list(directory, "") {
        let path = folder.join("SKILL.md");
        let shown = source.files.shown(&path);
        let stem = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let place = Place::of(source.report, &shown, stem.clone());
        let Some(text) = source.read(&path, &place) else { continue };
        let Some(skill) = skill(source, &folder, &stem, &text, &place) else { continue };
        if let Some(twin) = names.get(&skill.name.to_lowercase()) {
            place.error(Position::FILE, format!("the skill `{}` is defined already, in {twin}", skill.name));
            continue;
        }
        names.insert(skill.name.to_lowercase(), shown.clone());
        skills.entry(skill.name.clone()).or_insert(skill);
    }
}

fn skill(source: Source<'_>, folder: &Path, stem: &str, text: &str, place: &Place<'_>) -> Option<Skill> {
    let mut document = source.take(split(text, Style::Lenient), place)?;
    if let Some(head) = &mut document.head {
        source.interpolate(head, Notation::Ours, place);
    }
    let fields = match &document.head {
        Some(head) => Fields::of(head, "frontmatter", place)?,
        None => Fields::none(place),
    };
    let name = fields.text("name");
    let description = fields.text("description").map(|text| text.text);
    // Known, and of no use here.
    for key in ["license", "compatibility", "metadata", "allowed-tools", "version"] {
        let _ = fields.get(key);
    }
    fields.finish();
    let (name, at) = name.map_or((stem.to_owned(), Position::FILE), |name| (name.text, name.at));
    if !is_name(&name) {
        place.error(at, "name: expected letters, digits, `.`, `_` and `-`, at most 64 characters");
    }
    if document.body.is_empty() {
        place.error(Position::FILE, "says nothing: expected text after the frontmatter");
    }
    let first_line =
        || document.body.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    let description = description.or_else(|| first_line().map(str::to_owned)).unwrap_or_default();
    let (root, directory) = (source.files.absolute(Path::new("")), source.files.absolute(folder));
    (!place.failed()).then_some(Skill { name, description, root, directory, body: document.body })
}

/// Where a workspace has its own.
pub(crate) fn own_directory() -> PathBuf {
    PathBuf::from(".openharness/skills")
}
