//! Tells whoever wants to count that a scenario was played.

use std::{
    fs::OpenOptions,
    io::{Error, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use nix::fcntl::OFlag;
use remuda_domain::error::{self, Code};
use serde_json::json;

use super::choose::View;

/// No more is written to a file that has become larger.
const MAX_LOG_BYTES: u64 = 16 * 1024 * 1024;

/// Appends one line.
pub(super) async fn append(file: &Path, attempt: u32, view: &View<'_>) -> error::Result<()> {
    let line = json!({"turn": view.turn(), "messages": view.messages.len(), "attempt": attempt});
    let path = file.to_owned();
    let written = tokio::task::spawn_blocking(move || write(path, &format!("{line}\n"))).await;
    written.map_err(Error::other).flatten().map_err(|error| {
        error::Error::new(Code::ModelRequestRefused, format!("cannot write the log of the scenario: {error}"))
    })
}

/// In one piece, so that processes can share the file. A link or a pipe of that name is not followed or waited for.
fn write(path: PathBuf, line: &str) -> std::io::Result<()> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let mut file = OpenOptions::new().append(true).create(true).custom_flags(flags.bits()).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.len() < MAX_LOG_BYTES {
        file.write_all(line.as_bytes())
    } else {
        Ok(())
    }
}
