//! Cargo, called by a program that cargo itself has started.

use std::{env, ffi::OsString, process::Command};

/// What cargo tells the programs that it runs. Build scripts look at some of it: with it they, and all that stands on them, would be built
/// anew whenever one call follows the other.
const TOLD: [&str; 5] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"];

/// The cargo that started this program, or else the one in the path, as a person would call it.
#[must_use]
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(|name| TOLD.iter().any(|prefix| name.starts_with(prefix))) {
            command.env_remove(&name);
        }
    }
    command
}
