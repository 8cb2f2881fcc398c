//! The task `cargo xtask bench-check`.

use std::{
    os::unix::process::CommandExt,
    process::{ExitCode, Stdio},
};

use anyhow::{Context, Result};

use crate::interrupt::Interrupt;

/// Compares Remuda with the upper bounds of this machine, in the profile `dist`, and fails if a ratio is too low.
pub(crate) fn run(interrupt: &Interrupt) -> Result<ExitCode> {
    let mut child = remuda_testkit::cargo()
        .args(["run", "--profile", "dist", "--package", "loadtest", "--", "ratios"])
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .context("cannot run cargo")?;
    let forward = interrupt.forward(&child)?;
    let status = child.wait().context("cannot wait for the load test")?;
    drop(forward);
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
