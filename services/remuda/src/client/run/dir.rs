//! Registers a directory as a workspace on first use.

use std::path::Path;

use remuda_client::Client;
use remuda_domain::{Code, Error, content::ContentHash, error::Result};
use remuda_proto::v1;

const MAX_CHARS: usize = 64;

/// The name of the workspace for this directory, which is registered if necessary.
pub(super) async fn workspace(directory: &Path, client: &Client) -> Result<String> {
    let canonical = directory.canonicalize().and_then(|path| {
        let is_directory = path.metadata()?.is_dir();
        if is_directory { Ok(path) } else { Err(std::io::Error::other("not a directory")) }
    });
    let path = canonical.map_err(|error| {
        Error::invalid("dir", format!("cannot use {}: {error}", directory.display())).with_source(error)
    })?;
    let root = path.to_str().ok_or_else(|| Error::invalid("dir", "expected a path in UTF-8"))?;
    let name = workspace_name(root);
    // Registering needs the scope operator, so first check whether the workspace exists.
    if let Some(workspace) = find(&name, client).await? {
        return check_root(workspace, root);
    }
    let request =
        v1::CreateWorkspaceRequest { name: name.clone(), root: root.to_owned(), tenant: String::new() };
    match client.create_workspace(request).await {
        Ok(_) => Ok(name),
        Err(error) if error.code() == Code::AlreadyExists => match find(&name, client).await? {
            Some(workspace) => check_root(workspace, root),
            None => Err(error),
        },
        Err(error) if error.code() == Code::PermissionDenied => {
            let message = format!(
                "the directory is not registered; an operator can do that: remuda workspace add {name} {root} --tenant NAME"
            );
            Err(Error::new(Code::PermissionDenied, message).at("dir"))
        }
        Err(error) => Err(error),
    }
}

async fn find(name: &str, client: &Client) -> Result<Option<v1::Workspace>> {
    match client.get_workspace(v1::GetWorkspaceRequest { name: name.to_owned() }).await {
        Ok(response) => Ok(response.workspace),
        Err(error) if error.code() == Code::WorkspaceNotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn check_root(workspace: v1::Workspace, root: &str) -> Result<String> {
    if workspace.root == root {
        return Ok(workspace.name);
    }
    let message = format!("the workspace {} is registered for {}", workspace.name, workspace.root);
    Err(Error::new(Code::AlreadyExists, message).at("dir"))
}

/// A readable name that is unique for each path, such as `project-1a2b3c4d`.
fn workspace_name(root: &str) -> String {
    let last = root.rsplit('/').next().unwrap_or_default();
    let plain = |c: char| if c.is_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' };
    let mut base: String = last.chars().map(plain).take(MAX_CHARS).collect();
    if base.is_empty() || base.starts_with("ses_") {
        base.insert_str(0, "dir-");
    }
    let hash: String = ContentHash::of(root).to_string().chars().take(8).collect();
    format!("{base}-{hash}")
}

#[cfg(test)]
mod tests {
    use remuda_domain::limits::check_name;

    use super::*;

    #[test]
    fn every_path_has_a_valid_and_distinct_name() {
        let long = format!("/srv/{}", "é".repeat(300));
        for root in ["/srv/project", "/", "/srv/ses_x", "/srv/a b\u{202e}\n", &long, "/日本"] {
            let name = workspace_name(root);
            check_name("name", &name).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        assert!(workspace_name("/srv/project").starts_with("project-"));
        assert_ne!(workspace_name("/srv/project"), workspace_name("/home/project"));
    }
}
