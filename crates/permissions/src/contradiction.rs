//! Finds rules that never take effect.

use remuda_domain::{permission::PermissionRule, tool::ToolCatalog};
use serde::{Deserialize, Serialize};

use crate::{layer::Layer, permission_names::opencode_key, wildcard::covers};

/// A rule that never takes effect, and the rule `by` that overrides it for everything it matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contradiction {
    pub layer: Layer,
    pub rule: PermissionRule,
    pub by_layer: Layer,
    pub by: PermissionRule,
}

impl std::fmt::Display for Contradiction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { layer, rule, by_layer, by } = self;
        write!(
            f,
            "`{}: {}` of the {} never takes effect: {} {} says {} for `{}: {}`",
            rule.permission,
            rule.pattern,
            layer.as_str(),
            if by.locked { "a locked rule of the" } else { "a later rule of the" },
            by_layer.as_str(),
            by.action.as_str(),
            by.permission,
            by.pattern,
        )
    }
}

pub(crate) fn find(rules: &[(Layer, PermissionRule)], tools: &ToolCatalog) -> Vec<Contradiction> {
    let mut found = Vec::new();
    for (at, (layer, rule)) in rules.iter().enumerate() {
        // Overriding a built-in rule is intended.
        if *layer == Layer::Default {
            continue;
        }
        let overruled = |(other, (by_layer, by)): &(usize, &(Layer, PermissionRule))| {
            if *other == at || by.action == rule.action || !covers_rule(by, rule, tools) {
                return false;
            }
            let later = *other > at;
            // A locked rule applies twice: in its layer, and in the list of locked rules.
            let stays = rule.locked && !(by.locked && by_layer == layer);
            let forbidden = by.locked && by.action > rule.action && (!later || by_layer != layer);
            (later && !stays) || (forbidden && !(by_layer == layer && rule.locked))
        };
        if let Some((_, (by_layer, by))) = rules.iter().enumerate().rev().find(overruled) {
            let (rule, by) = (rule.clone(), by.clone());
            found.push(Contradiction { layer: *layer, rule, by_layer: *by_layer, by });
        }
    }
    found
}

fn covers_rule(wide: &PermissionRule, narrow: &PermissionRule, tools: &ToolCatalog) -> bool {
    let key = opencode_key(&wide.permission);
    let permission = covers(key, opencode_key(&narrow.permission))
        || tools.get(&narrow.permission).is_some_and(|tool| covers(key, &tool.permission))
        || covers(&wide.permission, &narrow.permission);
    permission && covers(&wide.pattern, &narrow.pattern)
}
