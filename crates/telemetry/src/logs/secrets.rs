//! What must never stand in a line: values that this process knows to be secret, and what looks like one wherever it comes from.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{Arc, LazyLock, PoisonError, RwLock},
};

use aho_corasick::AhoCorasick;
use regex::Regex;

pub(super) const MASK: &str = "***";
/// Shorter values are words such as `none` or `test`: hiding them everywhere would garble lines and guard nothing.
const MIN_SECRET: usize = 6;
/// Longer ones, certificates say, are known by their parts.
const PART: usize = 512;
/// No part is longer than this, however it is written.
pub(super) const MAX_SECRET: usize = 16 * PART;
/// Values known at once that come and go. The oldest are forgotten first.
const MAX_KNOWN: usize = 1024;

static SECRETS: LazyLock<Secrets> = LazyLock::new(Secrets::default);

/// Keeps a value out of every line from now on, however it is quoted.
pub fn hide(secret: &str) {
    SECRETS.learn(|known| known.add(secret));
}

/// The same for some of many that come and go, such as the key and the headers of a model in a workspace: the last thousand are
/// known. Costs little if they are; if not, the same for several as for one.
pub fn hide_for_now(secrets: &[&str]) {
    SECRETS.hide_for_now(secrets);
}

/// What this process knows to be secret.
#[derive(Debug, Default)]
struct Secrets {
    known: RwLock<Known>,
    /// All ways to write what is known. Apart from it: no line waits while these are made anew.
    values: RwLock<Option<Arc<AhoCorasick>>>,
}

impl Secrets {
    fn hide_for_now(&self, secrets: &[&str]) {
        let are_known = {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            secrets.iter().all(|secret| known.knows(secret))
        };
        if !are_known {
            self.learn(|known| secrets.iter().for_each(|secret| known.add_for_now(secret)));
        }
    }

