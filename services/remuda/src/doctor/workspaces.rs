//! Checks that the configuration allows the directories of the registered workspaces.

use std::path::Path;

use remuda_config::Config;
use remuda_domain::{error::Result, session::Workspace};
use remuda_roots::{Refusal, WorkspaceRoots};
use remuda_store::Store;
use tokio::time::timeout;

use super::{
    Check, Mode,
    services::{self, TIMEOUT},
};

const NAME: &str = "workspaces allowed";
const PAGE: u32 = 500;
/// More are only counted.
const MAX_SHOWN: usize = 10;

/// Lists the workspaces in which runs are refused. `None` if the store cannot be read, which its own check reports.
pub(super) async fn registered(config: &Config, mode: Mode) -> Option<Check> {
    let options = services::existing_store(config, mode)?;
    let roots = remuda_node::workspace_roots(config, mode.into());
    let inspection = async {
        let store = remuda_store::connect(&options).await.ok()?;
        refused(&*store, roots).await.ok()
    };
    let (count, refused) = timeout(TIMEOUT * 2, inspection).await.ok()??;
    Some(check(count, &refused))
}

/// A workspace that is not allowed: its tenant and name, and why.
type Refused = (String, Refusal);

/// The number of workspaces, and those that are not allowed.
async fn refused(store: &dyn Store, roots: WorkspaceRoots) -> Result<(usize, Vec<Refused>)> {
    let (mut count, mut found, mut after) = (0, Vec::new(), None);
    loop {
        let page = store.list_all_workspaces(after, PAGE).await?;
        let Some((_, last)) = page.last() else { return Ok((count, found)) };
        (count, after) = (count + page.len(), Some(last.id));
        let roots = roots.clone();
        // Resolving links may block.
        let looked = tokio::task::spawn_blocking(move || {
            let refusal = |(tenant, workspace): (String, Workspace)| {
                let refusal = roots.admit(&tenant, Path::new(&workspace.root)).err()?;
                Some((format!("{} of {tenant} ({})", workspace.name, workspace.root), refusal))
            };
            page.into_iter().filter_map(refusal).collect::<Vec<_>>()
        });
        found.extend(looked.await.unwrap_or_default());
    }
}

fn check(count: usize, refused: &[Refused]) -> Check {
    if refused.is_empty() {
        return Check::ok(NAME, format!("all of {count}"));
    }
    let shown = refused.iter().take(MAX_SHOWN).map(|(name, refusal)| format!("{name} {}", refusal.why()));
    let mut shown: Vec<String> = shown.collect();
    if refused.len() > MAX_SHOWN {
        shown.push(format!("and {} more", refused.len() - MAX_SHOWN));
    }
    Check::warning(
        NAME,
        format!("{} of {count} are refused: {}", refused.len(), shown.join("; ")),
        "add their directories to workspaces.allowed, or move them; until then their runs fail with workspace_not_allowed",
    )
}
