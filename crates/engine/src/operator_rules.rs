//! The rules of operators for `tools` runs, compiled once.
//!
//! A `tools` run has no agent, so the rules of workspaces and agents and the built-in ones do not apply. What the operator
//! locked for the platform, and the rules of the tenant, apply to the calls of every caller. The session's rules can
//! relax those of the tenant that are not locked, as they can in the run of an agent, and forbid nothing: the caller that
//! submits the calls may change them.

use std::collections::BTreeMap;

use remuda_domain::{
    permission::{PermissionMode, PermissionRule, SessionPermissions, Unattended},
    tool::{ToolCall, ToolDescriptor},
};
use remuda_permissions::{Layer, ProposedCall, Ruleset, Verdict};

use crate::PermissionSettings;

/// The rules that judge the calls of `tools` runs, by tenant.
#[derive(Debug)]
pub(crate) struct OperatorRules {
    /// Of tenants without rules of their own; `None` if nothing is locked.
    platform: Option<Ruleset>,
    tenants: BTreeMap<String, Ruleset>,
    mode: PermissionMode,
    unattended: Unattended,
}

impl OperatorRules {
    pub(crate) fn new(settings: &PermissionSettings) -> Self {
        let locked: Vec<PermissionRule> = settings.rules.iter().filter(|rule| rule.locked).cloned().collect();
        let platform = Ruleset::allowing().with(Layer::Platform, locked.iter().cloned());
        let own = settings.tenants.iter().filter(|(_, rules)| !rules.is_empty());
        let tenants = own
            .map(|(name, rules)| (name.clone(), platform.clone().with(Layer::Tenant, rules.iter().cloned())));
        Self {
            tenants: tenants.collect(),
            platform: (!locked.is_empty()).then_some(platform),
            mode: settings.mode,
            unattended: settings.unattended,
        }
    }

    /// The rules for the runs of a session, if there are any.
    pub(crate) fn of<'a>(&'a self, tenant: &str, session: &'a SessionPermissions) -> Option<CallRules<'a>> {
        let rules = self.tenants.get(tenant).or(self.platform.as_ref())?;
        // Plan mode is for agents: the calls of a `tools` run are the caller's own.
        let mode = match session.mode.unwrap_or(self.mode) {
            PermissionMode::FullAuto => PermissionMode::FullAuto,
            PermissionMode::Default | PermissionMode::Plan => PermissionMode::Default,
        };
        Some(CallRules { rules, mode, session })
    }

    /// What becomes of calls that need approval: they wait, are refused, or fail the run.
    pub(crate) fn unattended(&self, session: &SessionPermissions) -> Unattended {
        session.unattended.unwrap_or(self.unattended)
    }
}

/// The rules for the calls of one `tools` run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallRules<'a> {
    rules: &'a Ruleset,
    mode: PermissionMode,
    session: &'a SessionPermissions,
}

impl CallRules<'_> {
    /// Judges a call. `root` is the workspace's path as the tool sees it.
    pub(crate) fn judge(&self, root: &str, tool: &ToolDescriptor, call: &ToolCall) -> Verdict {
        if !self.rules.concerns(tool) {
            return Verdict::Allow;
        }
        let proposed = ProposedCall { tool, arguments: &call.arguments };
        let verdict = self.rules.judge(self.mode, root, &proposed);
        if verdict == Verdict::Allow || self.session.rules.is_empty() {
            return verdict;
        }
        let relaxed = self.rules.clone().with(Layer::Session, self.session.rules.iter().cloned());
        let relaxed = relaxed.judge(self.mode, root, &proposed);
        if relaxed.action() < verdict.action() { relaxed } else { verdict }
    }
}

#[cfg(test)]
mod tests {
    use remuda_domain::{ToolCallId, permission::PermissionAction};
    use remuda_tools::{Registry, ToolOptions};
    use serde_json::json;

    use super::*;

    fn rule(pattern: &str, action: PermissionAction, locked: bool) -> PermissionRule {
        PermissionRule { locked, ..PermissionRule::new("bash", pattern, action) }
    }

    fn settings() -> PermissionSettings {
        use PermissionAction::{Ask, Deny};
        PermissionSettings {
            rules: vec![rule("rm *", Deny, true), rule("touch *", Deny, false)],
            tenants: BTreeMap::from([(
                "careful".to_owned(),
                vec![rule("git push*", Ask, false), rule("deploy*", Ask, true)],
            )]),
            ..PermissionSettings::default()
        }
    }

    fn action(tenant: &str, session: &SessionPermissions, command: &str) -> PermissionAction {
        let (rules, tools) = (OperatorRules::new(&settings()), Registry::native(&ToolOptions::default()));
        let arguments = json!({ "command": command });
        let call = ToolCall {
            id: ToolCallId::new(),
            tool: "Bash".into(),
            arguments,
            parallel: false,
            timeout: None,
        };
        let rules = rules.of(tenant, session).unwrap();
        rules.judge("/work", tools.get("Bash").unwrap().descriptor(), &call).action()
    }

    #[test]
    fn locked_rules_and_those_of_the_tenant_judge_and_others_do_not() {
        use PermissionAction::{Allow, Ask, Deny};
        let none = SessionPermissions::default();
        for (tenant, command, expected) in [
            ("other", "rm x", Deny),
            ("other", "touch x", Allow),
            ("other", "git push", Allow),
            ("other", "cat .ssh/id_rsa", Allow),
            ("careful", "rm x", Deny),
            ("careful", "git push", Ask),
            ("careful", "true && deploy now", Ask),
        ] {
            assert_eq!(action(tenant, &none, command), expected, "{tenant}: {command}");
        }
    }

    #[test]
    fn session_relaxes_only_what_is_not_locked_and_forbids_nothing() {
        use PermissionAction::{Allow, Ask, Deny};
        let session = |rules, mode| SessionPermissions { rules, mode, ..SessionPermissions::default() };
        let open = session(vec![rule("*", Allow, false)], None);
        let auto = session(Vec::new(), Some(PermissionMode::FullAuto));
        let strict = session(vec![rule("*", Deny, false)], Some(PermissionMode::Plan));
        for (session, command, expected) in [
            (&open, "git push", Allow),
            (&open, "deploy now", Ask),
            (&open, "rm x", Deny),
            (&auto, "git push", Allow),
            (&auto, "deploy now", Ask),
            (&strict, "touch x", Allow),
            (&strict, "git push", Ask),
        ] {
            assert_eq!(action("careful", session, command), expected, "{command}");
        }
    }

    #[test]
    fn nothing_judges_without_rules() {
        let rules = OperatorRules::new(&PermissionSettings::default());
        assert!(rules.of("default", &SessionPermissions::default()).is_none());
        let unlocked = PermissionSettings {
            rules: vec![rule("*", PermissionAction::Deny, false)],
            ..PermissionSettings::default()
        };
        assert!(OperatorRules::new(&unlocked).of("default", &SessionPermissions::default()).is_none());
    }
}