    fn learn(&self, add: impl FnOnce(&mut Known)) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        add(&mut known);
        let values = known.values();
        *self.values.write().unwrap_or_else(PoisonError::into_inner) = values;
    }

    fn values(&self) -> Option<Arc<AhoCorasick>> {
        self.values.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Where secrets stand in a text: in order, not touching each other, at borders of characters.
pub(super) fn find(text: &str) -> Vec<Range<usize>> {
    // Taken out of the lock: nobody waits for a long text.
    find_with(SECRETS.values().as_deref(), text)
}

fn find_with(values: Option<&AhoCorasick>, text: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    if let Some(values) = values {
        // Overlapping: of two secrets that share a part, neither is shown in part.
        found.extend(values.find_overlapping_iter(text).map(|it| it.range()));
    }
    if SHAPES.is_match(text) {
        found.extend(SHAPES.captures_iter(text).filter_map(|captures| {
            let secret = captures.iter().skip(1).flatten().next()?;
            Some(secret.range())
        }));
    }
    merged(found)
}

fn merged(mut found: Vec<Range<usize>>) -> Vec<Range<usize>> {
    found.sort_unstable_by_key(|range| (range.start, range.end));
    let mut merged: Vec<Range<usize>> = Vec::with_capacity(found.len());
    for range in found {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// What looks like a secret. The first group that matches is what is hidden.
static SHAPES: LazyLock<Regex> = LazyLock::new(|| {
    let shapes = [
        // Keys of ours, of webhooks, of providers, and of those whose keys end up in the output of tools.
        r"(?-u:\b)rmd_([0-9A-Za-z]{8,})",
        r"(?-u:\b)whsec_([0-9A-Za-z+/=_-]{8,})",
        r"(?-u:\b)sk-((?:[A-Za-z0-9]+-)*[A-Za-z0-9_-]{8,})",
        r"(?-u:\b)(?:gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|AIza|ya29\.)([0-9A-Za-z_.-]{16,})",
        r"(?-u:\b)A(?:KIA|SIA)([0-9A-Z]{16})",
        // Tokens that are signed, seeds of NATS, private keys.
        r"(?-u:\b)(eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?)",
        r"(?-u:\b)(S[ACOUNX][A-Z2-7]{56}(?-u:\b))",
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----((?s:.)*?)(?:-----END|\z)",
        // Headers.
        r#"(?i)(?-u:\b)(?:proxy-)?authorization\\*["']?\s*[:=,]\s*\\*["']?(?:[a-z]+\s+)?([^\s"'\\,;)]+)"#,
        r#"(?i)(?-u:\b)bearer\s+([A-Za-z0-9._~+/=-]{6,})"#,
        r#"(?i)(?-u:\b)(?:x-)?api[_-]?key\\*["']?\s*[:=,]\s*\\*["']?([^\s"'\\,;&)]{6,})"#,
        // Addresses: up to the last @ of the word, as a password may hold anything.
        r#"(?i)[a-z][a-z0-9+.-]*://[^\s:/@"']*:(\S+)@"#,
        r#"(?i)(?-u:\b)(?:nats|tls|wss?)://([^\s:/@"']+)@"#,
        // Settings and queries.
        r#"(?i)(?:password|passwd|pwd|secret|token|access_key)\\*["']?=\\*["']?([^\s"'\\,;&)]+)"#,
        r#"(?i)\\*"[a-z_-]*(?:password|passwd|secret|token|access_key)\\*"\s*:\s*\\*"([^"\\]+)"#,
    ];
    #[expect(clippy::expect_used, reason = "a test compiles it")]
    Regex::new(&shapes.join("|")).expect("the shapes are well formed")
});

/// Values that are secret.
#[derive(Debug, Default)]
struct Known {
    /// As they were given: those that stay, and those that come and go, oldest first.
    staying: Vec<String>,
    passing: VecDeque<String>,
}

impl Known {
    fn knows(&self, secret: &str) -> bool {
        secret.len() < MIN_SECRET || self.all().any(|known| known == secret)
    }

    fn all(&self) -> impl Iterator<Item = &String> {
        self.staying.iter().chain(&self.passing)
    }

    /// It stays also if it was one of those that come and go.
    fn add(&mut self, secret: &str) {
        self.passing.retain(|known| known != secret);
        if !self.knows(secret) {
            self.staying.push(secret.to_owned());
        }
    }

    fn add_for_now(&mut self, secret: &str) {
        if self.knows(secret) {
            return;
        }
        if self.passing.len() >= MAX_KNOWN {
            self.passing.pop_front();
        }
        self.passing.push_back(secret.to_owned());
    }

    /// All ways to write them.
    fn values(&self) -> Option<Arc<AhoCorasick>> {
        let forms = self.all().flat_map(|secret| parts(secret)).flat_map(forms);
        // Fails only beyond sizes that the bounds above exclude.
        AhoCorasick::new(forms).ok().map(Arc::new)
    }
}

/// Parts of a secret, none of them short.
fn parts(mut secret: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    while secret.len() >= 2 * PART {
        let (part, rest) = secret.split_at(secret.floor_char_boundary(PART));
        parts.push(part);
        secret = rest;
    }
    parts.push(secret);
    parts
}

/// The ways in which a text may be written: plain, within a string that was printed for debugging once or twice, in JSON, in a URL.
fn forms(secret: &str) -> Vec<String> {
    let quoted = |text: &str| text.escape_debug().to_string();
    // What `{:?}` leaves alone inside double quotes.
    let printed = |text: &str| quoted(text).replace("\\'", "'");
    let mut json = String::new();
    super::text::push_quoted(&mut json, secret);
    let json = json.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or_default();
    let mut forms =
        vec![secret.to_owned(), printed(secret), printed(&printed(secret)), json.to_owned(), in_url(secret)];
    forms.sort_unstable();
    forms.dedup();
    forms.retain(|form| form.len() >= MIN_SECRET);
    forms
}

/// With everything escaped that has to be somewhere in a URL.
fn in_url(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(byte.into());
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests;
