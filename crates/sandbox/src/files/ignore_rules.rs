//! Ignore rules of `.gitignore` and similar files.
//!
//! Same precedence as ripgrep: `.rgignore` first, then `.ignore`, `.gitignore` and `.git/info/exclude`; of
//! each, the file in the nearest directory first. Two differences: files above the workspace are never read,
//! so a `.gitignore` counts whether or not a repository surrounds it; and the user's global rules do not
//! apply.

use std::{fs::File, io::Read, path::Path};

use ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};

use super::root::{READ, Root};

/// A longer file is read up to this size.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// Verdict of the rules on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IgnoreVerdict {
    Ignored,
    /// No rule matches.
    NoRule,
    /// Included by a rule with `!`, even if hidden.
    Included,
}

/// The rules of a directory and of its parents.
#[derive(Debug, Default)]
pub(super) struct IgnoreRules(Vec<DirectoryRules>);

#[derive(Debug)]
struct DirectoryRules {
    /// In order of precedence; those from [`GIT`] on are git's.
    files: [Gitignore; 4],
    /// A repository starts here: git's rules of parent directories do not apply.
    is_repository: bool,
}

const FILES: [&str; 4] = [".rgignore", ".ignore", ".gitignore", ".git/info/exclude"];
const GIT: usize = 2;

impl IgnoreRules {
    pub(super) fn enter(&mut self, root: &Root, directory: &Path) {
        let files = FILES.map(|name| read(root, directory, name).unwrap_or_else(Gitignore::empty));
        let is_repository = root.open_exactly(&directory.join(".git"), nix::fcntl::OFlag::O_PATH).is_ok();
        self.0.push(DirectoryRules { files, is_repository });
    }

    pub(super) fn leave(&mut self) {
        self.0.pop();
    }

    /// Evaluates the rules for a path relative to the workspace. Its directory must be the last one entered.
    pub(super) fn verdict(&self, path: &Path, is_directory: bool) -> IgnoreVerdict {
        for file in 0..FILES.len() {
            for level in self.0.iter().rev() {
                match level.files[file].matched(path, is_directory) {
                    Match::Ignore(_) => return IgnoreVerdict::Ignored,
                    Match::Whitelist(_) => return IgnoreVerdict::Included,
                    Match::None if file >= GIT && level.is_repository => break,
                    Match::None => {}
                }
            }
        }
        IgnoreVerdict::NoRule
    }
}

fn read(root: &Root, directory: &Path, name: &str) -> Option<Gitignore> {
    let file = File::from(root.open_exactly(&directory.join(name), READ).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    let mut builder = GitignoreBuilder::new(directory);
    for line in String::from_utf8_lossy(&bytes).trim_start_matches('\u{feff}').lines() {
        // Invalid lines are skipped, as git does.
        let _skipped = builder.add_line(None, line).is_err();
    }
    builder.build().ok()
}
