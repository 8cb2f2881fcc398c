//! `remuda models`: lists and tests models.
//!
//! Needs no server: reads the definitions and calls the models as a worker would. API keys are never shown.

mod test;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Subcommand;
use remuda_config::Config;
use remuda_domain::{
    error::Result,
    model::{ModelDefinition, ProviderKind},
    money::dollars,
};
use remuda_workspace::Definitions;
use serde_json::{Value, json};

pub(crate) use self::test::measure_response;

use crate::{
    output::{Output, Style, Table, count},
    workspace,
};

pub(crate) const EXAMPLES: &str = "\
Examples:
  remuda models list                        models of the platform and of this directory
  remuda models list --dir /srv/site --json
  remuda models test platform/sonnet        send a test message; shows the latency

A model is an entry of a YAML file, in platform.models_dir or in .openharness/models of a workspace:

  sonnet:
    provider: anthropic                     openai, openai-compatible, anthropic or scripted
    name: claude-sonnet-4-5                 the provider's name of the model; for scripted the scenario file
    key: ${env.ANTHROPIC_API_KEY}           keep API keys in the environment
    context_window: 200000                  tokens; longer conversations are compacted
    price: { input: 3, output: 15 }         dollars per million tokens; needed for cost budgets
  local:
    provider: openai-compatible
    url: http://127.0.0.1:8000/v1
    name: qwen3-coder

Refer to it as platform/sonnet or workspace/sonnet, or just sonnet, which is looked up in the workspace first.";

#[derive(Debug, Subcommand)]
pub(crate) enum ModelsCommand {
    /// List the models of the platform and of a workspace.
    List {
        /// Directory of the workspace.
        #[arg(long, value_name = "DIR", default_value = ".")]
        dir: PathBuf,
    },
    /// Send one short test message to a model.
    ///
    /// Prints the answer to stdout, and the latency and the tokens to stderr. Exits with 1 if the model does not answer.
    Test {
        /// platform/NAME, workspace/NAME, NAME, or an alias of the workspace.
        #[arg(value_name = "MODEL")]
        model: String,
        /// Directory of the workspace.
        #[arg(long, value_name = "DIR", default_value = ".")]
        dir: PathBuf,
    },
}

pub(crate) async fn execute(command: ModelsCommand, config: &Config, output: Output) -> Result<ExitCode> {
    match command {
        ModelsCommand::List { dir } => list(&dir, config, output).await,
        ModelsCommand::Test { model, dir } => test::test(&model, &dir, config, output).await,
    }
}

async fn list(dir: &Path, config: &Config, output: Output) -> Result<ExitCode> {
    let (_, current) = workspace::load(dir, config).await?;
    let definitions = &current.definitions;
    if output.json {
        definitions.models.values().for_each(|model| output.json_line(&to_json(model)));
        return Ok(ExitCode::SUCCESS);
    }
    table(definitions, output);
    if definitions.models.is_empty() {
        output.note("there are no models: `remuda models --help` shows how to describe one");
    }
    let problem_count = definitions.problems.iter().filter(|problem| problem.file.contains("models")).count();
    if problem_count > 0 {
        let problems = if problem_count == 1 { "problem" } else { "problems" };
        output.note(&format!("{problem_count} {problems} with models: see `remuda workspace check`"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The models as a table, without keys.
pub(crate) fn table(definitions: &Definitions, output: Output) {
    if definitions.models.is_empty() {
        return;
    }
    let mut table =
        Table::new(output.out, &["MODEL", "PROVIDER", "NAME", "ADDRESS", "KEY", "WINDOW", "PRICE"]);
    for model in definitions.models.values() {
        let (key, style) = match (model.provider, &model.key) {
            (ProviderKind::Scripted, _) => ("not needed", Some(Style::Dim)),
            (_, Some(_)) => ("yes", Some(Style::Good)),
            (ProviderKind::OpenAiCompatible, None) => ("no", Some(Style::Dim)),
            (_, None) => ("no", Some(Style::Warn)),
        };
        let shown_address = match (&model.url, model.provider) {
            (Some(url), _) => address(url),
            (None, ProviderKind::Scripted) => "-".to_owned(),
            (None, _) => "provider default".to_owned(),
        };
        table.row([
            (model.reference.to_string(), Some(Style::Bold)),
            (model.provider.as_str().to_owned(), None),
            (model.name.clone(), None),
            (shown_address, None),
            (key.to_owned(), style),
            (model.context_window.map_or("-".to_owned(), count), None),
            (price(model), None),
        ]);
    }
    table.print();
}

/// Price per million tokens, such as `$3.00 in, $15.00 out`.
pub(crate) fn price(model: &ModelDefinition) -> String {
    let Some(price) = &model.price else { return "-".to_owned() };
    let mut text = format!("{} in, {} out", dollars(price.input), dollars(price.output));
    if let Some(cached) = price.cached_input {
        text.push_str(&format!(", {} cached", dollars(cached)));
    }
    text
}

/// A model as JSON, without secrets.
pub(crate) fn to_json(model: &ModelDefinition) -> Value {
    json!({
        "reference": model.reference,
        "provider": model.provider,
        "name": model.name,
        "url": model.url.as_deref().map(address),
        "key": model.key.is_some(),
        "headers": model.headers.keys().collect::<Vec<_>>(),
        "parameters": model.parameters,
        "context_window": model.context_window,
        "max_output_tokens": model.max_output_tokens,
        "price": model.price,
    })
}

/// An address without possible secrets: user info and query.
fn address(url: &str) -> String {
    let (base, query) = url.split_once('?').map_or((url, false), |(base, _)| (base, true));
    let (scheme, rest) = base.split_once("://").unwrap_or(("", base));
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.rsplit_once('@').map_or(host.to_owned(), |(_, host)| format!("***@{host}"));
    let separator = if scheme.is_empty() { "" } else { "://" };
    format!("{scheme}{separator}{host}{path}{}", if query { "?…" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_and_queries_are_removed_from_addresses() {
        for (url, shown) in [
            ("https://host/v1", "https://host/v1"),
            ("https://host", "https://host"),
            ("https://user:secret@host:8000/v1", "https://***@host:8000/v1"),
            ("https://host/v1?api-key=secret", "https://host/v1?…"),
            ("https://a:b@c@host/@x", "https://***@host/@x"),
        ] {
            assert_eq!(address(url), shown);
        }
    }
}
