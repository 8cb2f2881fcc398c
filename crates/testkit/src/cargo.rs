//! Runs cargo from a program that cargo has started.

use std::{env, ffi::OsString, process::Command};

/// Prefixes of the variables that cargo sets for the programs it runs. Some build scripts depend on them: if they were
/// inherited, nested calls would rebuild these crates and their dependents.
const CARGO_VARIABLE_PREFIXES: [&str; 5] =
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"];

/// The cargo that started this program, or the one in PATH, without these variables.
#[must_use]
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    for (name, _) in env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| CARGO_VARIABLE_PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
        {
            command.env_remove(&name);
        }
    }
    command
}
