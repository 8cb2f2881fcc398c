//! What agents are made of in this process: where definitions come from, and how models are asked.

use std::path::{Path, PathBuf};

use remuda_config::Config;
use remuda_domain::error::Result;
use remuda_engine::{AgentRuntime, AgentSettings};
use remuda_models::{AddressRule, ModelOptions, Models};
use remuda_tools::web::{Allowed, may_connect};
use remuda_workspace::{EnvironmentAccess, Loader, PlatformDirectories};

use crate::open::Mode;

/// Variables of ours, which hold secrets and are nobody else's business.
const OUR_VARIABLES: &str = "REMUDA_";

pub(crate) fn runtime(config: &Config, mode: Mode) -> Result<AgentRuntime> {
    let default_model = Some(config.platform.default_model.clone()).filter(|model| !model.is_empty());
    let settings = AgentSettings { default_model, ..AgentSettings::default() };
    Ok(AgentRuntime::new(loader(config, mode), models(config, mode)?, settings))
}

/// Reads workspaces as this process may.
#[must_use]
pub fn loader(config: &Config, mode: Mode) -> Loader {
    let platform = &config.platform;
    let directory = |path: &Path| (!path.as_os_str().is_empty()).then(|| path.to_owned());
    let directories = PlatformDirectories {
        models: directory(&platform.models_dir),
        agents: directory(&platform.agents_dir),
        skills: directory(&platform.skills_dir),
        tools: directory(&platform.tools_dir),
        templates: directory(&platform.templates_dir),
    };
    Loader::new(directories, environment(config, mode))
}

/// In the embedded mode whoever writes a workspace's files is who started this process.
fn environment(config: &Config, mode: Mode) -> EnvironmentAccess {
    let allowed = &config.platform.workspace_env;
    if allowed.is_empty() && mode == Mode::Embedded {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        return EnvironmentAccess::from_process(names.filter(|name| !name.starts_with(OUR_VARIABLES)));
    }
    EnvironmentAccess::from_process(allowed.iter().cloned())
}

/// Asks models as the configuration says. In the split mode, those of workspaces are on the public web or where the operator
/// allows it: tenants write their addresses.
pub fn models(config: &Config, mode: Mode) -> Result<Models> {
    let settings = &config.models;
    let allowed = settings.workspace_allowed.iter();
    let allowed = allowed.map(|entry| Allowed::parse("models.workspace_allowed", entry));
    let allowed = allowed.collect::<Result<Vec<Allowed>>>()?;
    let rule = AddressRule::new(move |host, address, port| may_connect(&allowed, host, address, port));
    Ok(Models::new(ModelOptions {
        workspace_rule: (mode == Mode::Split).then_some(rule),
        connect_timeout: settings.connect_timeout,
        first_byte_timeout: settings.first_byte_timeout,
        idle_timeout: settings.idle_timeout,
        max_attempts: settings.max_attempts,
        base_delay: settings.retry_delay,
        ..ModelOptions::default()
    }))
}

/// Templates of the platform, for new workspaces.
#[must_use]
pub fn templates(config: &Config) -> Option<PathBuf> {
    let directory = &config.platform.templates_dir;
    (!directory.as_os_str().is_empty()).then(|| directory.clone())
}
