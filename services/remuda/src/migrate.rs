//! `remuda migrate`: migrates the database schema, and tells what changes for existing API keys.

use std::process::ExitCode;

use remuda_config::Config;
use remuda_domain::error::Result;
use serde_json::{Value, json};

use crate::{
    keys::{OwnedKey, with_owners},
    output::Output,
    serve::inferred_mode,
};

pub(crate) async fn execute(config: &Config, output: Output) -> Result<ExitCode> {
    let options = remuda_node::store_options(config, inferred_mode(config))?;
    let before = remuda_store::migrate(&options).await?;
    let after = remuda_store::schema_status(&options).await?;
    let administrators = if options.predates_operators(before.found)? {
        let store = remuda_store::connect(&options).await?;
        let keys = remuda_node::tenant_administrators(&*store).await?;
        with_owners(&store, keys).await?
    } else {
        Vec::new()
    };
    if output.json {
        let keys: Vec<Value> = administrators.iter().map(OwnedKey::to_json).collect();
        output.json_line(&json!({ "from": before.found, "to": after.found, "tenant_administrators": keys }));
    } else if before.found == after.found {
        output.out.line(&format!("the schema is already at version {}", after.found));
    } else {
        output.out.line(&format!("migrated from version {} to {}", before.found, after.found));
        print_administrators(&administrators, output);
    }
    Ok(ExitCode::SUCCESS)
}

/// Says which keys lose the fleet: those with the scope `admin` from before the scope `operator` existed.
fn print_administrators(keys: &[OwnedKey], output: Output) {
    let count = match keys.len() {
        0 => return,
        1 => "1 key has".to_owned(),
        count => format!("{count} keys have"),
    };
    output
        .out
        .line(&format!("{count} the scope admin, which now manages one tenant only, no longer the fleet:"));
    for OwnedKey { key, tenant } in keys {
        output.out.line(&format!("  {} {} of tenant {}", key.id, key.name, tenant.as_deref().unwrap_or("-")));
    }
    output.out.line(
        "drain, log filters, queues, workers, tasks, sandboxes and workspace directories need a key of the operator:",
    );
    output.out.line("  remuda keys create --scope operator --name ops");
}
