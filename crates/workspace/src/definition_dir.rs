//! A directory of definitions, with the context needed to read them.

use std::path::{Path, PathBuf};

use remuda_domain::tool::ToolCatalog;

use crate::{
    definition_files::Files,
    environment::{EnvironmentAccess, Owner, VariableSyntax, interpolate},
    parse::{Fault, Node, Position, parse_yaml},
    report::{Report, Reporter},
};

/// Definitions in one directory.
const MAX_DEFINITIONS: usize = 256;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub files: &'a Files<'a>,
    pub environment: &'a EnvironmentAccess,
    /// The tools that definitions may name.
    pub tools: &'a ToolCatalog,
    pub report: &'a Report,
}

impl<'a> Source<'a> {
    pub(crate) fn owner(&self) -> Owner {
        self.files.owner
    }

    /// The paths in a directory that end with `ending`, sorted by name.
    pub(crate) fn list(&self, directory: &Path, ending: &str) -> Vec<PathBuf> {
        let shown = self.files.display_path(directory);
        let reporter = Reporter::for_file(self.report, &shown);
        let names = match self.files.list(directory) {
            Ok(names) => names.unwrap_or_default(),
            Err(fault) => {
                reporter.fault(fault);
                return Vec::new();
            }
        };
        let (names, unreadable): (Vec<String>, Vec<String>) =
            names.into_iter().partition(|name| !name.contains(char::REPLACEMENT_CHARACTER));
        if !unreadable.is_empty() {
            reporter.warn(Position::FILE, "holds files whose names are not UTF-8: they are ignored");
        }
        let mut paths: Vec<PathBuf> =
            names.iter().filter(|name| name.ends_with(ending)).map(|name| directory.join(name)).collect();
        if paths.len() > MAX_DEFINITIONS {
            let message = format!(
                "holds {} definitions: only the first {MAX_DEFINITIONS} by name are used",
                paths.len()
            );
            reporter.error(Position::FILE, message);
            paths.truncate(MAX_DEFINITIONS);
        }
        paths
    }

    /// Reads a file; a failure is reported as the definition's problem.
    pub(crate) fn read(&self, path: &Path, reporter: &Reporter<'_>) -> Option<String> {
        self.ok_or_report(self.files.read(path), reporter).flatten()
    }

    /// The value of a result; an error is reported.
    pub(crate) fn ok_or_report<T>(&self, result: Result<T, Fault>, reporter: &Reporter<'_>) -> Option<T> {
        result.map_err(|fault| reporter.fault(fault)).ok()
    }

    /// Parses a YAML file, before interpolation; `None` if it is missing or empty.
    pub(crate) fn yaml(&self, path: &Path, reporter: &Reporter<'_>) -> Option<Node> {
        let text = self.read(path, reporter)?;
        self.ok_or_report(parse_yaml(&text, 0), reporter).flatten()
    }

    pub(crate) fn interpolate(&self, node: &mut Node, syntax: VariableSyntax, reporter: &Reporter<'_>) {
        interpolate(node, self.environment, self.owner(), syntax, reporter);
    }
}
