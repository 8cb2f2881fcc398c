//! `remuda migrate`: migrates the database schema.

use std::process::ExitCode;

use remuda_config::Config;
use remuda_domain::error::Result;
use serde_json::json;

use crate::{output::Output, serve::inferred_mode};

pub(crate) async fn execute(config: &Config, output: Output) -> Result<ExitCode> {
    let options = remuda_node::store_options(config, inferred_mode(config))?;
    let before = remuda_store::migrate(&options).await?;
    let after = remuda_store::schema_status(&options).await?;
    if output.json {
        output.json_line(&json!({ "from": before.found, "to": after.found }));
    } else if before.found == after.found {
        output.out.line(&format!("the schema is already at version {}", after.found));
    } else {
        output.out.line(&format!("migrated from version {} to {}", before.found, after.found));
    }
    Ok(ExitCode::SUCCESS)
}
