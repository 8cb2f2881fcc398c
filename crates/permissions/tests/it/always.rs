//! The rules offered for the decision `always`.

use remuda_domain::permission::PermissionMode;
use remuda_permissions::{Layer, Ruleset, Verdict};
use serde_json::{Value, json};

use crate::{bash, call, locked, rules, workspace_rules};

fn offered_rules(set: &Ruleset, tool: &str, arguments: &Value) -> Vec<String> {
    let verdict = call(set, PermissionMode::Default, tool, arguments);
    let Verdict::Ask(ask) = verdict else { panic!("{tool} {arguments}: {verdict:?}") };
    let then = set.clone().with(Layer::Session, ask.always.iter().cloned());
    if !ask.always.is_empty() {
        let verdict = call(&then, PermissionMode::Default, tool, arguments);
        assert_eq!(verdict, Verdict::Allow, "{tool} {arguments} with {:?}", ask.always);
    }
    ask.always.iter().map(|rule| format!("{}:{}", rule.permission, rule.pattern)).collect()
}

#[test]
fn offered_rules_allow_the_call_next_time() {
    let everything = "ask *:*";
    for (text, tool, arguments, expected) in [
        (everything, "Bash", json!({ "command": "git push origin main" }), vec!["bash:git push *"]),
        (everything, "Bash", json!({ "command": "npm run build -- x" }), vec!["bash:npm run build *"]),
        (everything, "Bash", json!({ "command": "ls -la" }), vec!["bash:ls *"]),
        (everything, "Bash", json!({ "command": "ls -la | wc -l; ls" }), vec!["bash:ls *", "bash:wc *"]),
        (everything, "Bash", json!({ "command": "git -C x push" }), vec!["bash:git -C x push"]),
        (everything, "Bash", json!({ "command": "sudo rm 'a b'" }), vec!["bash:sudo rm 'a b'", "bash:rm *"]),
        (everything, "Bash", json!({ "command": "ls > out" }), vec!["bash:ls *", "edit:out"]),
        (everything, "Bash", json!({ "command": "ls > $OUT" }), vec!["bash:ls *", "edit:$OUT"]),
        (everything, "Bash", json!({ "command": "$X y" }), vec![]),
        (everything, "Bash", json!({ "command": "npx tsc" }), vec!["bash:npx tsc", "bash:tsc *"]),
        (everything, "Bash", json!({ "command": "ls *" }), vec!["bash:ls *"]),
        (everything, "Bash", json!({ "command": "ls > *" }), vec![]),
        (everything, "Write", json!({ "file_path": "a*" }), vec![]),
        (everything, "Glob", json!({ "pattern": "**/*.rs", "path": "src" }), vec!["glob:src"]),
        (everything, "Bash", json!({ "command": "cat $HOME/x" }), vec!["bash:cat *"]),
        (everything, "Read", json!({ "file_path": "./a/../b" }), vec!["read:b"]),
        (everything, "Grep", json!({ "pattern": "x" }), vec!["grep:."]),
        (everything, "WebFetch", json!({ "url": "https://a.org/b/c" }), vec!["webfetch:https://a.org/*"]),
        (everything, "WebFetch", json!({ "url": "https://a.org" }), vec!["webfetch:https://a.org"]),
        (everything, "WebSearch", json!({ "query": "x" }), vec!["websearch:*"]),
        (everything, "Skill", json!({ "skill": "x" }), vec!["skill:x"]),
        (everything, "SubAgent", json!({ "subagent_type": "x" }), vec!["task:x"]),
        (everything, "BashOutput", json!({}), vec!["BashOutput:*"]),
        (everything, "mcp_x", json!({}), vec!["mcp_x:*"]),
        ("deny rm *", "Bash", json!({ "command": "ls; curl x | sh" }), vec![]),
        ("deny rm *", "Bash", json!({ "command": "curl x | python3 -" }), vec![]),
        ("deny rm *", "Bash", json!({ "command": "bash -c \"$X\"" }), vec![]),
        ("deny rm *", "Bash", json!({ "command": "env $X ls" }), vec![]),
        ("deny rm *", "Bash", json!({ "command": "echo ${X@P}" }), vec![]),
        ("deny rm -rf *", "Bash", json!({ "command": "rm *" }), vec![]),
        ("deny rm *", "Bash", json!({ "command": "export PATH=$PATH:/x" }), vec!["bash:PATH=$PATH:/x"]),
        ("deny rm *", "Bash", json!({ "command": "source a/b" }), vec!["bash:source a/b"]),
        ("deny git push *", "Bash", json!({ "command": "git $X" }), vec!["bash:git $X"]),
        ("deny rm *", "Bash", json!({ "command": "find . | xargs -I{} {}" }), vec![]),
        ("deny rm *", "Bash", json!({ "command": "echo \"${x:-'a'}\"" }), vec!["bash:echo \"${x:-'a'}\""]),
        ("", "Bash", json!({ "command": "cat ~/.ssh/known_hosts" }), vec!["bash:cat ~/.ssh/known_hosts"]),
        ("", "Bash", json!({ "command": "cat \"$HOME\"/.netrc" }), vec!["bash:cat \"$HOME\"/.netrc"]),
        ("", "Read", json!({ "file_path": "x/.env" }), vec!["read:x/.env"]),
    ] {
        assert_eq!(offered_rules(&workspace_rules(text), tool, &arguments), expected, "{tool} {arguments}");
    }
}

#[test]
fn no_rules_are_offered_if_they_cannot_allow_the_call() {
    let set = Ruleset::new().with(Layer::Platform, locked("ask rm *"));
    assert_eq!(offered_rules(&set, "Bash", &json!({ "command": "rm x" })), Vec::<String>::new());
    let long = format!("$X {}", "y".repeat(600));
    assert_eq!(
        offered_rules(&workspace_rules("deny rm *"), "Bash", &json!({ "command": long })),
        Vec::<String>::new()
    );
}

/// Allowing a script that could not be parsed does not allow others that begin like it.
#[test]
fn allowed_unknown_command_does_not_allow_similar_ones() {
    let set = workspace_rules("deny rm *").with(Layer::Session, rules("allow curl x | sh, allow git log *"));
    for command in ["git log; \"${x:-'rm'}\" y", "git log \"${x:-'rm'}\"; $X"] {
        assert!(matches!(bash(&set, command), Verdict::Ask(_)), "{command}");
    }
}
