//! `remuda doctor`: looks at everything a start depends on and says how to mend what is wrong.
//!
//! It changes nothing: it creates no database, no stream and no directory, and every look has an end.

mod backends;
mod machine;
mod network;
mod services;

use std::{
    io::{self, ErrorKind, IsTerminal as _, Write as _},
    process::ExitCode,
};

use remuda_config::Loaded;
use serde::Serialize;
use serde_json::json;

/// Which services are expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// One process with SQLite: `remuda dev`.
    Embedded,
    /// PostgreSQL and NATS: `remuda all`, or one process per service.
    Split,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    Ok,
    /// Not needed in this mode.
    NotUsed,
    /// Works, and may surprise someone.
    Warning,
    /// Something will not start, or will break.
    Problem,
}

impl Level {
    /// The mark in front of a line, with its colour.
    const fn mark(self) -> (&'static str, &'static str) {
        match self {
            Self::Ok => ("✓", "32"),
            Self::NotUsed => ("-", "2"),
            Self::Warning => ("!", "33"),
            Self::Problem => ("✗", "31"),
        }
    }
}

/// What was looked at and found.
#[derive(Clone, Debug, Serialize)]
struct Check {
    name: &'static str,
    level: Level,
    found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    mend: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, level: Level::Ok, found: found.into(), mend: None }
    }

    fn not_used(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, level: Level::NotUsed, found: found.into(), mend: None }
    }

    fn warning(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { name, level: Level::Warning, found: found.into(), mend: Some(mend.into()) }
    }

    fn problem(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { name, level: Level::Problem, found: found.into(), mend: Some(mend.into()) }
    }
}

/// Runs every check and prints what was found. The exit code is 1 when there is a problem; warnings are none.
pub(crate) async fn run(loaded: &Loaded, mode: Mode, json: bool) -> anyhow::Result<ExitCode> {
    let checks = examine(loaded, mode).await;
    let text =
        if json { as_json(&checks, mode)? } else { as_text(&checks, mode, io::stdout().is_terminal()) };
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error.into()),
        _ => {}
    }
    let failed = checks.iter().any(|check| check.level == Level::Problem);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn examine(loaded: &Loaded, mode: Mode) -> Vec<Check> {
    let config = &loaded.config;
    let mut checks = vec![machine::configuration(loaded)];
    checks.extend(machine::directories(config, mode));
    checks.push(machine::open_files(config, mode));
    // These wait for others, so they wait together.
    let (store, clock, nats, docker, ports) = tokio::join!(
        services::store(config, mode),
        services::clock(config, mode),
        services::nats(config, mode),
        backends::docker(config),
        network::ports(config, mode),
    );
    checks.extend([clock, store, nats]);
    checks.extend(ports);
    checks.push(backends::local(config).await);
    checks.push(docker);
    checks
}

fn count(checks: &[Check], level: Level) -> usize {
    checks.iter().filter(|check| check.level == level).count()
}

fn as_json(checks: &[Check], mode: Mode) -> anyhow::Result<String> {
    let problems = count(checks, Level::Problem);
    let report = json!({
        "ok": problems == 0,
        "mode": mode,
        "version": env!("CARGO_PKG_VERSION"),
        "problems": problems,
        "warnings": count(checks, Level::Warning),
        "checks": checks,
    });
    Ok(serde_json::to_string(&report)? + "\n")
}

fn as_text(checks: &[Check], mode: Mode, colour: bool) -> String {
    let paint = |code: &str, text: &str| {
        if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    };
    let width = checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let (mark, code) = check.level.mark();
        let found = clean(&check.found);
        text += &format!("{} {:width$}  {found}\n", paint(code, mark), check.name);
        if let Some(mend) = &check.mend {
            text += &format!("  {:width$}  → {}\n", "", clean(mend));
        }
    }
    let mode = if mode == Mode::Embedded { "embedded" } else { "split" };
    let (problems, warnings) = (count(checks, Level::Problem), count(checks, Level::Warning));
    let verdict = match (problems, warnings) {
        (0, 0) => format!("everything is fine for the {mode} mode"),
        (0, warnings) => format!("ready for the {mode} mode, warnings: {warnings}"),
        (problems, warnings) => {
            format!("not ready for the {mode} mode, problems: {problems}, warnings: {warnings}")
        }
    };
    text + "\n" + &verdict + "\n"
}

/// Others' words (a server's error) may hold anything; a line stays a line.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests;
