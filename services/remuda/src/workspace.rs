//! `remuda workspace`: creates, checks, shows and registers workspaces.
//!
//! Most commands need no server: they read the definitions of a directory as a worker would.

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
use remuda_workspace::LoadedWorkspace;

use crate::{
    client::{self, Connection, PageArgs, WorkspacesCommand},
    output::Output,
    serve::inferred_mode,
};

pub(crate) const EXAMPLES: &str = "\
Examples:
  remuda workspace init                    make this directory a workspace
  remuda workspace check                   list mistakes with file and line
  remuda workspace show                    its agents, models and skills
  remuda workspace show --agent build      all properties of one agent
  remuda run \"what is this?\" --dir .       run an agent in it

  remuda workspace add site /srv/site      register it for sessions under a name
  remuda run \"what is this?\" --workspace site

A workspace has AGENTS.md, which is part of every agent's prompt, and .openharness with settings.yaml, agents/*.md, models/*.yaml and
skills/*/SKILL.md. Agents written for OpenCode (.opencode, opencode.json) and CodingCode (.codingcode) are read too.";

#[derive(Debug, Subcommand)]
pub(crate) enum WorkspaceCommand {
    /// Create a workspace from a template.
    ///
    /// Existing files are kept. The template is only copied; later changes to it have no effect.
    Init {
        #[arg(value_name = "DIR", default_value = ".")]
        dir: PathBuf,
        /// default, chat, a template of platform.templates_dir, or the path of a directory (with a /).
        #[arg(long, value_name = "NAME|DIR", default_value = "default")]
        template: String,
    },
    /// Check the definitions of a workspace.
    ///
    /// Prints one line per problem: file:line:column: severity: message. A definition with an error is ignored; the others can
    /// be used. Exits with 1 if there is an error.
    Check {
        #[arg(value_name = "DIR", default_value = ".")]
        dir: PathBuf,
    },
    /// Show the agents, models and skills of a workspace, including built-in ones and those of the operator.
    Show {
        #[arg(value_name = "DIR", default_value = ".")]
        dir: PathBuf,
        /// Show all properties of this agent instead.
        #[arg(long, value_name = "NAME")]
        agent: Option<String>,
    },
    /// Register a directory as a workspace under a name. Asks the server; needs the scope operator.
    ///
    /// The workers must have the directory under the same path. It must lie beneath workspaces.root/TENANT or beneath a
    /// directory of workspaces.allowed. A server that requires no keys takes every directory except those of the system.
    Add {
        /// Name of the workspace.
        name: String,
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// Tenant that the workspace is for. Required where keys are.
        #[arg(long)]
        tenant: Option<String>,
    },
    /// List the registered workspaces. Asks the server.
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
        WorkspaceCommand::Add { name, dir, tenant } => {
            let command = WorkspacesCommand::Add { name, directory: dir, tenant };
            client::workspaces(command, connection, output).await
        }
        WorkspaceCommand::List { pages } => {
            client::workspaces(WorkspacesCommand::List { pages }, connection, output).await
        }
    }
}

/// The absolute path of an existing directory.
fn existing_directory(dir: &Path) -> Result<PathBuf> {
    let rejected = |why: &str| Error::new(Code::FileNotFound, format!("{} {why}", dir.display())).at("dir");
    let root = dir.canonicalize().map_err(|error| rejected("does not exist").with_source(error))?;
    if root.is_dir() { Ok(root) } else { Err(rejected("is not a directory")) }
}

/// Loads the definitions of a directory, as a worker with this configuration would.
pub(crate) async fn load(dir: &Path, config: &Config) -> Result<(PathBuf, Arc<LoadedWorkspace>)> {
    let root = existing_directory(dir)?;
    let loader = remuda_node::loader(config, inferred_mode(config));
    let path = root.clone();
    let current = tokio::task::spawn_blocking(move || loader.current(&path)).await;
    let failed = |error| Error::internal("the workspace could not be read").with_source(error);
    Ok((root, current.map_err(failed)?))
}

/// The path of a directory, sanitized.
fn display_path(root: &Path) -> String {
    crate::output::one_line(&root.display().to_string())
}
