//! Admin commands that prepare the database: migrations and the API keys.

use std::{path::Path, process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::{process::Command, time::timeout};

use crate::{options::ClusterOptions, work_directory::WorkDirectory};

pub(crate) const TENANT: &str = "acme";
/// How long one command may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `remuda` directly against the database, without proxies.
pub(crate) struct Admin<'a> {
    pub(crate) options: &'a ClusterOptions,
    pub(crate) work_directory: &'a WorkDirectory,
    pub(crate) database: String,
}

impl Admin<'_> {
    pub(crate) async fn migrate(&self) -> Result<()> {
        self.run(&["migrate"]).await.map(drop)
    }

    /// Creates a key of the tenant.
    pub(crate) async fn create_key(&self) -> Result<String> {
        self.secret(&["--tenant", TENANT, "--scope", "write"]).await
    }

    pub(crate) async fn create_operator_key(&self) -> Result<String> {
        self.secret(&["--scope", "operator"]).await
    }

    async fn secret(&self, arguments: &[&str]) -> Result<String> {
        let output = self.run(&[&["keys", "create"][..], arguments].concat()).await?;
        let key: Value = serde_json::from_str(&output).context("`remuda keys create` does not print JSON")?;
        Ok(key["secret"].as_str().context("`remuda keys create` prints no secret")?.to_owned())
    }

    async fn run(&self, arguments: &[&str]) -> Result<String> {
        let directory = self.work_directory.directory("admin")?;
        let mut command = Command::new(&self.options.remuda);
        command.args(arguments).arg("--json").current_dir(&directory).env_clear();
        command.env("HOME", &directory).env("REMUDA_STORE__URL", &self.database);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let command_line = || format!("`{} {}`", file_name(&self.options.remuda), arguments.join(" "));
        let output = timeout(COMMAND_TIMEOUT, command.output())
            .await
            .with_context(|| format!("{} timed out", command_line()))?
            .with_context(|| format!("cannot run {}", command_line()))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{} failed: {}", command_line(), errors.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn file_name(program: &Path) -> String {
    program.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
