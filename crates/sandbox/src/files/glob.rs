//! Files by name.
//!
//! A pattern that does not say otherwise means the files a person would mean: neither `.git` nor hidden files nor those
//! that `.gitignore` leaves out. It says otherwise by naming them: a part of the pattern that is a plain name
//! (`target/**`, `**/build.log`), or one that begins with a dot (`.github/*`, `**/.env*`), finds what it names. `.git`
//! is never looked into.

use std::{ffi::OsStr, ops::ControlFlow, path::Path};

use globset::{GlobBuilder, GlobMatcher};
use remuda_domain::error::{Error, Result};

use super::{
    bounds::Bounds,
    ignored::Ignored,
    newest::Newest,
    root::Root,
    walk::{Found, Start, Visitor, Walk},
};
use crate::{
    path::shown,
    search::{GlobAnswer, GlobQuery, MAX_ANSWER_BYTES},
};

/// A longer pattern is a mistake.
const MAX_PATTERN_BYTES: usize = 1024;
const MAX_PATHS: usize = 10_000;

pub(super) fn search(root: &Root, query: &GlobQuery, bounds: &Bounds) -> Result<GlobAnswer> {
    let pattern = Pattern::parse(&query.pattern)?;
    let start = match Start::at(root, &query.path)? {
        Start::Directory(start) => start,
        Start::File(_) => {
            return Err(Error::invalid("path", format!("{} is not a directory", shown(&query.path))));
        }
    };
    let newest = Newest::new(query.limit.min(MAX_PATHS));
    let mut matches = Matches { start: &start, pattern, newest, bounds };
    Walk::new(root, bounds, &mut matches).run(&start);
    let (total, mut bytes) = (matches.newest.total, 0);
    let paths = matches.newest.into_paths().take_while(|path| {
        bytes += path.len();
        bytes <= MAX_ANSWER_BYTES
    });
    Ok(GlobAnswer { paths: paths.collect(), total, incomplete: bounds.reached() })
}

/// Compiles a pattern for paths, in which `*` stays within a directory.
pub(super) fn compile(field: &str, pattern: &str) -> Result<GlobMatcher> {
    if pattern.is_empty() || pattern.len() > MAX_PATTERN_BYTES || pattern.contains('\0') {
        return Err(Error::invalid(field, format!("expected 1 to {MAX_PATTERN_BYTES} bytes without NUL")));
    }
    let glob = GlobBuilder::new(pattern).literal_separator(true).build();
    let glob = glob.map_err(|error| Error::invalid(field, format!("expected a glob: {}", error.kind())))?;
    Ok(glob.compile_matcher())
}

/// A pattern, as a whole and in its parts.
struct Pattern {
    whole: GlobMatcher,
    parts: Vec<Part>,
}

enum Part {
    /// `**`: any number of directories.
    Any,
    Plain(String),
    /// One that begins with a dot.
    Hidden(GlobMatcher),
    Other,
}

impl Pattern {
    fn parse(text: &str) -> Result<Self> {
        let whole = compile("pattern", text)?;
        let text = text.trim_start_matches("./");
        if text.starts_with('/') || text.split('/').any(|part| part == "..") {
            return Err(Error::invalid("pattern", "expected a pattern beneath `path`, without `..`"));
        }
        // Alternatives that span directories cannot be taken apart.
        if has_slash_in_braces(text) {
            return Ok(Self { whole, parts: vec![Part::Any] });
        }
        let mut parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        // `**/**` says no more than `**`, and costs.
        parts.dedup_by(|part, before| *part == "**" && *before == "**");
        let whole = compile("pattern", &parts.join("/")).unwrap_or(whole);
        let parts = parts.into_iter().map(Part::parse).collect::<Result<_>>()?;
        Ok(Self { whole, parts })
    }

