//! What an agent may do here, by who says so.

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

/// What an agent may do in a session, as a worker with this configuration would see it.
pub(crate) struct Rules {
    pub(crate) rules: Ruleset,
    pub(crate) mode: PermissionMode,
    /// Who says so.
    pub(crate) mode_of: &'static str,
    pub(crate) unattended: Unattended,
    pub(crate) approvers: Vec<String>,
}

impl Rules {
    /// Those of the default tenant: whose a key is, only servers know.
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
        let said = [
            ("the session", session.mode),
            ("the agent", agent.permission_mode),
            ("the workspace", settings.permission_mode),
        ];
        // Whoever says that nothing is to be changed is obeyed.
        let plan = said.iter().find(|(_, mode)| *mode == Some(PermissionMode::Plan));
        let first = plan.or_else(|| said.iter().find(|(_, mode)| mode.is_some()));
        let (mode_of, mode) = match first {
            Some((who, Some(mode))) => (*who, *mode),
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

    /// In the order in which they count; the last one that fits decides.
    pub(crate) fn in_words(&self) -> Vec<(&'static str, String)> {
        self.rules.rules().map(|(layer, rule)| (layer.as_str(), words(rule))).collect()
    }

    pub(crate) fn contradictions(&self) -> Vec<String> {
        self.rules.contradictions().iter().map(ToString::to_string).collect()
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

fn words(rule: &PermissionRule) -> String {
    let locked = if rule.locked { " (locked)" } else { "" };
    format!("{} {} {}{locked}", rule.action.as_str(), rule.permission, rule.pattern)
}
