//! Finds the directory and the session that a dry run refers to.

use std::path::{Path, PathBuf};

use remuda_client::Client;
use remuda_config::Config;
use remuda_domain::{Code, Error, error::Result, page::PageRequest};
use remuda_node::DEFAULT_TENANT;
use remuda_proto::v1;

use crate::client::run::RunArgs;

const DEFAULT_WORKSPACE: &str = "default";

/// Where the run would execute.
pub(super) struct RunTarget {
    pub(super) root: PathBuf,
    /// The session, if it exists already.
    pub(super) session: Option<v1::Session>,
    /// What could not be checked.
    pub(super) notes: Vec<String>,
}

pub(super) async fn resolve(args: &RunArgs, client: &Client, config: &Config) -> Result<RunTarget> {
    let mut notes = Vec::new();
    let session = match &args.session {
        Some(name) => session(name, client, &mut notes).await?,
        None => None,
    };
    let root = match (&args.dir, &args.workspace) {
        (Some(directory), _) => existing_directory(directory)?,
        (None, Some(name)) => workspace(name, client).await?,
        (None, None) => match &session {
            Some(session) => workspace_of(session, client).await?,
            None => default_workspace(client, config, &mut notes).await?,
        },
    };
    Ok(RunTarget { root, session, notes })
}

fn existing_directory(directory: &Path) -> Result<PathBuf> {
    let rejected =
        |why: &str| Error::new(Code::FileNotFound, format!("{} {why}", directory.display())).at("dir");
    let root = directory.canonicalize().map_err(|error| rejected("does not exist").with_source(error))?;
    if root.is_dir() { Ok(root) } else { Err(rejected("is not a directory")) }
}

/// The session with that name, if it exists. If the server is not reachable, the session is assumed to be new.
async fn session(name: &str, client: &Client, notes: &mut Vec<String>) -> Result<Option<v1::Session>> {
    match client.get_session(v1::GetSessionRequest { session: name.to_owned() }).await {
        Ok(response) => Ok(response.session),
        Err(error) if error.code() == Code::SessionNotFound && !name.starts_with("ses_") => Ok(None),
        Err(error) if error.code() == Code::Unavailable => {
            notes.push(format!("the server cannot be reached: assuming that {name} is a new session"));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

async fn workspace(name: &str, client: &Client) -> Result<PathBuf> {
    let response = client.get_workspace(v1::GetWorkspaceRequest { name: name.to_owned() }).await?;
    let found = response.workspace.ok_or_else(|| Error::internal("the server sent no workspace"))?;
    local_directory(&found)
}

/// The directory of a workspace. Workers have it; this machine may not.
fn local_directory(workspace: &v1::Workspace) -> Result<PathBuf> {
    let root = PathBuf::from(&workspace.root);
    if root.is_dir() {
        return Ok(root);
    }
    let message = format!(
        "the workspace {} is {} on the workers, and this machine has no such directory: run this where a worker runs, or \
         give a copy of it with --dir",
        workspace.name, workspace.root
    );
    Err(Error::new(Code::FileNotFound, message).at("workspace"))
}

async fn workspace_of(session: &v1::Session, client: &Client) -> Result<PathBuf> {
    let mut page_token = String::new();
    loop {
        let page_size = i32::try_from(PageRequest::MAX_SIZE).unwrap_or(i32::MAX);
        let page = client.list_workspaces(v1::ListWorkspacesRequest { page_size, page_token }).await?;
        if let Some(found) = page.workspaces.iter().find(|it| it.id == session.workspace_id) {
            return local_directory(found);
        }
        if page.next_page_token.is_empty() {
            let message = "the server does not list the session's workspace: use --dir";
            return Err(Error::new(Code::WorkspaceNotFound, message).at("session"));
        }
        page_token = page.next_page_token;
    }
}

async fn default_workspace(client: &Client, config: &Config, notes: &mut Vec<String>) -> Result<PathBuf> {
    match workspace(DEFAULT_WORKSPACE, client).await {
        Err(error) if error.code() == Code::Unavailable => {
            let root = remuda_node::workspace_root(config, DEFAULT_TENANT)?;
            if !root.is_dir() {
                let message = "the server cannot be reached to find the default workspace: use --dir";
                return Err(Error::new(Code::Unavailable, message).at("dir").with_source(error));
            }
            notes.push(
                "the server cannot be reached: using the default workspace of the configuration".to_owned(),
            );
            Ok(root)
        }
        other => other,
    }
}