    /// Whether a part of the pattern means this very name, hidden or not.
    fn names(&self, name: &OsStr) -> bool {
        self.parts.iter().any(|part| match part {
            Part::Plain(plain) => name == plain.as_str(),
            Part::Hidden(glob) => glob.is_match(name),
            Part::Any | Part::Other => false,
        })
    }

    /// Whether something that matches can be in a directory of this name at this depth.
    fn leads_into(&self, name: &OsStr, depth: usize) -> bool {
        let fixed = self.parts.iter().position(|part| matches!(part, Part::Any)).unwrap_or(self.parts.len());
        if depth >= fixed {
            return fixed < self.parts.len();
        }
        let is_last = depth + 1 == self.parts.len();
        !is_last && !matches!(&self.parts[depth], Part::Plain(plain) if name != plain.as_str())
    }
}

impl Part {
    fn parse(text: &str) -> Result<Self> {
        Ok(match text {
            "**" => Self::Any,
            _ if !text.contains(['*', '?', '[', '{', '\\']) => Self::Plain(text.to_owned()),
            _ if text.starts_with('.') => Self::Hidden(compile("pattern", text)?),
            _ => Self::Other,
        })
    }
}

fn has_slash_in_braces(text: &str) -> bool {
    let mut depth = 0_usize;
    text.chars().any(|character| {
        match character {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == '/' && depth > 0
    })
}

struct Matches<'a> {
    start: &'a Path,
    pattern: Pattern,
    newest: Newest,
    bounds: &'a Bounds,
}

impl Visitor for Matches<'_> {
    fn wants(&self, found: &Found<'_>, ignored: Ignored) -> bool {
        if found.name == ".git" {
            return false;
        }
        let fits = if found.is_directory {
            self.pattern.leads_into(found.name, found.depth)
        } else {
            found.path.strip_prefix(self.start).is_ok_and(|path| self.pattern.whole.is_match(path))
        };
        let left_out = match ignored {
            Ignored::Yes => true,
            Ignored::No => found.is_hidden(),
            Ignored::Never => false,
        };
        fits && (!left_out || self.pattern.names(found.name))
    }

    fn visit(&mut self, found: &Found<'_>) -> ControlFlow<()> {
        let Some(modified) = found.modified() else { return ControlFlow::Continue(()) };
        if self.newest.add(modified, found.text()) {
            return ControlFlow::Continue(());
        }
        self.bounds.reach();
        ControlFlow::Break(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        Pattern::parse(pattern).unwrap().whole.is_match(path)
    }

    #[test]
    fn stars_stay_within_a_directory() {
        assert!(matches("*.rs", "a.rs") && !matches("*.rs", "src/a.rs"));
        for pattern in ["**/*.rs", "./**/*.rs", "**/**/**/*.rs", "{src,tests}/{a,b/c}.rs", "src//a.rs"] {
            assert!(matches(pattern, "src/a.rs"), "{pattern}");
        }
        let many = format!("{}*.rs", "**/".repeat(300));
        assert!(matches(&many, "a.rs") && matches(&many, "a/b/c/d.rs"));
    }

    #[test]
    fn only_what_can_match_is_walked() {
        let leads = |pattern: &str, name: &str, depth| {
            Pattern::parse(pattern).unwrap().leads_into(OsStr::new(name), depth)
        };
        assert!(leads("src/**/*.rs", "src", 0) && !leads("src/**/*.rs", "target", 0));
        assert!(leads("src/**/*.rs", "anything", 7));
        assert!(!leads("*.rs", "src", 0) && !leads("*/x", "a", 1) && leads("*/x", "a", 0));
        assert!(leads("{a/b,c}/*", "a", 0) && leads("{a/b,c}/*", "b", 1));
    }

    #[test]
    fn bad_patterns_are_refused() {
        for pattern in ["", "[a", "/etc/*", "../*", "a/../../b", "a\0", &"x".repeat(1025), "{a,b"] {
            let error = Pattern::parse(pattern).err().unwrap();
            assert_eq!(error.field(), Some("pattern"), "{pattern:?}");
        }
    }
}
