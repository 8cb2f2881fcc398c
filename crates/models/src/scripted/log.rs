//! Logs the attempts of a scenario to a file.

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

use super::turn_choice::ConversationState;

/// Files that are larger are not appended to.
const MAX_LOG_BYTES: u64 = 16 * 1024 * 1024;

/// Appends one line.
pub(super) async fn append(file: &Path, attempt: u32, state: &ConversationState<'_>) -> error::Result<()> {
    let line = json!({"turn": state.turn(), "messages": state.messages.len(), "attempt": attempt});
    let path = file.to_owned();
    let written = tokio::task::spawn_blocking(move || write(&path, &format!("{line}\n"))).await;
    written.map_err(Error::other).flatten().map_err(|error| {
        error::Error::new(Code::ModelRequestRefused, format!("cannot write the log of the scenario: {error}"))
    })
}

/// Writes the line in one call, so that processes can share the file. Does not block on a pipe and follows no
/// symbolic link: a tenant's tools could have created them.
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
