//! Finds secrets in log text: registered values, and text that looks like a secret.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{Arc, LazyLock},
};

use aho_corasick::AhoCorasick;
use parking_lot::RwLock;
use regex::Regex;

pub(super) const MASK: &str = "***";
/// Shorter values are words such as `none` or `test`: masking them would garble lines without protecting anything.
const MIN_SECRET: usize = 6;
/// Longer secrets, such as certificates, are matched in chunks.
const CHUNK: usize = 512;
/// The maximum length of a chunk in any encoding.
pub(super) const MAX_SECRET: usize = 16 * CHUNK;
/// Limit of temporary secrets. The oldest are evicted first.
const MAX_TEMPORARY: usize = 1024;

static SECRETS: LazyLock<Secrets> = LazyLock::new(Secrets::default);

/// Masks a value in all log lines from now on, in any encoding.
pub fn mask_secret(secret: &str) {
    SECRETS.update(|known| known.add(secret));
}

/// Masks temporary values, such as the key and headers of a workspace's model. The last 1024 are kept. Cheap if
/// all values are known; otherwise one update for all of them.
pub fn mask_secrets_temporarily(secrets: &[&str]) {
    SECRETS.mask_secrets_temporarily(secrets);
}

/// The registered secrets of this process.
#[derive(Debug, Default)]
struct Secrets {
    known: RwLock<KnownSecrets>,
    /// A matcher for all encodings of the secrets. Under its own lock, so that no log line waits while it is rebuilt.
    values: RwLock<Option<Arc<AhoCorasick>>>,
}

impl Secrets {
    fn mask_secrets_temporarily(&self, secrets: &[&str]) {
        let are_known = {
            let known = self.known.read();
            secrets.iter().all(|secret| known.contains(secret))
        };
        if !are_known {
            self.update(|known| secrets.iter().for_each(|secret| known.add_temporary(secret)));
        }
    }

    fn update(&self, add: impl FnOnce(&mut KnownSecrets)) {
        let mut known = self.known.write();
        add(&mut known);
        let values = known.values();
        *self.values.write() = values;
    }

    fn values(&self) -> Option<Arc<AhoCorasick>> {
        self.values.read().clone()
    }
}

/// The ranges of secrets in a text: sorted, disjoint, at character boundaries.
pub(super) fn find(text: &str) -> Vec<Range<usize>> {
    // Cloned, so that the lock is not held while a long text is searched.
    find_with(SECRETS.values().as_deref(), text)
}

