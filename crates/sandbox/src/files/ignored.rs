//! What `.gitignore` and its like leave out.
//!
//! As ripgrep has it: `.rgignore` is asked first, then `.ignore`, `.gitignore` and `.git/info/exclude`; of each, the
//! one in the nearest directory first. Two things differ. What lies above the workspace is never looked at, so a
//! `.gitignore` counts whether or not a repository is seen around it; and the user's own rules do not exist here.

use std::{fs::File, io::Read, path::Path};

use ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};

use super::root::{READ, Root};

/// The rest of a longer file is not read.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// What the rules say about a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ignored {
    Yes,
    /// Nothing is said.
    No,
    /// It is wanted, by a rule with `!`, also if it is hidden.
    Never,
}

/// The rules of a directory and of those above it.
#[derive(Debug, Default)]
pub(super) struct Rules(Vec<Level>);

#[derive(Debug)]
struct Level {
    /// In the order in which they are asked; those from [`GIT`] on are git's.
    files: [Gitignore; 4],
    /// A repository begins here: git's rules from above do not apply.
    is_repository: bool,
}

const FILES: [&str; 4] = [".rgignore", ".ignore", ".gitignore", ".git/info/exclude"];
const GIT: usize = 2;

impl Rules {
    pub(super) fn enter(&mut self, root: &Root, directory: &Path) {
        let files = FILES.map(|name| read(root, directory, name).unwrap_or_else(Gitignore::empty));
        let is_repository = root.open_exactly(&directory.join(".git"), nix::fcntl::OFlag::O_PATH).is_ok();
        self.0.push(Level { files, is_repository });
    }

    pub(super) fn leave(&mut self) {
        self.0.pop();
    }

    /// What the rules say about a path from the workspace on, whose directory was entered last.
    pub(super) fn judge(&self, path: &Path, is_directory: bool) -> Ignored {
        for file in 0..FILES.len() {
            for level in self.0.iter().rev() {
                match level.files[file].matched(path, is_directory) {
                    Match::Ignore(_) => return Ignored::Yes,
                    Match::Whitelist(_) => return Ignored::Never,
                    Match::None if file >= GIT && level.is_repository => break,
                    Match::None => {}
                }
            }
        }
        Ignored::No
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
        // A line that makes no sense is no rule, as with git.
        let _skipped = builder.add_line(None, line).is_err();
    }
    builder.build().ok()
}
