//! Spelling of code and documents, by `typos`. Its settings are in `typos.toml`.

use std::{path::Path, process::Command};

use anyhow::{Context, Result};

use crate::wheel::TYPOS;

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let output = Command::new(TYPOS.find_or_fetch()?)
        .args(["--format", "brief"])
        .current_dir(root)
        .output()
        .context("cannot run typos")?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut problems: Vec<String> = printed.lines().map(str::to_owned).collect();
    if problems.is_empty() && !output.status.success() {
        problems.push(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    Ok(problems)
}
