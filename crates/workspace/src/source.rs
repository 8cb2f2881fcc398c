//! One directory of definitions, with what it takes to read them.

use std::path::{Path, PathBuf};

use crate::{
    environment::{EnvironmentAccess, Notation, Owner, interpolate},
    files::Files,
    report::{Place, Report},
    text::{Fault, Node, Position, parse_yaml},
};

/// Definitions of one kind.
const MAX_DEFINITIONS: usize = 256;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub files: &'a Files<'a>,
    pub environment: &'a EnvironmentAccess,
    pub report: &'a Report,
}

impl<'a> Source<'a> {
    pub(crate) fn owner(&self) -> Owner {
        self.files.owner
    }

    /// The definitions in a directory, in order.
    pub(crate) fn list(&self, directory: &Path, ending: &str) -> Vec<PathBuf> {
        let shown = self.files.shown(directory);
        let place = Place::new(self.report, &shown);
        let names = match self.files.list(directory) {
            Ok(names) => names.unwrap_or_default(),
            Err(fault) => {
                place.fault(fault);
                return Vec::new();
            }
        };
        let (names, unreadable): (Vec<String>, Vec<String>) =
            names.into_iter().partition(|name| !name.contains(char::REPLACEMENT_CHARACTER));
        if !unreadable.is_empty() {
            place.warn(Position::FILE, "holds files whose names are not UTF-8: they are ignored");
        }
        let mut paths: Vec<PathBuf> =
            names.iter().filter(|name| name.ends_with(ending)).map(|name| directory.join(name)).collect();
        if paths.len() > MAX_DEFINITIONS {
            let message = format!(
                "holds {} definitions: only the first {MAX_DEFINITIONS} by name are used",
                paths.len()
            );
            place.error(Position::FILE, message);
            paths.truncate(MAX_DEFINITIONS);
        }
        paths
    }

    /// The text of a file. What cannot be read is the definition's problem.
    pub(crate) fn read(&self, path: &Path, place: &Place<'_>) -> Option<String> {
        self.take(self.files.read(path), place).flatten()
    }

    pub(crate) fn take<T>(&self, result: Result<T, Fault>, place: &Place<'_>) -> Option<T> {
        result.map_err(|fault| place.fault(fault)).ok()
    }

    /// The tree of a YAML file, without its variables; `None` if there is none, or nothing in it.
    pub(crate) fn yaml(&self, path: &Path, place: &Place<'_>) -> Option<Node> {
        let text = self.read(path, place)?;
        self.take(parse_yaml(&text, 0), place).flatten()
    }

    pub(crate) fn interpolate(&self, node: &mut Node, notation: Notation, place: &Place<'_>) {
        interpolate(node, self.environment, self.owner(), notation, place);
    }
}
