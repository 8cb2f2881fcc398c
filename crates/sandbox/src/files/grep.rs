//! Finds matching lines, built on ripgrep's libraries.
//!
//! Files are opened beneath the workspace, never by an unchecked path. Binary files (with a NUL byte) and
//! lines above the length limit are omitted; UTF-16 with a byte order mark is decoded.

use std::{ops::ControlFlow, path::Path};

use grep_regex::{ErrorKind, RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder};
use ignore::{
    Match,
    overrides::{Override, OverrideBuilder},
    types::{Types, TypesBuilder},
};
use remuda_domain::error::{Error, Result};

use super::{
    glob,
    grep_matches::{FileSink, MatchCollector},
    ignore_rules::IgnoreVerdict,
    newest_files::NewestFiles,
    root::Root,
    search_limits::{BoundedReader, SearchLimits},
    walk::{DirectoryWalk, SearchStart, Visitor, WalkEntry},
};
use crate::search_query::{GrepMatch, GrepMode, GrepQuery, GrepResult};

const MAX_PATTERN_BYTES: usize = 8 * 1024;
/// Pairs of the maximum size of a compiled pattern and the maximum line length it is tried on.
///
/// A match cannot be interrupted, and in the worst case takes as many steps as the product of both: about ten
/// seconds for each pair. Most patterns fit into the first or, with Unicode classes like `\w`, the second.
const EFFORTS: [(usize, usize); 4] =
    [(16 << 10, 4 << 20), (128 << 10, 1 << 20), (512 << 10, 256 << 10), (2 << 20, 64 << 10)];
/// With multiline patterns the whole file counts as one line, and may be longer than one.
const MULTILINE_FACTOR: usize = 2;
/// Cache size of a pattern's automaton during a search.
const MAX_CACHE_BYTES: usize = 8 * 1024 * 1024;
const MAX_CONTEXT_LINES: usize = 1000;

pub(super) fn search(root: &Root, query: &GrepQuery, limits: &SearchLimits) -> Result<GrepResult> {
    let mut search = GrepVisitor::new(query, limits)?;
    match SearchStart::at(root, &query.path)? {
        SearchStart::Directory(path) => DirectoryWalk::new(root, limits, &mut search).run(&path),
        // An explicitly named file is searched whatever its name is.
        SearchStart::File(path) => {
            let name = path.file_name().unwrap_or_default();
            let found = WalkEntry { root, path: &path, name, depth: 0, is_directory: false };
            let _only_one = search.visit(&found);
        }
    }
    Ok(search.answer())
}

struct GrepVisitor<'a> {
    query: &'a GrepQuery,
    limits: &'a SearchLimits,
    matcher: RegexMatcher,
    searcher: Searcher,
    globs: Override,
    types: Types,
    collected: MatchCollector,
    newest: NewestFiles,
}

impl<'a> GrepVisitor<'a> {
    fn new(query: &'a GrepQuery, limits: &'a SearchLimits) -> Result<Self> {
        let limit = query.limit.unwrap_or(usize::MAX);
        let (matcher, longest) = matcher(query)?;
        Ok(Self {
            query,
            limits,
            matcher,
            searcher: searcher(query, longest),
            globs: globs(query.glob.as_deref())?,
            types: types(query.file_type.as_deref())?,
            collected: MatchCollector::new(query.offset, limit),
            // One extra entry shows whether the result is truncated.
            newest: NewestFiles::new(query.offset.saturating_add(limit).saturating_add(1)),
        })
    }

    fn answer(self) -> GrepResult {
        let mut collected = self.collected;
        for path in self.newest.into_paths() {
            let found = GrepMatch { path, line: None, context: false, text: String::new() };
            if collected.add(found).is_break() {
                break;
            }
        }
        let truncated = collected.truncated || self.limits.reached();
        GrepResult { matches: collected.matches, truncated }
    }
}

