//! The permission rules of an agent, with their sources.

use remuda_config::Config;
use remuda_domain::{
    agent::AgentDefinition,
    error::Result,
    permission::{PermissionMode, PermissionRule, SessionPermissions, Unattended},
};
use remuda_node::DEFAULT_TENANT;
use remuda_permissions::{Layer, Ruleset};
use remuda_workspace::Definitions;
use serde_json::{Value, json};

/// The permissions of an agent in a session, as a worker with this configuration would apply them.
pub(crate) struct Rules {
    pub(crate) rules: Ruleset,
    pub(crate) mode: PermissionMode,
    /// What set the mode.
    pub(crate) mode_of: &'static str,
    pub(crate) unattended: Unattended,
    pub(crate) approvers: Vec<String>,
}

impl Rules {
    /// Uses the rules of the default tenant, because only servers know the tenant of a key.
    pub(crate) fn of(
        definitions: &Definitions,
        agent: &AgentDefinition,
        session: &SessionPermissions,
        config: &Config,
    ) -> Result<Self> {
        let (platform, settings) = (&config.permissions, &definitions.settings);
        let policies = remuda_node::policies(config)?;
        let tenant = policies.tenants.get(DEFAULT_TENANT).map(|policy| policy.permissions.clone());
        let rules = Ruleset::new()
            .with(Layer::Platform, platform.rules.iter().cloned().map(Into::into))
            .with(Layer::Tenant, tenant.unwrap_or_default())
            .with(Layer::Workspace, settings.permission.iter().cloned())
            .with(Layer::Agent, agent.permission.iter().cloned())
            .with(Layer::Session, session.rules.iter().cloned());
        let modes = [
            ("the session", session.mode),
            ("the agent", agent.permission_mode),
            ("the workspace", settings.permission_mode),
        ];
        // Plan mode wins wherever it is set.
        let plan = modes.iter().find(|(_, mode)| *mode == Some(PermissionMode::Plan));
        let first = plan.or_else(|| modes.iter().find(|(_, mode)| mode.is_some()));
        let (mode_of, mode) = match first {
            Some((source, Some(mode))) => (*source, *mode),
            _ => ("the platform", platform.mode),
        };
        Ok(Self {
            rules,
            mode,
            mode_of,
            unattended: session.unattended.or(settings.unattended).unwrap_or(platform.unattended),
            approvers: if session.approvers.is_empty() {
                platform.approvers.clone()
            } else {
                session.approvers.clone()
            },
        })
    }

    /// Layer and text of each rule, in order; the last matching rule decides.
    pub(crate) fn to_text(&self) -> Vec<(&'static str, String)> {
        self.rules.rules().map(|(layer, rule)| (layer.as_str(), rule_text(rule))).collect()
    }

    pub(crate) fn contradictions(&self) -> Vec<String> {
        self.rules.contradictions(remuda_node::tool_catalog()).iter().map(ToString::to_string).collect()
    }

    pub(crate) fn to_json(&self) -> Value {
        let rule = |(layer, rule): (Layer, &PermissionRule)| {
            json!({
                "layer": layer.as_str(),
                "permission": rule.permission,
                "pattern": rule.pattern,
                "action": rule.action,
                "locked": rule.locked,
            })
        };
        json!({
            "mode": self.mode,
            "mode_of": self.mode_of,
            "unattended": self.unattended,
            "approvers": self.approvers,
            "rules": self.rules.rules().map(rule).collect::<Vec<_>>(),
            "contradictions": self.contradictions(),
        })
    }
}

fn rule_text(rule: &PermissionRule) -> String {
    let locked = if rule.locked { " (locked)" } else { "" };
    format!("{} {} {}{locked}", rule.action.as_str(), rule.permission, rule.pattern)
}
