//! The task `cargo xtask bench-check`.

use std::process::ExitCode;

use anyhow::Result;

use crate::{interrupt::Interrupt, run_cargo::run_cargo};

/// Compares Remuda with the upper bounds of this machine, in the profile `dist`, and fails if a ratio is too low.
pub(crate) fn run(interrupt: &Interrupt) -> Result<ExitCode> {
    let arguments = ["run", "--profile", "dist", "--package", "loadtest", "--", "ratios"];
    let status = run_cargo(&arguments, interrupt)?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