impl Visitor for GrepVisitor<'_> {
    /// Same precedence as ripgrep: an explicit glob overrides ignored and hidden.
    fn includes(&self, found: &WalkEntry<'_>, ignored: IgnoreVerdict) -> bool {
        match self.globs.matched(found.path, found.is_directory) {
            Match::Ignore(_) => return false,
            Match::Whitelist(_) => return true,
            Match::None => {}
        }
        if ignored == IgnoreVerdict::Ignored {
            return false;
        }
        match self.types.matched(found.path, found.is_directory) {
            Match::Ignore(_) => false,
            Match::Whitelist(_) => true,
            Match::None => ignored == IgnoreVerdict::Included || !found.is_hidden(),
        }
    }

    fn visit(&mut self, found: &WalkEntry<'_>) -> ControlFlow<()> {
        let Some(file) = found.open() else { return ControlFlow::Continue(()) };
        let modified = file.metadata().and_then(|metadata| metadata.modified()).ok();
        let before = self.collected.checkpoint();
        let mut lines = FileSink::new(found.text(), self.query.mode, self.limits, &mut self.collected);
        let reader = BoundedReader { file, limits: self.limits };
        let searched = self.searcher.search_reader(&self.matcher, reader, &mut lines);
        let FileSink { path, count, is_binary, .. } = lines;
        if is_binary {
            self.collected.restore(before);
            return ControlFlow::Continue(());
        }
        if searched.is_err() {
            // Out of time, a line above the limit, or an unreadable file.
            self.limits.mark_reached();
        }
        match self.query.mode {
            GrepMode::Content => {}
            GrepMode::FilesWithMatches => {
                if let (1.., Some(modified)) = (count, modified)
                    && !self.newest.add(modified, path)
                {
                    self.limits.mark_reached();
                    return ControlFlow::Break(());
                }
            }
            GrepMode::Count => {
                if count > 0 {
                    let text = count.to_string();
                    self.collected.add(GrepMatch { path, line: None, context: false, text })?;
                }
            }
        }
        if self.collected.truncated { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Compiles the pattern. Also returns the maximum line length for it.
fn matcher(query: &GrepQuery) -> Result<(RegexMatcher, usize)> {
    if query.pattern.is_empty() || query.pattern.len() > MAX_PATTERN_BYTES {
        return Err(Error::invalid("pattern", format!("expected 1 to {MAX_PATTERN_BYTES} bytes")));
    }
    let mut builder = RegexMatcherBuilder::new();
    builder
        .multi_line(true)
        .case_insensitive(query.ignore_case)
        .dot_matches_new_line(query.multiline)
        .dfa_size_limit(MAX_CACHE_BYTES)
        .ban_byte(Some(0));
    if !query.multiline {
        builder.line_terminator(Some(b'\n'));
    }
    let mut refused = None;
    for (size, longest) in EFFORTS {
        match builder.size_limit(size).build(&query.pattern) {
            Ok(matcher) => return Ok((matcher, longest)),
            Err(error) => refused = Some(error),
        }
    }
    let text = refused.as_ref().map(ToString::to_string).unwrap_or_default();
    let what = match refused.as_ref().map(grep_regex::Error::kind) {
        Some(ErrorKind::NotAllowed(_)) => "a line end can only be matched with multiline",
        // The last line states the error; the lines before it mark the position.
        _ => text.lines().last().unwrap_or_default().trim_start_matches("error: "),
    };
    let what: String = what.chars().take(300).collect();
    Err(Error::invalid("pattern", format!("expected a regular expression: {what}")))
}

fn searcher(query: &GrepQuery, longest: usize) -> Searcher {
    let context = |lines: usize| match query.mode {
        GrepMode::Content => lines.min(MAX_CONTEXT_LINES),
        GrepMode::FilesWithMatches | GrepMode::Count => 0,
    };
    SearcherBuilder::new()
        .line_number(query.mode == GrepMode::Content)
        .multi_line(query.multiline)
        .before_context(context(query.before))
        .after_context(context(query.after))
        .binary_detection(BinaryDetection::quit(0))
        .heap_limit(Some(if query.multiline { longest * MULTILINE_FACTOR } else { longest }))
        .build()
}

fn globs(glob: Option<&str>) -> Result<Override> {
    let Some(text) = glob else { return Ok(Override::empty()) };
    // Compiled separately first, to check its size and to report our own error.
    glob::compile("glob", text.strip_prefix('!').unwrap_or(text))?;
    let mut builder = OverrideBuilder::new(Path::new(""));
    let built = builder.add(text).and_then(|builder| builder.build());
    built.map_err(|error| Error::invalid("glob", format!("expected a glob: {error}")))
}

fn types(name: Option<&str>) -> Result<Types> {
    let Some(name) = name else { return Ok(Types::empty()) };
    let built = TypesBuilder::new().add_defaults().select(name).build();
    built.map_err(|_| {
        let name: String = name.chars().take(50).flat_map(char::escape_debug).collect();
        Error::invalid(
            "file_type",
            format!("expected a type that ripgrep knows, like rust, py or js, got {name}"),
        )
    })
}
