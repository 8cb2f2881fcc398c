//! Checks and display of path strings.

use remuda_domain::error::{Error, Result};

/// The longest path that Linux accepts.
pub const MAX_PATH_BYTES: usize = 4096;

/// Rejects text that cannot be a path. Whether it stays in the workspace is checked by the sandbox.
pub fn check(field: &str, path: &str) -> Result<()> {
    if path.is_empty() {
        return Err(Error::invalid(field, "expected a path"));
    }
    if path.len() > MAX_PATH_BYTES {
        let message = format!("expected at most {MAX_PATH_BYTES} bytes, got {}", path.len());
        return Err(Error::invalid(field, message));
    }
    if path.contains('\0') {
        return Err(Error::invalid(field, "expected no NUL character"));
    }
    Ok(())
}

/// A path for an error message: truncated and without control characters.
#[must_use]
pub fn display_safe(path: &str) -> String {
    const MAX_CHARS: usize = 200;
    let mut text: String = path.chars().take(MAX_CHARS).flat_map(char::escape_debug).collect();
    if path.chars().nth(MAX_CHARS).is_some() {
        text.push('…');
    }
    text
}
