//! Runs the tests of clients in other languages.

use std::{
    env,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, Result, ensure};
use remuda_testkit::{find_program, packages};

use crate::interrupt::Interrupt;

/// Tests the clients against the server beside this program.
pub(crate) fn run(interrupt: &Interrupt) -> Result<ExitCode> {
    let server = env::current_exe().context("cannot find the path of this program")?.with_file_name("remuda");
    ensure!(server.is_file(), "expected {}: run `cargo build` first", server.display());
    Ok(if python(&server, interrupt)? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the checks of the Python client against this server, and returns whether they passed.
pub(crate) fn python(server: &Path, interrupt: &Interrupt) -> Result<bool> {
    let python = packages::require("python3", &["python3"], || find_program("python3"))?;
    let has_venv = || {
        let mut probe = Command::new(&python);
        probe.args(["-c", "import ensurepip, venv"]).stdin(Stdio::null()).stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success()).then(|| python.clone())
    };
    packages::require("venv of Python", &["python3-venv"], has_venv)?;
    interrupt.check()?;
    let check = Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients/python/check");
    println!("\n{}", check.display());
    let mut child = Command::new(check)
        .env("REMUDA_BIN", server)
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .context("cannot run the checks of the Python client")?;
    let forward = interrupt.forward(&child)?;
    let status = child.wait().context("cannot wait for the checks of the Python client")?;
    drop(forward);
    Ok(status.success())
}
