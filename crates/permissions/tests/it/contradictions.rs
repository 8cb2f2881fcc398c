//! Rules that never decide anything.

use Layer::{Agent, Platform, Tenant, Workspace};
use remuda_permissions::{Layer, Ruleset};

use crate::{locked, of_workspace, rules};

#[test]
fn a_rule_that_a_later_one_covers_is_found() {
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
        // `ls *` also is `ls`.
        ("deny ls *, allow ls ?*", 0),
        ("deny ls *, allow ls*", 1),
    ] {
        assert_eq!(of_workspace(text).contradictions().len(), expected, "{text}");
    }
}

#[test]
fn across_layers_and_with_locked_rules() {
    let set = Ruleset::new().with(Workspace, rules("ask git push *")).with(Agent, rules("allow git *"));
    let found = set.contradictions();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].layer, found[0].by_layer), (Workspace, Agent));
    assert_eq!(
        found[0].to_string(),
        "`bash: git push *` of the workspace never takes effect: a later rule of the agent says allow for `bash: git *`"
    );
    // The milder rule is the one that has no effect.
    let set = Ruleset::new().with(Platform, locked("deny rm *")).with(Agent, rules("allow rm -r *"));
    let found = set.contradictions();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].layer, found[0].by_layer), (Agent, Platform));
    // A stricter one after it has.
    let set = Ruleset::new().with(Tenant, locked("ask rm *")).with(Agent, rules("deny rm *"));
    assert_eq!(set.contradictions(), []);
    // Overruling what is built in is what rules are for.
    assert_eq!(Ruleset::new().with(Agent, rules("deny *:*")).contradictions(), []);
}
