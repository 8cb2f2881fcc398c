//! The task `cargo xtask dist`.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, ensure};

use crate::{interrupt::Interrupt, run_cargo::run_cargo};

/// Builds `remuda` in the profile `dist`, and moves its symbols to a file beside it, which debuggers find by themselves.
pub(crate) fn run(interrupt: &Interrupt) -> Result<ExitCode> {
    let arguments = ["build", "--profile", "dist", "--locked", "--package", "remuda", "--bin", "remuda"];
    let status = run_cargo(&arguments, interrupt)?;
    ensure!(status.success(), "cargo could not build remuda");
    let program = target_directory()?.join("dist/remuda");
    let symbols = program.with_extension("debug");
    split_symbols(&program, &symbols)?;
    for path in [&program, &symbols] {
        println!("{:>6.1} MB  {}", megabytes(path)?, path.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// The target directory: this program is in `<target>/debug`.
fn target_directory() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    program.ancestors().nth(2).map(Path::to_owned).context("expected to be in a target directory")
}

/// Moves the symbols of `program` to `symbols`.
fn split_symbols(program: &Path, symbols: &Path) -> Result<()> {
    // A copy: cargo keeps a second link to the same file, with which it would replace the program at the next build.
    let copy = program.with_extension("unstripped");
    fs::copy(program, &copy).with_context(|| format!("cannot copy {}", program.display()))?;
    objcopy([OsStr::new("--only-keep-debug"), copy.as_ref(), symbols.as_ref()])?;
    let mut link = OsStr::new("--add-gnu-debuglink=").to_owned();
    link.push(symbols);
    objcopy([OsStr::new("--strip-all"), &link, copy.as_ref()])?;
    fs::rename(&copy, program).with_context(|| format!("cannot replace {}", program.display()))
}

fn objcopy<const N: usize>(arguments: [&OsStr; N]) -> Result<()> {
    let status = Command::new("objcopy").args(arguments).status().context("cannot run objcopy")?;
    ensure!(status.success(), "objcopy failed: {status}");
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn megabytes(path: &Path) -> Result<f64> {
    Ok(fs::metadata(path)?.len() as f64 / 1e6)
}
