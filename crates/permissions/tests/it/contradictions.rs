//! Rules that never take effect.

use Layer::{Agent, Platform, Tenant, Workspace};
use remuda_permissions::{Layer, Ruleset};

use crate::{locked, rules, tools, workspace_rules};

#[test]
fn rule_covered_by_a_later_one_is_reported() {
    for (text, expected) in [
        ("", 0),
        ("deny *, allow git *", 0),
        ("allow git *, deny *", 1),
        ("deny rm *, allow rm *", 1),
        ("deny rm -rf *, allow rm *", 1),
        ("deny rm *, allow rm -rf *", 0),
        ("deny rm *, deny *", 0),
        ("deny rm *, ask git *, allow *", 2),
        ("deny rm *, allow edit:*", 0),
        ("deny rm *, allow *:*", 1),
        ("deny edit:src/*.rs, allow edit:src/*", 1),
        ("deny edit:src/?.rs, allow edit:src/*.rs", 1),
        ("deny edit:src/*.rs, allow edit:src/?.rs", 0),
        ("deny Write:*, allow edit:*", 1),
        ("deny edit:*, allow Write:*", 0),
        ("deny mcp_a:*, allow mcp_*:*", 1),
        // `ls *` also matches `ls`.
        ("deny ls *, allow ls ?*", 0),
        ("deny ls *, allow ls*", 1),
    ] {
        assert_eq!(workspace_rules(text).contradictions(tools()).len(), expected, "{text}");
    }
}

#[test]
fn contradictions_across_layers_and_with_locked_rules_are_reported() {
    let set = Ruleset::new().with(Workspace, rules("ask git push *")).with(Agent, rules("allow git *"));
    let found = set.contradictions(tools());
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].layer, found[0].by_layer), (Workspace, Agent));
    assert_eq!(
        found[0].to_string(),
        "`bash: git push *` of the workspace never takes effect: a later rule of the agent says allow for `bash: git *`"
    );
    // The more permissive rule has no effect.
    let set = Ruleset::new().with(Platform, locked("deny rm *")).with(Agent, rules("allow rm -r *"));
    let found = set.contradictions(tools());
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].layer, found[0].by_layer), (Agent, Platform));
    // A stricter later rule has an effect.
    let set = Ruleset::new().with(Tenant, locked("ask rm *")).with(Agent, rules("deny rm *"));
    assert_eq!(set.contradictions(tools()), []);
    // Overriding built-in rules is intended.
    assert_eq!(Ruleset::new().with(Agent, rules("deny *:*")).contradictions(tools()), []);
}
