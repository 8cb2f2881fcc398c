//! Parses skills: directories with a `SKILL.md`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::{
    definition_dir::Source,
    definition_files::is_descendant_path,
    definitions::Skill,
    environment::VariableSyntax,
    parse::{Fields, FrontmatterStyle, LocatedText, Position, is_name, split_frontmatter},
    report::Reporter,
};

pub(crate) type Skills = BTreeMap<String, Skill>;

/// Adds the skills of the directories in the workspace's settings.
pub(crate) fn read_configured(
    source: Source<'_>,
    file: &str,
    directories: &[LocatedText],
    skills: &mut Skills,
) {
    let reporter = Reporter::for_file(source.report, file);
    for directory in directories {
        if !is_descendant_path(&directory.text) {
            let message = format!("skill_dirs: {} is not a path inside the workspace", directory.display());
            reporter.error(directory.at, message);
            continue;
        }
        match source.files.list(Path::new(&directory.text)) {
            Ok(Some(_)) => read(source, Path::new(&directory.text), skills),
            Ok(None) => {
                reporter.warn(directory.at, format!("skill_dirs: {} does not exist", directory.display()));
            }
            Err(fault) => {
                let message = format!("skill_dirs: {} {}", directory.display(), fault.message);
                reporter.error(directory.at, message);
            }
        }
    }
}

/// Adds the skills of a directory. A skill that is defined already stays.
pub(crate) fn read(source: Source<'_>, directory: &Path, skills: &mut Skills) {
    // Lowercase name to file, within this directory.
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    for folder in source.list(directory, "") {
        let path = folder.join("SKILL.md");
        let shown = source.files.display_path(&path);
        let stem = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let reporter = Reporter::for_definition(source.report, &shown, stem.clone());
        let Some(text) = source.read(&path, &reporter) else { continue };
        let Some(skill) = skill(source, &folder, &stem, &text, &reporter) else { continue };
        if let Some(twin) = names.get(&skill.name.to_lowercase()) {
            reporter
                .error(Position::FILE, format!("the skill `{}` is defined already, in {twin}", skill.name));
            continue;
        }
        names.insert(skill.name.to_lowercase(), shown.clone());
        skills.entry(skill.name.clone()).or_insert(skill);
    }
}

fn skill(
    source: Source<'_>,
    folder: &Path,
    stem: &str,
    text: &str,
    reporter: &Reporter<'_>,
) -> Option<Skill> {
    let mut document = source.ok_or_report(split_frontmatter(text, FrontmatterStyle::Lenient), reporter)?;
    if let Some(head) = &mut document.head {
        source.interpolate(head, VariableSyntax::Native, reporter);
    }
    let fields = match &document.head {
        Some(head) => Fields::from_node(head, "frontmatter", reporter)?,
        None => Fields::empty(reporter),
    };
    let name = fields.text("name");
    let description = fields.text("description").map(|text| text.text);
    // Catalog keys that are not used here.
    for key in ["license", "compatibility", "metadata", "allowed-tools", "version"] {
        let _ = fields.get(key);
    }
    fields.finish();
    let (name, at) = name.map_or((stem.to_owned(), Position::FILE), |name| (name.text, name.at));
    if !is_name(&name) {
        reporter.error(at, "name: expected letters, digits, `.`, `_` and `-`, at most 64 characters");
    }
    if document.body.is_empty() {
        reporter.error(Position::FILE, "is empty: expected text after the frontmatter");
    }
    let first_line =
        || document.body.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    let description = description.or_else(|| first_line().map(str::to_owned)).unwrap_or_default();
    let (root, directory) = (source.files.absolute(Path::new("")), source.files.absolute(folder));
    (!reporter.failed()).then_some(Skill { name, description, root, directory, body: document.body })
}

/// The directory of a workspace's own skills.
pub(crate) fn own_directory() -> PathBuf {
    PathBuf::from(".openharness/skills")
}
