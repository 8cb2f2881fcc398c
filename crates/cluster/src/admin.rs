//! Commands that prepare the database.

use std::{path::Path, process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::{process::Command, time::timeout};

use crate::{home::Home, options::ClusterOptions};

const TENANT: &str = "acme";
/// How long one command may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `remuda` with the rights of whoever has the database, past all proxies.
pub(crate) struct Admin<'a> {
    pub(crate) options: &'a ClusterOptions,
    pub(crate) home: &'a Home,
    pub(crate) database: String,
}

impl Admin<'_> {
    pub(crate) async fn migrate(&self) -> Result<()> {
        self.run(&["migrate"]).await.map(drop)
    }

    pub(crate) async fn create_key(&self) -> Result<String> {
        let scopes = ["--scope", "write", "--scope", "admin"];
        let said = self.run(&[&["keys", "create", "--tenant", TENANT][..], &scopes].concat()).await?;
        let key: Value = serde_json::from_str(&said).context("`remuda keys create` does not print JSON")?;
        Ok(key["secret"].as_str().context("`remuda keys create` prints no secret")?.to_owned())
    }

    async fn run(&self, arguments: &[&str]) -> Result<String> {
        let place = self.home.directory("admin")?;
        let mut command = Command::new(&self.options.remuda);
        command.args(arguments).arg("--json").current_dir(&place).env_clear();
        command.env("HOME", &place).env("REMUDA_STORE__URL", &self.database);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let what = || format!("`{} {}`", name_of(&self.options.remuda), arguments.join(" "));
        let output = timeout(COMMAND_TIMEOUT, command.output())
            .await
            .with_context(|| format!("{} takes too long", what()))?
            .with_context(|| format!("cannot run {}", what()))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{} failed: {}", what(), errors.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn name_of(program: &Path) -> String {
    program.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
