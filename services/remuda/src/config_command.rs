//! `remuda config`: checks and shows the configuration and its sources.

use std::{
    io::{self, ErrorKind, Write as _},
    process::ExitCode,
};

use clap::Subcommand;
use remuda_config::{Config, LoadOptions, LoadedConfig, Origin, Problem};
use serde_json::{Value, json};

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check the configuration and list its sources
    Check,
    /// Print the effective configuration, with secrets masked
    Show {
        /// Print the default configuration file, with comments, instead
        #[arg(long)]
        default: bool,
    },
    /// Print the path of the configuration file that is used
    Path,
}

/// Exits with 1 if the configuration is invalid, or if `path` finds no file.
pub(crate) fn execute(command: &ConfigCommand, load: &LoadOptions, json: bool) -> anyhow::Result<ExitCode> {
    let (text, code) = match command {
        ConfigCommand::Check => check(load, json),
        ConfigCommand::Show { default: true } if json => {
            (line(&to_json(&Config::default())?), ExitCode::SUCCESS)
        }
        ConfigCommand::Show { default: true } => (Config::default_file().to_owned(), ExitCode::SUCCESS),
        ConfigCommand::Show { default: false } => {
            let config = Config::load(load)?;
            (if json { line(&to_json(&config)?) } else { config.to_toml() }, ExitCode::SUCCESS)
        }
        ConfigCommand::Path => path(load, json)?,
    };
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(code),
    }
}

fn check(load: &LoadOptions, json: bool) -> (String, ExitCode) {
    let loaded = Config::load_with_origins(load);
    let problems = match &loaded {
        Ok(loaded) => invalid_log_filter(loaded).into_iter().collect(),
        Err(error) => error.problems().to_vec(),
    };
    let text = match (&loaded, json) {
        (Ok(loaded), false) if problems.is_empty() => ok_text(loaded),
        (_, false) => problems.iter().map(|problem| format!("{problem}\n")).collect(),
        (loaded, true) => line(&check_json(loaded.as_ref().ok(), &problems)),
    };
    (text, if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks telemetry.log, which the configuration crate cannot check.
fn invalid_log_filter(loaded: &LoadedConfig) -> Option<Problem> {
    const KEY: &str = "telemetry.log";
    let error = remuda_telemetry::check_filter(&loaded.config.telemetry.log).err()?;
    let origin = loaded.origins.get(KEY).cloned().unwrap_or(Origin::Default);
    Some(Problem { key: KEY.to_owned(), origin, message: error.to_string() })
}

fn ok_text(loaded: &LoadedConfig) -> String {
    let mut text = "ok\n".to_owned();
    match &loaded.file {
        Some(file) => text += &format!("file: {}\n", file.display()),
        None => text += "file: none, defaults are in effect\n",
    }
    for variable in loaded.variables() {
        text += &format!("variable: {variable}\n");
    }
    text
}

fn check_json(loaded: Option<&LoadedConfig>, problems: &[Problem]) -> Value {
    let problem = |problem: &Problem| json!({ "key": problem.key, "origin": problem.origin.to_string(), "message": problem.message });
    json!({
        "ok": problems.is_empty(),
        "file": loaded.and_then(|loaded| loaded.file.as_ref()),
        "variables": loaded.map(|loaded| loaded.variables().collect::<Vec<_>>()).unwrap_or_default(),
        "problems": problems.iter().map(problem).collect::<Vec<_>>(),
    })
}

fn path(load: &LoadOptions, json: bool) -> anyhow::Result<(String, ExitCode)> {
    let file = load.find_file()?;
    let code = if file.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let text = match file {
        file if json => line(&json!({ "file": file })),
        Some(file) => format!("{}\n", file.display()),
        None => "there is no configuration file, defaults are in effect\n".to_owned(),
    };
    Ok((text, code))
}

/// The configuration as JSON, with secrets masked as in TOML.
fn to_json(config: &Config) -> anyhow::Result<Value> {
    Ok(serde_json::to_value(config)?)
}

fn line(value: &Value) -> String {
    format!("{value}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(variables: &[(&str, &str)]) -> LoadOptions {
        let env = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        LoadOptions { env, search: Vec::new(), ..LoadOptions::default() }
    }

    #[test]
    fn valid_configuration_lists_its_sources() {
        let (text, code) = check(&load(&[("REMUDA_WORKER__SLOTS", "4")]), false);
        assert_eq!(text, "ok\nfile: none, defaults are in effect\nvariable: REMUDA_WORKER__SLOTS\n");
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS));
    }

    #[test]
    fn every_problem_is_listed() {
        let invalid = load(&[("REMUDA_WORKER__SLOTS", "x"), ("REMUDA_WORKER__SLOT", "1")]);
        let (text, code) = check(&invalid, false);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::FAILURE));
        let (text, _) = check(&invalid, true);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["problems"][0]["key"], "worker.slots");
        assert_eq!(value["problems"][0]["origin"], "REMUDA_WORKER__SLOTS");
    }

    #[test]
    fn invalid_log_filter_is_a_problem() {
        let (text, _) = check(&load(&[("REMUDA_TELEMETRY__LOG", "remuda=loud")]), false);
        assert!(
            text.starts_with("telemetry.log (REMUDA_TELEMETRY__LOG): invalid log filter: expected"),
            "{text}"
        );
    }

    #[test]
    fn secrets_are_masked_in_json() {
        let config = Config::load(&load(&[("REMUDA_STORE__URL", "postgres://u:hunter2@h/d")])).unwrap();
        let shown = to_json(&config).unwrap();
        assert_eq!(shown["store"]["url"], "postgres://u:***@h/d");
        assert_eq!(shown["worker"]["lease"], "15s");
    }
}
