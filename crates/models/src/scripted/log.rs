//! Tells whoever wants to count that a scenario was played.

use std::{
    fs::File,
    io::{Error, Write as _},
    path::Path,
};

use nix::{
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2},
    sys::stat::Mode,
};
use remuda_domain::error::{self, Code};
use serde_json::json;

use super::choose::View;

/// No more is written to a file that has become larger.
const MAX_LOG_BYTES: u64 = 16 * 1024 * 1024;

/// Appends one line.
pub(super) async fn append(file: &Path, attempt: u32, view: &View<'_>) -> error::Result<()> {
    let line = json!({"turn": view.turn(), "messages": view.messages.len(), "attempt": attempt});
    let path = file.to_owned();
    let written = tokio::task::spawn_blocking(move || write(&path, &format!("{line}\n"))).await;
    written.map_err(Error::other).flatten().map_err(|error| {
        error::Error::new(Code::ModelRequestRefused, format!("cannot write the log of the scenario: {error}"))
    })
}

/// In one piece, so that processes can share the file. A pipe of that name is not waited for, and no link on the way is followed:
/// tools of a tenant could have made it.
fn write(path: &Path, line: &str) -> std::io::Result<()> {
    let flags = OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_CREAT | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let how = OpenHow::new()
        .flags(flags)
        .mode(Mode::S_IRUSR | Mode::S_IWUSR | Mode::S_IRGRP | Mode::S_IROTH)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    let mut file = File::from(openat2(AT_FDCWD, path, how)?);
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.len() < MAX_LOG_BYTES {
        file.write_all(line.as_bytes())
    } else {
        Ok(())
    }
}
