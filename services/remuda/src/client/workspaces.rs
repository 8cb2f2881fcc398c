//! `remuda workspace add` and `list`: registers and lists workspaces on the server.

use std::path::{Path, PathBuf};

use remuda_client::Client;
use remuda_domain::{Error, error::Result};
use remuda_proto::{convert, v1};

use super::{exit::Exit, json, pages::PageArgs};
use crate::output::{Output, Style, Table, ago, one_line};

#[derive(Debug)]
pub(crate) enum WorkspacesCommand {
    Add { name: String, directory: PathBuf, tenant: Option<String> },
    List { pages: PageArgs },
}

pub(super) async fn execute(command: WorkspacesCommand, client: &Client, output: Output) -> Result<Exit> {
    match command {
        WorkspacesCommand::Add { name, directory, tenant } => {
            let request = v1::CreateWorkspaceRequest {
                name,
                root: root(&directory)?,
                tenant: tenant.unwrap_or_default(),
            };
            add(request, client, output).await
        }
        WorkspacesCommand::List { pages } => list(pages, client, output).await,
    }
}

async fn add(request: v1::CreateWorkspaceRequest, client: &Client, output: Output) -> Result<Exit> {
    let workspace = client.create_workspace(request).await?.workspace;
    let workspace = workspace.ok_or_else(|| Error::internal("the server sent no workspace"))?;
    if output.json {
        output.json_line(&json::workspace(&workspace));
        return Ok(Exit::Ok);
    }
    let (name, root) = (one_line(&workspace.name), one_line(&workspace.root));
    output.out.line(&format!("{} is {root}", output.out.paint(Style::Bold, &name)));
    output.note(&format!("use it with: remuda run \"…\" --workspace {}", super::watch::shell_word(&name)));
    Ok(Exit::Ok)
}

/// Makes a local path absolute. A path that does not exist here is kept, since workers may have it.
fn root(directory: &Path) -> Result<String> {
    let path = match directory.canonicalize() {
        Ok(path) => path,
        Err(_) if directory.is_absolute() => directory.to_owned(),
        Err(error) => {
            let message = format!("cannot use {}: {error}", directory.display());
            return Err(Error::invalid("dir", message).with_source(error));
        }
    };
    let text = path.to_str().ok_or_else(|| Error::invalid("dir", "expected a path in UTF-8"))?;
    Ok(text.to_owned())
}

async fn list(pages: PageArgs, client: &Client, output: Output) -> Result<Exit> {
    let fetch = |page_size, page_token| {
        let request = v1::ListWorkspacesRequest { page_size, page_token };
        async { client.list_workspaces(request).await.map(|page| (page.workspaces, page.next_page_token)) }
    };
    let now = chrono::Utc::now();
    let mut table = Table::new(output.out, &["NAME", "DIRECTORY", "CREATED", "ID"]);
    let show = |workspace: v1::Workspace| {
        if output.json {
            return output.json_line(&json::workspace(&workspace));
        }
        let created = workspace.created_at.as_ref().and_then(convert::from_timestamp);
        table.row([
            (workspace.name, Some(Style::Bold)),
            (workspace.root, None),
            (created.map(|at| ago(at, now)).unwrap_or_default(), None),
            (workspace.id, Some(Style::Dim)),
        ]);
    };
    let more = pages.each(fetch, show).await?;
    if !output.json {
        table.print();
        if more {
            output.note("there are more: use --limit or --all");
        }
    }
    Ok(Exit::Ok)
}
