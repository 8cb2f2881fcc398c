//! `cargo xtask test`.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{ExitCode, ExitStatus, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail};

use crate::{clients, interrupt::Interrupt, report::Report, services::Services};

/// As shells say of a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    filter: Option<String>,
    extra: Vec<String>,
}

impl Options {
    pub(crate) fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--" => options.extra = rest.by_ref().cloned().collect(),
                "--filter" => options.filter = Some(rest.next().context("--filter needs a name")?.clone()),
                other => match other.strip_prefix("--filter=") {
                    Some(name) => options.filter = Some(name.to_owned()),
                    None => bail!("unknown argument {other}; see `cargo xtask help`"),
                },
            }
        }
        Ok(options)
    }

    /// The server for tests that need one beside their own package. Cargo makes it before any test of the workspace runs; asked
    /// for by itself it would be made with other features, and half of its dependencies with it.
    fn server(&self) -> Result<Option<PathBuf>> {
        let whole_workspace = self.extra.is_empty();
        let beside = env::current_exe().context("where am I?")?.with_file_name("remuda");
        Ok((whole_workspace && env::var_os("REMUDA_BIN").is_none()).then_some(beside))
    }

    /// The arguments of cargo.
    fn cargo(&self) -> Vec<String> {
        let mut arguments = vec!["test".to_owned(), "--no-fail-fast".to_owned()];
        let is_package = |argument: &String| argument.starts_with("-p") || argument.starts_with("--package");
        if !self.extra.iter().take_while(|argument| *argument != "--").any(is_package) {
            arguments.push("--workspace".to_owned());
        }
        arguments.extend(self.filter.clone());
        arguments.extend(self.extra.iter().cloned());
        arguments
    }
}

pub(crate) fn run(options: &Options, interrupt: &Interrupt) -> Result<ExitCode> {
    let start = Instant::now();
    let services = Services::start(interrupt)?;
    services.warn();
    let started = start.elapsed();
    let (report, status) = cargo_test(options, &services, interrupt)?;
    // With a filter or arguments someone works on one thing, and does not wait for this.
    let clients = match options.server()?.filter(|_| options.filter.is_none() && status.success()) {
        Some(server) => clients::python(&server, interrupt)?,
        None => true,
    };
    println!("\nservices (started in {:.1}s)", started.as_secs_f64());
    for line in &services.summary {
        println!("  {line}");
    }
    services.warn();
    // Stopped before the last line, so that whatever goes wrong there is not the last thing said.
    drop(services);
    summarise(&report, status, interrupt);
    println!("took {:.1}s", start.elapsed().as_secs_f64());
    println!("{} passed, {} failed", report.passed(), report.failed());
    if interrupt.happened() {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    if !clients {
        println!("FAILED clients/python/check");
    }
    let well = status.success() && report.failed() == 0 && clients;
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs cargo in a process group of its own, shows what it prints and reads along.
fn cargo_test(options: &Options, services: &Services, interrupt: &Interrupt) -> Result<(Report, ExitStatus)> {
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    let mut command = remuda_testkit::cargo();
    command
        .args(options.cargo())
        .envs(services.environment.iter().map(|(name, value)| (*name, value.as_str())))
        .envs(options.server()?.map(|path| ("REMUDA_BIN", path)))
        .stdin(Stdio::null())
        // One pipe for both, so that "Running …" stays before the results it announces.
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .process_group(0);
    interrupt.check()?;
    let mut child = command.spawn().context("cannot run cargo")?;
    // Holds the pipe's other end too; it would never be closed.
    drop(command);
    let forward = interrupt.forward(&child)?;
    let mut report = Report::default();
    let mut output = std::io::stdout();
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.context("cannot read what cargo prints")?;
        output.write_all(&line).and_then(|()| output.write_all(b"\n")).context("cannot print")?;
        report.line(&String::from_utf8_lossy(&line));
    }
    report.close();
    let status = child.wait().context("cannot wait for cargo")?;
    drop(forward);
    Ok((report, status))
}

fn summarise(report: &Report, status: ExitStatus, interrupt: &Interrupt) {
    println!("tests");
    for binary in &report.binaries {
        if binary.passed + binary.failed + binary.ignored > 0 {
            println!(
                "  {:5} passed {:3} failed {:3} ignored {:>8}  {}",
                binary.passed, binary.failed, binary.ignored, binary.duration, binary.name
            );
        }
    }
    for failure in report.failures() {
        println!("FAILED {failure}");
    }
    if interrupt.happened() {
        println!("interrupted");
    } else if !status.success() && report.failed() == 0 {
        println!("cargo test itself failed: {status}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Vec<String>> {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Ok(Options::parse(&arguments)?.cargo())
    }

    #[test]
    fn arguments_reach_cargo() {
        assert_eq!(parse(&[]).unwrap(), ["test", "--no-fail-fast", "--workspace"]);
        assert_eq!(
            parse(&["--filter", "x", "--", "-p", "remuda-store", "--", "--nocapture"]).unwrap(),
            ["test", "--no-fail-fast", "x", "-p", "remuda-store", "--", "--nocapture"]
        );
        assert_eq!(
            parse(&["--filter=x", "--", "--", "-p"]).unwrap(),
            ["test", "--no-fail-fast", "--workspace", "x", "--", "-p"]
        );
        assert!(parse(&["--what"]).is_err());
        assert!(parse(&["--filter"]).is_err());
    }
}
