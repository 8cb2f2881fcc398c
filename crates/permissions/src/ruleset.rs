//! The ordered rules of all layers.

use remuda_domain::{
    permission::{PermissionAction, PermissionMode, PermissionRule},
    tool::{CallSubject, ToolCatalog, ToolDescriptor},
};

use crate::{
    contradiction::{self, Contradiction},
    defaults,
    evaluate::{self, concerns},
    layer::Layer,
    verdict::{ProposedCall, Verdict},
    wildcard::is_universal,
};

/// Ordered layers of rules. The last matching rule decides; later layers cannot relax a locked rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruleset {
    rules: Vec<(Layer, PermissionRule)>,
}

impl Default for Ruleset {
    fn default() -> Self {
        Self::new()
    }
}

impl Ruleset {
    /// The built-in rules.
    #[must_use]
    pub fn new() -> Self {
        Self { rules: defaults::rules().into_iter().map(|rule| (Layer::Default, rule)).collect() }
    }

    /// Allows everything, without the built-in rules: for calls that no model asks for.
    #[must_use]
    pub fn allowing() -> Self {
        Self { rules: vec![(Layer::Default, PermissionRule::new("*", "*", PermissionAction::Allow))] }
    }

    /// Appends rules to a layer. Only rules of the platform and of tenants can be `locked`; it is cleared for other layers.
    #[must_use]
    pub fn with(mut self, layer: Layer, rules: impl IntoIterator<Item = PermissionRule>) -> Self {
        let at = self.rules.partition_point(|(other, _)| *other <= layer);
        let rules = rules.into_iter().map(|mut rule| {
            rule.locked &= layer.may_lock();
            (layer, rule)
        });
        self.rules.splice(at..at, rules);
        self
    }

    /// Judges a call. `root` is the workspace's path as the tool sees it; empty if unknown.
    #[must_use]
    pub fn judge(&self, mode: PermissionMode, root: &str, call: &ProposedCall<'_>) -> Verdict {
        evaluate::judge(self, mode, root, call)
    }

    /// Whether a rule besides the built-in ones may be about calls of this tool.
    #[must_use]
    pub fn concerns(&self, tool: &ToolDescriptor) -> bool {
        // Redirections and searches of a script are judged as other permissions.
        let several = matches!((tool.subject)(&serde_json::Value::Null), CallSubject::Script { .. });
        let rules = self.rules.iter().filter(|(layer, _)| *layer != Layer::Default);
        rules.into_iter().any(|(_, rule)| several || concerns(rule, &tool.permission, Some(&tool.name)))
    }

    /// Whether the last rule for a tool denies it completely, so that the tool is not offered to the model.
    #[must_use]
    pub fn hides(&self, tool: &ToolDescriptor) -> bool {
        self.rule_lists().any(|rules| {
            let last = rules.rev().find(|(_, rule)| concerns(rule, &tool.permission, Some(&tool.name)));
            last.is_some_and(|(_, rule)| is_universal(&rule.pattern) && rule.action == PermissionAction::Deny)
        })
    }

    /// The rules that never take effect, because another rule overrides them for everything they match. A rule may name a
    /// tool of the catalog instead of its permission.
    #[must_use]
    pub fn contradictions(&self, tools: &ToolCatalog) -> Vec<Contradiction> {
        contradiction::find(&self.rules, tools)
    }

    pub fn rules(&self) -> impl Iterator<Item = (Layer, &PermissionRule)> {
        self.iter()
    }

    fn iter(&self) -> impl DoubleEndedIterator<Item = (Layer, &PermissionRule)> {
        self.rules.iter().map(|(layer, rule)| (*layer, rule))
    }

    /// The rule lists that are evaluated separately: all rules, and the locked rules of each layer. The strictest decision
    /// counts.
    pub(crate) fn rule_lists(
        &self,
    ) -> impl Iterator<Item = Box<dyn DoubleEndedIterator<Item = (Layer, &PermissionRule)> + '_>> {
        let locked = Layer::ALL.into_iter().filter(|layer| layer.may_lock()).map(|layer| {
            let rules = self.iter().filter(move |(of, rule)| *of == layer && rule.locked);
            Box::new(rules) as Box<dyn DoubleEndedIterator<Item = _>>
        });
        std::iter::once(Box::new(self.iter()) as Box<dyn DoubleEndedIterator<Item = _>>).chain(locked)
    }
}
