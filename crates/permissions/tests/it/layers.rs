//! Layers, locked rules, modes, and hidden tools.

use Layer::{Agent, Default as Builtin, Platform, Session, Tenant, Workspace};
use PermissionAction::{Allow, Ask, Deny};
use remuda_domain::{
    permission::{PermissionAction, PermissionMode, PermissionRule},
    tool::{Effects, ToolDescriptor},
};
use remuda_permissions::{Layer, ProposedCall, Ruleset, Verdict};
use serde_json::json;

use crate::{bash, call, locked, rules, tools, workspace_rules};

#[test]
fn later_layers_override_in_any_order_of_adding() {
    let set = Ruleset::new().with(Session, rules("allow rm *")).with(Platform, rules("deny rm *"));
    assert_eq!(bash(&set, "rm x").action(), Allow);
    let set = Ruleset::new().with(Session, rules("deny rm *")).with(Platform, rules("allow *"));
    assert_eq!(bash(&set, "rm x").action(), Deny);
    let mut previous = Ruleset::new();
    for (index, layer) in [Builtin, Platform, Tenant, Workspace, Agent, Session].into_iter().enumerate() {
        let action = if index % 2 == 0 { "deny" } else { "allow" };
        previous = previous.with(layer, rules(&format!("{action} rm *")));
        let expected = if index % 2 == 0 { Deny } else { Allow };
        assert_eq!(bash(&previous, "rm x").action(), expected, "{layer:?}");
    }
    let order: Vec<Layer> = previous.rules().map(|(layer, _)| layer).collect();
    assert!(order.is_sorted());
    // Within a layer, the later rule decides, too.
    let set = Ruleset::new().with(Agent, rules("deny rm *")).with(Agent, rules("ask rm *"));
    assert_eq!(bash(&set, "rm x").action(), Ask);
}

#[test]
fn later_layers_cannot_relax_locked_rules() {
    for (layer, lock, later, command, expected) in [
        (Platform, "deny rm *", "allow *", "rm x", Deny),
        (Platform, "deny rm *", "allow *", "ls; $(rm x)", Deny),
        (Tenant, "ask rm *", "allow rm *", "rm x", Ask),
        (Tenant, "ask rm *", "deny rm *", "rm x", Deny),
        (Tenant, "ask rm *", "allow *", "ls", Allow),
        (Platform, "deny *, allow ls *", "allow *", "ls", Allow),
        (Platform, "deny *, allow ls *", "allow *", "rm x", Deny),
        (Platform, "deny rm *", "allow *", "$X", Ask),
        // Other layers cannot lock rules.
        (Workspace, "deny rm *", "allow rm *", "rm x", Allow),
        (Agent, "deny rm *", "allow rm *", "rm x", Allow),
    ] {
        let set = Ruleset::new().with(layer, locked(lock)).with(Session, rules(later));
        let verdict = bash(&set, command);
        assert_eq!(verdict.action(), expected, "{layer:?} {lock} then {later}: {command}: {verdict:?}");
    }
    // A tenant cannot relax it by locking the opposite either.
    let set = Ruleset::new().with(Platform, locked("deny rm *")).with(Tenant, locked("allow *"));
    assert_eq!(bash(&set, "rm x").action(), Deny);
    assert!(set.rules().filter(|(layer, _)| *layer == Tenant).all(|(_, rule)| rule.locked));
    let set = Ruleset::new().with(Session, locked("deny rm *"));
    assert!(set.rules().all(|(_, rule)| !rule.locked));
}

#[test]
fn full_auto_never_asks_and_denies_uncertain_matches_of_deny_rules() {
    let set = workspace_rules("ask git push *, deny rm *");
    let judged = |command: &str| call(&set, PermissionMode::FullAuto, "Bash", &json!({ "command": command }));
    assert_eq!(judged("git push"), Verdict::Allow);
    assert_eq!(judged("cat ~/.ssh/config"), Verdict::Allow);
    assert_eq!(judged("git push; rm x").action(), Deny);
    for command in ["$X", "curl x | sh", "rm$X"] {
        assert_eq!(judged(command).action(), Deny, "{command}");
    }
    let set = workspace_rules("ask git push *");
    let judged = |command: &str| call(&set, PermissionMode::FullAuto, "Bash", &json!({ "command": command }));
    assert_eq!(judged("git $X; $X"), Verdict::Allow);
}

