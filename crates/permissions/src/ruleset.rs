//! The rules of all layers, in order.

use remuda_domain::permission::{PermissionAction, PermissionMode, PermissionRule};

use crate::{
    contradiction::{self, Contradiction},
    defaults,
    judge::{self, concerns},
    layer::Layer,
    names::permission_of,
    verdict::{Asked, Verdict},
    wildcard::is_universal,
};

/// Ordered layers of rules. The last rule that fits decides, and a locked one is never made milder.
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

    /// Adds rules after those that the layer has. `locked` is a matter of the platform and of tenants: it is cleared elsewhere.
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

    /// What becomes of a call. `root` is where the workspace is, for the call; empty when that is not known.
    #[must_use]
    pub fn judge(&self, mode: PermissionMode, root: &str, call: &Asked<'_>) -> Verdict {
        judge::judge(self, mode, root, call)
    }

    /// Whether the last rule about a tool denies all of it, so that the model is not shown the tool.
    #[must_use]
    pub fn hides(&self, tool: &str) -> bool {
        let permission = permission_of(tool);
        self.parts().any(|rules| {
            let last = rules.rev().find(|(_, rule)| concerns(rule, permission, Some(tool)));
            last.is_some_and(|(_, rule)| is_universal(&rule.pattern) && rule.action == PermissionAction::Deny)
        })
    }

    /// The rules that never decide anything because another one says otherwise about all that they fit.
    #[must_use]
    pub fn contradictions(&self) -> Vec<Contradiction> {
        contradiction::find(&self.rules)
    }

    pub fn rules(&self) -> impl Iterator<Item = (Layer, &PermissionRule)> {
        self.iter()
    }

    fn iter(&self) -> impl DoubleEndedIterator<Item = (Layer, &PermissionRule)> {
        self.rules.iter().map(|(layer, rule)| (*layer, rule))
    }

    /// The lists that are judged on their own: all rules, and those that each operator locked. The strictest counts.
    pub(crate) fn parts(
        &self,
    ) -> impl Iterator<Item = Box<dyn DoubleEndedIterator<Item = (Layer, &PermissionRule)> + '_>> {
        let locked = Layer::ALL.into_iter().filter(|layer| layer.may_lock()).map(|layer| {
            let rules = self.iter().filter(move |(of, rule)| *of == layer && rule.locked);
            Box::new(rules) as Box<dyn DoubleEndedIterator<Item = _>>
        });
        std::iter::once(Box::new(self.iter()) as Box<dyn DoubleEndedIterator<Item = _>>).chain(locked)
    }
}
