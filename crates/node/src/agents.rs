//! Builds the agent runtime from the configuration: loader, models and settings.

use std::path::{Path, PathBuf};

use remuda_config::Config;
use remuda_domain::{error::Result, execution::Policies};
use remuda_egress::{AllowRule, may_connect};
use remuda_engine::{
    AgentRuntime, AgentSettings, ContextSettings, DelegationSettings, OnExpiry, PermissionSettings,
};
use remuda_models::{AddressRule, ModelOptions, Models};
use remuda_workspace::{EnvironmentAccess, Loader, PlatformDirectories};

use crate::{
    connections::Mode,
    execution::{policies, tool_catalog},
};

/// The prefix of our own variables, which may contain secrets.
const OWN_PREFIX: &str = "REMUDA_";

pub(crate) fn runtime(config: &Config, mode: Mode) -> Result<AgentRuntime> {
    let settings = settings(config, &*policies(config)?);
    Ok(AgentRuntime::new(loader(config, mode), models(config, mode)?, settings))
}

/// The operator's settings for agents, as loaded at the start of the process.
fn settings(config: &Config, policies: &Policies) -> AgentSettings {
    AgentSettings {
        default_model: Some(config.platform.default_model.clone()).filter(|model| !model.is_empty()),
        permissions: permissions(&config.permissions, policies),
        delegation: DelegationSettings { max_depth: config.delegation.max_depth },
        context: context(config),
        run_budget: config.budget.limit(),
    }
}

/// Settings for the size of conversations.
#[must_use]
pub fn context(config: &Config) -> ContextSettings {
    let context = &config.context;
    ContextSettings {
        window: context.window.into(),
        clear_at: context.clear_at,
        summarize_at: context.summarize_at,
        keep_results: usize::try_from(context.keep_results).unwrap_or(usize::MAX),
        max_failures: context.max_failures,
    }
}

fn permissions(permissions: &remuda_config::Permissions, policies: &Policies) -> PermissionSettings {
    let tenants = policies.tenants.iter().filter(|(_, policy)| !policy.permissions.is_empty());
    PermissionSettings {
        mode: permissions.mode,
        rules: permissions.rules.iter().cloned().map(Into::into).collect(),
        tenants: tenants.map(|(tenant, policy)| (tenant.clone(), policy.permissions.clone())).collect(),
        unattended: permissions.unattended,
        approvers: permissions.approvers.clone(),
        expire_after: Some(permissions.expire_after).filter(|after| !after.is_zero()),
        on_expiry: match permissions.on_expiry {
            remuda_config::OnExpiry::Tell => OnExpiry::Tell,
            remuda_config::OnExpiry::Fail => OnExpiry::Fail,
        },
    }
}

/// A workspace loader with the platform's directories.
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
    Loader::new(directories, environment(config, mode), tool_catalog().clone())
}

/// The variables that workspaces may read. In the embedded mode, workspaces belong to the user who started the process.
fn environment(config: &Config, mode: Mode) -> EnvironmentAccess {
    let allowed = &config.platform.workspace_env;
    if allowed.is_empty() && mode == Mode::Embedded {
        return EnvironmentAccess::from_process(["*".to_owned(), format!("!{OWN_PREFIX}*")]);
    }
    EnvironmentAccess::from_process(allowed.iter().cloned())
}

/// The model client. In the split mode, models of workspaces must be at public or explicitly allowed addresses, since
/// tenants set their URLs.
pub fn models(config: &Config, mode: Mode) -> Result<Models> {
    let settings = &config.models;
    let allowed = settings.workspace_allowed.iter();
    let allowed = allowed.map(|entry| AllowRule::parse("models.workspace_allowed", entry));
    let allowed = allowed.collect::<Result<Vec<AllowRule>>>()?;
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

/// The platform's templates for new workspaces.
#[must_use]
pub fn templates(config: &Config) -> Option<PathBuf> {
    let directory = &config.platform.templates_dir;
    (!directory.as_os_str().is_empty()).then(|| directory.clone())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use remuda_domain::{
        execution::TenantPolicy,
        permission::{PermissionAction, PermissionMode, PermissionRule, Unattended},
    };

    use super::*;

    #[test]
    fn default_config_gives_the_default_settings_of_the_engine() {
        let (ours, theirs) = (settings(&Config::default(), &Policies::default()), AgentSettings::default());
        assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
    }

    #[test]
    fn all_configured_settings_reach_the_engine() {
        let mut config = Config::default();
        config.platform.default_model = "platform/m".to_owned();
        config.permissions.mode = PermissionMode::Plan;
        config.permissions.unattended = Unattended::Fail;
        config.permissions.approvers = vec!["ann".to_owned()];
        config.permissions.expire_after = Duration::ZERO;
        config.permissions.on_expiry = remuda_config::OnExpiry::Fail;
        let rule = remuda_config::Rule {
            permission: "bash".to_owned(),
            pattern: "rm *".to_owned(),
            action: PermissionAction::Deny,
            locked: true,
        };
        config.permissions.rules = vec![rule.clone()];
        config.delegation.max_depth = 2;
        config.context.window = 5000;
        config.context.keep_results = 1;
        config.budget.run_tokens = 7;
        let of_tenant = PermissionRule::new("webfetch", "*", PermissionAction::Ask);
        let acme = TenantPolicy { permissions: vec![of_tenant.clone()], ..TenantPolicy::default() };
        let tenants = [("acme".to_owned(), acme), ("other".to_owned(), TenantPolicy::default())];
        let settings = settings(&config, &Policies { tenants: tenants.into(), ..Policies::default() });

        let permissions = &settings.permissions;
        assert_eq!(permissions.rules, [PermissionRule::from(rule)]);
        assert_eq!(permissions.tenants, [("acme".to_owned(), vec![of_tenant])].into());
        assert_eq!((permissions.mode, permissions.unattended), (PermissionMode::Plan, Unattended::Fail));
        assert_eq!((permissions.expire_after, permissions.on_expiry), (None, OnExpiry::Fail));
        assert_eq!(permissions.approvers, ["ann"]);
        assert_eq!((settings.delegation.max_depth, settings.context.window), (2, 5000));
        assert_eq!((settings.context.keep_results, settings.run_budget.tokens), (1, Some(7)));
        assert_eq!(settings.default_model.as_deref(), Some("platform/m"));
    }
}