fn find_with(values: Option<&AhoCorasick>, text: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    if let Some(values) = values {
        // Overlapping matches, so that of two overlapping secrets neither is shown in part.
        found.extend(values.find_overlapping_iter(text).map(|it| it.range()));
    }
    if PATTERNS.is_match(text) {
        found.extend(PATTERNS.captures_iter(text).filter_map(|captures| {
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

/// Patterns of secrets. The first matching group is masked.
static PATTERNS: LazyLock<Regex> = LazyLock::new(|| {
    let patterns = [
        // API keys: of Remuda, of webhooks, of model providers, and of services whose keys appear in tool output.
        r"(?-u:\b)rmd_([0-9A-Za-z]{8,})",
        r"(?-u:\b)whsec_([0-9A-Za-z+/=_-]{8,})",
        r"(?-u:\b)sk-((?:[A-Za-z0-9]+-)*[A-Za-z0-9_-]{8,})",
        r"(?-u:\b)(?:gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|AIza|ya29\.)([0-9A-Za-z_.-]{16,})",
        r"(?-u:\b)A(?:KIA|SIA)([0-9A-Z]{16})",
        // Signed tokens, NATS seeds, private keys.
        r"(?-u:\b)(eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?)",
        r"(?-u:\b)(S[ACOUNX][A-Z2-7]{56}(?-u:\b))",
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----((?s:.)*?)(?:-----END|\z)",
        // Headers.
        r#"(?i)(?-u:\b)(?:proxy-)?authorization\\*["']?\s*[:=,]\s*\\*["']?(?:[a-z]+\s+)?([^\s"'\\,;)]+)"#,
        r#"(?i)(?-u:\b)bearer\s+([A-Za-z0-9._~+/=-]{6,})"#,
        r#"(?i)(?-u:\b)(?:x-)?api[_-]?key\\*["']?\s*[:=,]\s*\\*["']?([^\s"'\\,;&)]{6,})"#,
        // URLs: up to the last @ of the word, since a password may contain any character.
        r#"(?i)[a-z][a-z0-9+.-]*://[^\s:/@"']*:(\S+)@"#,
        r#"(?i)(?-u:\b)(?:nats|tls|wss?)://([^\s:/@"']+)@"#,
        // Settings and query parameters.
        r#"(?i)(?:password|passwd|pwd|secret|token|access_key)\\*["']?=\\*["']?([^\s"'\\,;&)]+)"#,
        r#"(?i)\\*"[a-z_-]*(?:password|passwd|secret|token|access_key)\\*"\s*:\s*\\*"([^"\\]+)"#,
    ];
    #[expect(clippy::expect_used, reason = "a test compiles it")]
    Regex::new(&patterns.join("|")).expect("the shapes are well formed")
});

/// The registered values.
#[derive(Debug, Default)]
struct KnownSecrets {
    /// Permanent secrets, and temporary ones, oldest first.
    permanent: Vec<String>,
    temporary: VecDeque<String>,
}

impl KnownSecrets {
    fn contains(&self, secret: &str) -> bool {
        secret.len() < MIN_SECRET || self.all().any(|known| known == secret)
    }

    fn all(&self) -> impl Iterator<Item = &String> {
        self.permanent.iter().chain(&self.temporary)
    }

    /// Adds a permanent secret, also if it was temporary before.
    fn add(&mut self, secret: &str) {
        self.temporary.retain(|known| known != secret);
        if !self.contains(secret) {
            self.permanent.push(secret.to_owned());
        }
    }

    fn add_temporary(&mut self, secret: &str) {
        if self.contains(secret) {
            return;
        }
        if self.temporary.len() >= MAX_TEMPORARY {
            self.temporary.pop_front();
        }
        self.temporary.push_back(secret.to_owned());
    }

    /// A matcher for all encodings.
    fn values(&self) -> Option<Arc<AhoCorasick>> {
        let forms = self.all().flat_map(|secret| chunks(secret)).flat_map(encodings);
        // Only fails for sizes beyond the limits above.
        AhoCorasick::new(forms).ok().map(Arc::new)
    }
}

/// Splits a secret into chunks, none of them short.
fn chunks(mut secret: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    while secret.len() >= 2 * CHUNK {
        let (part, rest) = secret.split_at(secret.floor_char_boundary(CHUNK));
        parts.push(part);
        secret = rest;
    }
    parts.push(secret);
    parts
}

/// The encodings of a text: plain, in a string formatted with `{:?}` once or twice, in JSON, in a URL.
fn encodings(secret: &str) -> Vec<String> {
    let quoted = |text: &str| text.escape_debug().to_string();
    // `{:?}` does not escape single quotes in strings.
    let printed = |text: &str| quoted(text).replace("\\'", "'");
    let mut json = String::new();
    super::text::push_quoted(&mut json, secret);
    let json = json.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or_default();
    let mut forms = vec![
        secret.to_owned(),
        printed(secret),
        printed(&printed(secret)),
        json.to_owned(),
        percent_encoded(secret),
    ];
    forms.sort_unstable();
    forms.dedup();
    forms.retain(|form| form.len() >= MIN_SECRET);
    forms
}

/// Percent-encodes all characters that are reserved anywhere in a URL.
fn percent_encoded(text: &str) -> String {
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
