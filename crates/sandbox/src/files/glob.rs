//! Finds files by name.
//!
//! By default a pattern matches neither `.git`, nor hidden files, nor files that `.gitignore` excludes. A
//! pattern includes them by naming them: a component that is a plain name (`target/**`, `**/build.log`), or
//! one that begins with a dot (`.github/*`, `**/.env*`), finds what it names. `.git` is never entered.

use std::{ffi::OsStr, ops::ControlFlow, path::Path};

use globset::{GlobBuilder, GlobMatcher};
use remuda_domain::error::{Error, Result};

use super::{
    ignore_rules::IgnoreVerdict,
    newest_files::NewestFiles,
    root::Root,
    search_limits::SearchLimits,
    walk::{DirectoryWalk, SearchStart, Visitor, WalkEntry},
};
use crate::{
    path::display_safe,
    search_query::{GlobQuery, GlobResult, MAX_RESULT_BYTES},
};

/// Longer patterns are rejected.
const MAX_PATTERN_BYTES: usize = 1024;
const MAX_PATHS: usize = 10_000;

pub(super) fn search(root: &Root, query: &GlobQuery, limits: &SearchLimits) -> Result<GlobResult> {
    let pattern = Pattern::parse(&query.pattern)?;
    let start = match SearchStart::at(root, &query.path)? {
        SearchStart::Directory(start) => start,
        SearchStart::File(_) => {
            return Err(Error::invalid("path", format!("{} is not a directory", display_safe(&query.path))));
        }
    };
    let newest = NewestFiles::new(query.limit.min(MAX_PATHS));
    let mut matches = GlobVisitor { start: &start, pattern, newest, limits };
    DirectoryWalk::new(root, limits, &mut matches).run(&start);
    let (total, mut bytes) = (matches.newest.total, 0);
    let paths = matches.newest.into_paths().take_while(|path| {
        bytes += path.len();
        bytes <= MAX_RESULT_BYTES
    });
    Ok(GlobResult { paths: paths.collect(), total, incomplete: limits.reached() })
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

/// A pattern as a whole and split into its components.
struct Pattern {
    whole: GlobMatcher,
    components: Vec<Component>,
}

enum Component {
    /// `**`: any number of directories.
    Any,
    Plain(String),
    /// Begins with a dot.
    Hidden(GlobMatcher),
    Other,
}

impl Pattern {
    fn parse(text: &str) -> Result<Self> {
        let whole = compile("pattern", text)?;
        let text = text.trim_start_matches("./");
        if text.starts_with('/') || text.split('/').any(|component| component == "..") {
            return Err(Error::invalid("pattern", "expected a pattern beneath `path`, without `..`"));
        }
        // Alternatives that span directories cannot be split into components.
        if has_slash_in_braces(text) {
            return Ok(Self { whole, components: vec![Component::Any] });
        }
        let mut components: Vec<&str> =
            text.split('/').filter(|component| !component.is_empty() && *component != ".").collect();
        // `**/**` is equivalent to `**`, but more expensive.
        components.dedup_by(|component, before| *component == "**" && *before == "**");
        let whole = compile("pattern", &components.join("/")).unwrap_or(whole);
        let components = components.into_iter().map(Component::parse).collect::<Result<_>>()?;
        Ok(Self { whole, components })
    }

    /// Whether a component of the pattern names this entry explicitly, hidden or not.
    fn names_explicitly(&self, name: &OsStr) -> bool {
        self.components.iter().any(|component| match component {
            Component::Plain(plain) => name == plain.as_str(),
            Component::Hidden(glob) => glob.is_match(name),
            Component::Any | Component::Other => false,
        })
    }

    /// Whether a directory of this name at this depth can contain matches.
    fn may_contain_matches(&self, name: &OsStr, depth: usize) -> bool {
        let fixed = self
            .components
            .iter()
            .position(|component| matches!(component, Component::Any))
            .unwrap_or(self.components.len());
        if depth >= fixed {
            return fixed < self.components.len();
        }
        let is_last = depth + 1 == self.components.len();
        !is_last && !matches!(&self.components[depth], Component::Plain(plain) if name != plain.as_str())
    }
}

impl Component {
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

struct GlobVisitor<'a> {
    start: &'a Path,
    pattern: Pattern,
    newest: NewestFiles,
    limits: &'a SearchLimits,
}

impl Visitor for GlobVisitor<'_> {
    fn includes(&self, found: &WalkEntry<'_>, ignored: IgnoreVerdict) -> bool {
        if found.name == ".git" {
            return false;
        }
        let fits = if found.is_directory {
            self.pattern.may_contain_matches(found.name, found.depth)
        } else {
            found.path.strip_prefix(self.start).is_ok_and(|path| self.pattern.whole.is_match(path))
        };
        let left_out = match ignored {
            IgnoreVerdict::Ignored => true,
            IgnoreVerdict::NoRule => found.is_hidden(),
            IgnoreVerdict::Included => false,
        };
        fits && (!left_out || self.pattern.names_explicitly(found.name))
    }

    fn visit(&mut self, found: &WalkEntry<'_>) -> ControlFlow<()> {
        let Some(modified) = found.modified() else { return ControlFlow::Continue(()) };
        if self.newest.add(modified, found.text()) {
            return ControlFlow::Continue(());
        }
        self.limits.mark_reached();
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
    fn star_does_not_cross_directories() {
        assert!(matches("*.rs", "a.rs") && !matches("*.rs", "src/a.rs"));
        for pattern in ["**/*.rs", "./**/*.rs", "**/**/**/*.rs", "{src,tests}/{a,b/c}.rs", "src//a.rs"] {
            assert!(matches(pattern, "src/a.rs"), "{pattern}");
        }
        let many = format!("{}*.rs", "**/".repeat(300));
        assert!(matches(&many, "a.rs") && matches(&many, "a/b/c/d.rs"));
    }

    #[test]
    fn directories_without_possible_matches_are_not_entered() {
        let leads = |pattern: &str, name: &str, depth| {
            Pattern::parse(pattern).unwrap().may_contain_matches(OsStr::new(name), depth)
        };
        assert!(leads("src/**/*.rs", "src", 0) && !leads("src/**/*.rs", "target", 0));
        assert!(leads("src/**/*.rs", "anything", 7));
        assert!(!leads("*.rs", "src", 0) && !leads("*/x", "a", 1) && leads("*/x", "a", 0));
        assert!(leads("{a/b,c}/*", "a", 0) && leads("{a/b,c}/*", "b", 1));
    }

    #[test]
    fn invalid_patterns_are_rejected() {
        for pattern in ["", "[a", "/etc/*", "../*", "a/../../b", "a\0", &"x".repeat(1025), "{a,b"] {
            let error = Pattern::parse(pattern).err().unwrap();
            assert_eq!(error.field(), Some("pattern"), "{pattern:?}");
        }
    }
}
