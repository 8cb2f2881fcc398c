//! Lines that match, with the parts that ripgrep is made of.
//!
//! Files are searched as opened beneath the workspace, never by name. Binary files (a NUL byte) and lines too long to
//! hold are left out; UTF-16 with a byte order mark is read as text.

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
    bounds::{Bounds, Paced},
    glob,
    ignored::Ignored,
    lines::{Collected, Lines},
    newest::Newest,
    root::Root,
    walk::{Found, Start, Visitor, Walk},
};
use crate::search::{GrepAnswer, GrepMatch, GrepMode, GrepQuery};

const MAX_PATTERN_BYTES: usize = 8 * 1024;
/// How large a compiled pattern may be, and how long a line it may then be tried on.
///
/// A match cannot be interrupted, and at worst it takes as many steps as the one times the other: some ten seconds for
/// each of these pairs. Most patterns fit into the first or, with Unicode classes like `\w`, the second.
const EFFORTS: [(usize, usize); 4] =
    [(16 << 10, 4 << 20), (128 << 10, 1 << 20), (512 << 10, 256 << 10), (2 << 20, 64 << 10)];
/// Where patterns may match across lines, a whole file is like a line, and may be longer than one.
const MULTILINE_FACTOR: usize = 2;
/// What the automaton of a pattern may hold while it searches.
const MAX_CACHE_BYTES: usize = 8 * 1024 * 1024;
const MAX_CONTEXT_LINES: usize = 1000;

pub(super) fn search(root: &Root, query: &GrepQuery, bounds: &Bounds) -> Result<GrepAnswer> {
    let mut search = Search::new(query, bounds)?;
    match Start::at(root, &query.path)? {
        Start::Directory(path) => Walk::new(root, bounds, &mut search).run(&path),
        // Who names a file means it, whatever its name is.
        Start::File(path) => {
            let name = path.file_name().unwrap_or_default();
            let found = Found { root, path: &path, name, depth: 0, is_directory: false };
            let _only_one = search.visit(&found);
        }
    }
    Ok(search.answer())
}

struct Search<'a> {
    query: &'a GrepQuery,
    bounds: &'a Bounds,
    matcher: RegexMatcher,
    searcher: Searcher,
    globs: Override,
    types: Types,
    collected: Collected,
    newest: Newest,
}

impl<'a> Search<'a> {
    fn new(query: &'a GrepQuery, bounds: &'a Bounds) -> Result<Self> {
        let limit = query.limit.unwrap_or(usize::MAX);
        let (matcher, longest) = matcher(query)?;
        Ok(Self {
            query,
            bounds,
            matcher,
            searcher: searcher(query, longest),
            globs: globs(query.glob.as_deref())?,
            types: types(query.file_type.as_deref())?,
            collected: Collected::new(query.offset, limit),
            // One more tells whether there is more.
            newest: Newest::new(query.offset.saturating_add(limit).saturating_add(1)),
        })
    }

    fn answer(self) -> GrepAnswer {
        let mut collected = self.collected;
        for path in self.newest.into_paths() {
            let found = GrepMatch { path, line: None, context: false, text: String::new() };
            if collected.add(found).is_break() {
                break;
            }
        }
        let truncated = collected.truncated || self.bounds.reached();
        GrepAnswer { matches: collected.matches, truncated }
    }
}

impl Visitor for Search<'_> {
    /// The order of precedence is ripgrep's: a glob that was asked for overrules what is ignored or hidden.
    fn wants(&self, found: &Found<'_>, ignored: Ignored) -> bool {
        match self.globs.matched(found.path, found.is_directory) {
            Match::Ignore(_) => return false,
            Match::Whitelist(_) => return true,
            Match::None => {}
        }
        if ignored == Ignored::Yes {
            return false;
        }
        match self.types.matched(found.path, found.is_directory) {
            Match::Ignore(_) => false,
            Match::Whitelist(_) => true,
            Match::None => ignored == Ignored::Never || !found.is_hidden(),
        }
    }

    fn visit(&mut self, found: &Found<'_>) -> ControlFlow<()> {
        let Some(file) = found.open() else { return ControlFlow::Continue(()) };
        let modified = file.metadata().and_then(|metadata| metadata.modified()).ok();
        let before = self.collected.mark();
        let mut lines = Lines::new(found.text(), self.query.mode, self.bounds, &mut self.collected);
        let reader = Paced { file, bounds: self.bounds };
        let searched = self.searcher.search_reader(&self.matcher, reader, &mut lines);
        let Lines { path, count, is_binary, .. } = lines;
        if is_binary {
            self.collected.back_to(before);
            return ControlFlow::Continue(());
        }
        if searched.is_err() {
            // Out of time, a line that is too long, or a file that cannot be read.
            self.bounds.reach();
        }
        match self.query.mode {
            GrepMode::Content => {}
            GrepMode::FilesWithMatches => {
                if let (1.., Some(modified)) = (count, modified)
                    && !self.newest.add(modified, path)
                {
                    self.bounds.reach();
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

/// The compiled pattern, and the longest line that it may be tried on.
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
        // The last line says what is wrong; those before it show where.
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
    // Checked on its own first: for its size, and for an error that is ours.
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
