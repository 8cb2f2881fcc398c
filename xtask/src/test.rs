//! The task `cargo xtask test`.

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

/// The exit code that shells use for a program ended by Ctrl-C.
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

    /// The server binary for tests of other packages. Cargo builds it before it runs any test of the workspace; building the
    /// package alone would use other features and rebuild half of its dependencies.
    fn server(&self) -> Result<Option<PathBuf>> {
        let whole_workspace = self.extra.is_empty();
        let path =
            env::current_exe().context("cannot find the path of this program")?.with_file_name("remuda");
        Ok((whole_workspace && env::var_os("REMUDA_BIN").is_none()).then_some(path))
    }

    /// The arguments of cargo.
    fn cargo_arguments(&self) -> Vec<String> {
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
    // A filtered run is for work on one thing, so it skips this.
    let clients = match options.server()?.filter(|_| options.filter.is_none() && status.success()) {
        Some(server) => clients::python(&server, interrupt)?,
        None => true,
    };
    println!("\nservices (started in {:.1}s)", started.as_secs_f64());
    for line in &services.summary {
        println!("  {line}");
    }
    services.warn();
    // Stopped before the summary, so that errors of the shutdown do not come last.
    drop(services);
    summarise(&report, status, interrupt);
    println!("took {:.1}s", start.elapsed().as_secs_f64());
    println!("{} passed, {} failed", report.passed(), report.failed());
    if interrupt.is_interrupted() {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    if !clients {
        println!("FAILED clients/python/check");
    }
    let passed = status.success() && report.failed() == 0 && clients;
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs cargo in its own process group, prints its output and parses it.
fn cargo_test(options: &Options, services: &Services, interrupt: &Interrupt) -> Result<(Report, ExitStatus)> {
    let (reader, writer) = std::io::pipe().context("cannot create a pipe")?;
    let mut command = remuda_testkit::cargo();
    command
        .args(options.cargo_arguments())
        .envs(services.environment.iter().map(|(name, value)| (*name, value.as_str())))
        .envs(options.server()?.map(|path| ("REMUDA_BIN", path)))
        .stdin(Stdio::null())
        // One pipe for both, so that "Running …" stays before its results.
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .process_group(0);
    interrupt.check()?;
    let mut child = command.spawn().context("cannot run cargo")?;
    // It holds the write end of the pipe, which would otherwise never be closed.
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
    if interrupt.is_interrupted() {
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
        Ok(Options::parse(&arguments)?.cargo_arguments())
    }

    #[test]
    fn arguments_are_passed_to_cargo() {
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
