//! `cargo xtask lint`: checks of the repository that need neither a build nor services.
//!
//! The proto API is checked by a test of its own (`crates/proto/tests/api.rs`), because it needs the compiled protos.

mod dependencies;
mod links;
mod spelling;

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, ensure};

/// Returns the problems it found.
type Check = fn(&Path) -> Result<Vec<String>>;

/// Runs all checks, prints every problem, and fails if there is one.
pub(crate) fn run() -> Result<ExitCode> {
    let root = root();
    let checks: [(&str, Check); 3] =
        [("dependencies", dependencies::check), ("links", links::check), ("spelling", spelling::check)];
    let mut count = 0;
    for (name, check) in checks {
        let problems = check(&root).with_context(|| format!("cannot check {name}"))?;
        println!(
            "{name}: {}",
            if problems.is_empty() { "ok".to_owned() } else { problems.len().to_string() }
        );
        problems.iter().for_each(|problem| println!("  {problem}"));
        count += problems.len();
    }
    Ok(if count == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Files that git tracks, relative to the root.
fn tracked_files(root: &Path, pattern: &str) -> Result<Vec<PathBuf>> {
    let output = Command::new("git").args(["ls-files", "-z", "--", pattern]).current_dir(root).output()?;
    ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    let names = String::from_utf8(output.stdout)?;
    Ok(names.split_terminator('\0').map(PathBuf::from).collect())
}
