//! Runs cargo in the foreground, and ends it on Ctrl-C.

use std::{
    os::unix::process::CommandExt,
    process::{ExitStatus, Stdio},
};

use anyhow::{Context, Result};

use crate::interrupt::Interrupt;

pub(crate) fn run_cargo(arguments: &[&str], interrupt: &Interrupt) -> Result<ExitStatus> {
    let mut child = remuda_testkit::cargo()
        .args(arguments)
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .context("cannot run cargo")?;
    let forward = interrupt.forward(&child)?;
    let status = child.wait().context("cannot wait for cargo")?;
    drop(forward);
    Ok(status)
}