/// No mode relaxes a locked rule.
#[test]
fn full_auto_still_asks_for_locked_rules() {
    for (lock, own, command, expected) in [
        ("ask git push *", "", "git push", Ask),
        ("ask git push *", "allow *", "git push", Ask),
        ("ask git push *", "ask git push *", "git push", Ask),
        ("ask git push *", "", "git $X", Ask),
        ("ask git push *", "deny rm *", "$X", Deny),
        ("ask git push *", "", "ls", Allow),
        ("deny rm *", "ask *, allow *", "$X", Deny),
        ("deny rm *", "ask *", "ls", Allow),
    ] {
        let set = Ruleset::new().with(Tenant, locked(lock)).with(Session, rules(own));
        let verdict = call(&set, PermissionMode::FullAuto, "Bash", &json!({ "command": command }));
        assert_eq!(verdict.action(), expected, "{lock} then {own}: {command}: {verdict:?}");
    }
}

#[test]
fn plan_mode_allows_only_commands_that_read() {
    let judged = |command: &str| {
        call(&Ruleset::new(), PermissionMode::Plan, "Bash", &json!({ "command": command })).action()
    };
    for command in [
        "ls -la",
        "cat a | grep b | sort -u | head -n 3",
        "git status && git --no-pager log --oneline -5",
        "git diff HEAD~1 -- src",
        "find . -name '*.rs' -type f",
        "rg -n 'x' src 2>/dev/null",
        "find . -name x | xargs grep y",
        "for f in a b; do wc -l \"$f\"; done",
        "if [ -f a ]; then cat a; fi",
        "echo $(cat a) `pwd`",
        "bash -c 'ls'; time ls",
        "X=1; echo $X",
        "cd src && ls",
        "timeout 5 ls",
        "sort a | uniq -c",
        "date; date +%s; date -u -Iseconds; date -d yesterday +%F",
        "file a; tree -L 2; : x",
        "git grep -n x; git -C sub status; git -C sub --no-pager log",
    ] {
        let expected = if command.starts_with("bash") { Deny } else { Allow };
        assert_eq!(judged(command), expected, "{command}");
    }
    for command in [
        "touch a",
        "cargo build",
        "ls > a",
        "ls | tee a",
        "cat a >> b",
        "find . -delete",
        "find . -exec cat {} +",
        "find . -fprint x",
        "find . $X",
        "find . -d$X",
        "git commit -m x",
        "git diff --output=x",
        "git diff --outp x",
        "git -c core.pager=x log",
        "git checkout x",
        "git branch -D x",
        "rg --pre x y",
        "sort -o x y",
        "sort -uo x y",
        "sort --output=x y",
        "xargs rm",
        "ls $(touch x)",
        "ls; $X",
        "ls | sh",
        "./ls",
        "sed -i s/a/b/ x",
        "LD_PRELOAD=x ls",
        "A=1 ls",
        "ls() { touch x; }; ls",
        "\\time -o x ls",
        "ls 'open",
        "",
        "uniq a b",
        "uniq -- -a b",
        "date -s now",
        "date -us now",
        "date 01010101",
        "file -C -m x",
        "tree -o x",
        "git grep -Ox y",
        "git grep --open-files-in-pager=x y",
        "git -C sub commit",
        "git -C $X status commit",
        "BASH_CMDS[ls]=/usr/bin/touch; ls f",
        "printf -v PATH %s .; ls",
        "for PATH in .; do ls; done",
        "((PATH=1)); ls",
        "y='a[$(touch f)]'; echo $((y))",
        "echo ${a['$(touch f)']}",
        "[[ -v 'a[$(touch f)]' ]]; ls",
        "ls >&'$(touch f)'",
        "a[ #]; touch f",
        "coproc touch time f; ls",
    ] {
        assert_eq!(judged(command), Deny, "{command}");
    }
}

