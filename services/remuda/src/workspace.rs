//! `remuda workspace`: directories that declare agents, models and skills.
//!
//! Most of it needs no server: what a directory declares is read here as workers read it.

pub(crate) mod check;
mod init;
mod resolve;
pub(crate) mod rules;
mod show;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use clap::Subcommand;
use remuda_config::Config;
use remuda_domain::{Code, Error, error::Result};
use remuda_workspace::Current;

use crate::{
    client::{self, Connection, PageArgs, WorkspacesCommand},
    output::Output,
    serve::inferred_mode,
};

pub(crate) const EXAMPLES: &str = "\
Examples:
  remuda workspace init                    make this directory a workspace
  remuda workspace check                   everything that is wrong with it, with file and line
  remuda workspace show                    its agents, models and skills
  remuda workspace show --agent build      one agent, whole
  remuda run \"what is this?\" --dir .       work in it

  remuda workspace add site /srv/site      let sessions use it by name
  remuda run \"what is this?\" --workspace site

A workspace has AGENTS.md, which every agent is told, and .openharness with settings.yaml, agents/*.md, models/*.yaml and
skills/*/SKILL.md. Agents written for OpenCode (.opencode, opencode.json) and CodingCode (.codingcode) are read too.";

#[derive(Debug, Subcommand)]
pub(crate) enum WorkspaceCommand {
    /// Put the files of a template into a directory.
    ///
    /// What is there already stays as it is. A template only gives a beginning: nothing is read from it later.
    Init {
        #[arg(value_name = "DIR", default_value = ".")]
        dir: PathBuf,
        /// default, chat, one of platform.templates_dir, or any directory (with a / in it).
        #[arg(long, value_name = "NAME|DIR", default_value = "default")]
        template: String,
    },
    /// Say what is wrong with the definitions of a directory.
    ///
    /// One line for each problem: file:line:column: severity: what was found and what was expected. A definition with an error
    /// is not used; all others are. Exits with 1 if there is an error.
    Check {
        #[arg(value_name = "DIR", default_value = ".")]
        dir: PathBuf,
    },
    /// Show what a directory declares, together with what is built in and what the operator adds.
    Show {
        #[arg(value_name = "DIR", default_value = ".")]
        dir: PathBuf,
        /// Only this agent, with all there is to know about it.
        #[arg(long, value_name = "NAME")]
        agent: Option<String>,
    },
    /// Register a directory that the workers have, for sessions to use by name. Asks the server; needs the scope admin.
    Add {
        name: String,
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
    /// List the workspaces that are registered. Asks the server.
    List {
        #[command(flatten)]
        pages: PageArgs,
    },
}

pub(crate) async fn execute(
    command: WorkspaceCommand,
    connection: &Connection,
    config: impl FnOnce() -> Result<Config>,
    output: Output,
) -> Result<ExitCode> {
    match command {
        WorkspaceCommand::Init { dir, template } => init::init(&dir, &template, &config()?, output).await,
        WorkspaceCommand::Check { dir } => check::check(&dir, &config()?, output).await,
        WorkspaceCommand::Show { dir, agent: None } => show::show(&dir, &config()?, output).await,
        WorkspaceCommand::Show { dir, agent: Some(agent) } => {
            show::show_agent(&dir, &agent, &config()?, output).await
        }
        WorkspaceCommand::Add { name, dir } => {
            client::workspaces(WorkspacesCommand::Add { name, directory: dir }, connection, output).await
        }
        WorkspaceCommand::List { pages } => {
            client::workspaces(WorkspacesCommand::List { pages }, connection, output).await
        }
    }
}

/// A directory that exists, in full.
fn existing(dir: &Path) -> Result<PathBuf> {
    let refused = |why: &str| Error::new(Code::FileNotFound, format!("{} {why}", dir.display())).at("dir");
    let root = dir.canonicalize().map_err(|error| refused("does not exist").with_source(error))?;
    if root.is_dir() { Ok(root) } else { Err(refused("is no directory")) }
}

/// What a directory declares, as workers with this configuration would read it.
pub(crate) async fn load(dir: &Path, config: &Config) -> Result<(PathBuf, Arc<Current>)> {
    let root = existing(dir)?;
    let loader = remuda_node::loader(config, inferred_mode(config));
    let path = root.clone();
    let current = tokio::task::spawn_blocking(move || loader.current(&path)).await;
    let failed = |error| Error::internal("the workspace could not be read").with_source(error);
    Ok((root, current.map_err(failed)?))
}

/// A directory for the eye: here as `.`.
fn shown(root: &Path) -> String {
    crate::output::one_line(&root.display().to_string())
}