#[test]
fn plan_mode_denies_tools_that_change_something() {
    let set = workspace_rules("deny read:secret, ask task:*");
    let judged = |tool: &str, arguments| call(&set, PermissionMode::Plan, tool, &arguments);
    assert_eq!(judged("Read", json!({ "file_path": "a" })), Verdict::Allow);
    assert_eq!(judged("Read", json!({ "file_path": "secret" })).action(), Deny);
    assert_eq!(judged("Write", json!({ "file_path": "a" })).action(), Deny);
    assert_eq!(judged("KillBash", json!({})).action(), Deny);
    assert_eq!(judged("mcp_x", json!({})).action(), Deny);
    assert_eq!(judged("SubAgent", json!({ "subagent_type": "a" })).action(), Ask);
    for tool in ["TodoWrite", "Skill", "AgentSwitch", "BashOutput"] {
        assert_eq!(judged(tool, json!({ "skill": "a", "agent": "a" })), Verdict::Allow, "{tool}");
    }
    let mcp_x = ToolDescriptor::new("mcp_x", Effects::ReadOnly);
    let read_only = ProposedCall { tool: &mcp_x, arguments: &json!({}) };
    assert_eq!(set.judge(PermissionMode::Plan, "", &read_only), Verdict::Allow);
    let Verdict::Deny(denial) = judged("Write", json!({ "file_path": "a" })) else { panic!() };
    assert_eq!(denial.why, "the mode is plan, and Write may change something");
}

#[test]
fn denial_names_the_rule() {
    let Verdict::Deny(denial) = bash(&workspace_rules("deny rm *"), "ls && sudo rm -r x") else { panic!() };
    assert_eq!(denial.permission, "bash");
    assert_eq!(denial.pattern, "rm -r x");
    assert_eq!(denial.why, "the workspace denies bash `rm *`");
    let Verdict::Deny(denial) = bash(&workspace_rules("deny edit:*.lock"), "ls > a/../x.lock") else {
        panic!()
    };
    assert_eq!((denial.permission.as_str(), denial.pattern.as_str()), ("edit", "x.lock"));
    let Verdict::Ask(ask) = bash(&workspace_rules("deny rm *"), "ls; $X y; curl x | sh") else { panic!() };
    assert_eq!(ask.patterns, ["$X y", "sh"]);
    assert_eq!(
        ask.why,
        "the workspace denies bash `rm *`, and `$X y` may match: the program it runs is unknown"
    );
    let text = serde_json::to_string(&Verdict::Ask(ask.clone())).unwrap();
    assert_eq!(serde_json::from_str::<Verdict>(&text).unwrap(), Verdict::Ask(ask));
}

#[test]
fn completely_denied_tools_are_hidden() {
    for (text, tool, expected) in [
        ("", "Bash", false),
        ("deny *", "Bash", true),
        ("deny *", "KillBash", true),
        ("deny *, allow git *", "Bash", false),
        ("allow git *, deny *", "Bash", true),
        ("deny rm *", "Bash", false),
        ("ask *", "Bash", false),
        ("deny edit:*", "Write", true),
        ("deny edit:*", "Edit", true),
        ("deny edit:*", "Read", false),
        ("deny Write:*", "Write", true),
        ("deny Write:*", "Edit", false),
        ("deny *:*", "mcp_x", true),
        ("deny *:*, allow read:*", "Read", false),
        ("deny mcp_*:*", "mcp_x", true),
        ("deny task:*", "SubAgent", true),
    ] {
        assert_eq!(workspace_rules(text).hides(&tools().describe(tool)), expected, "{tool} under {text}");
    }
    let set = Ruleset::new().with(Platform, locked("deny webfetch:*")).with(Agent, rules("allow *:*"));
    assert!(set.hides(&tools().describe("WebFetch")));
}

#[test]
fn first_built_in_rule_allows_everything() {
    // It is the first rule, so only an empty permission does not match it.
    let first = Ruleset::new().rules().next().map(|(_, rule)| rule.clone());
    assert_eq!(first, Some(PermissionRule::new("*", "*", Allow)));
    for (tool, permission) in [
        ("Bash", "bash"),
        ("Write", "edit"),
        ("Edit", "edit"),
        ("Read", "read"),
        ("SubAgent", "task"),
        ("AgentSwitch", "switch"),
        ("Skill", "skill"),
        ("mcp_x", "mcp_x"),
    ] {
        assert_eq!(tools().describe(tool).permission, permission);
    }
}
