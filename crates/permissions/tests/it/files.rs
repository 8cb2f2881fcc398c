//! Rules about paths, URLs and names.

use PermissionAction::{Allow, Ask, Deny};
use remuda_domain::permission::{PermissionAction, PermissionMode};
use serde_json::json;

use crate::{call, workspace_rules};

#[test]
fn paths_are_resolved_lexically() {
    for (tool, path, rules, expected) in [
        ("Read", "src/a.rs", "", Allow),
        ("Read", ".env", "", Ask),
        ("Read", "a/../.env", "", Ask),
        ("Read", "./.env", "", Ask),
        ("Read", "/work/space/.env", "", Ask),
        ("Read", "deep/in/.env.local", "", Ask),
        ("Read", ".env.example", "", Allow),
        ("Write", ".env", "", Allow),
        ("Read", "/root/.ssh/id_rsa", "", Deny),
        ("Read", "~/.ssh/id_rsa", "", Deny),
        ("Read", ".ssh", "", Deny),
        ("Read", "../../root/.aws/credentials", "", Deny),
        ("Edit", "/etc/shadow", "", Deny),
        ("Edit", "/x/../etc//shadow/", "", Deny),
        ("Read", "a/.docker/config.json", "", Deny),
        ("Read", "src/ssh/key.rs", "", Allow),
        ("Read", ".npmrc", "", Ask),
        ("Edit", "web/.npmrc", "", Ask),
        ("Read", "~/.npmrc", "", Deny),
        ("Read", "/root/.npmrc", "", Deny),
        ("Read", "/home/me/.npmrc", "", Deny),
        ("Write", "src/a.rs", "deny edit:src/*", Deny),
        ("Write", "src", "deny edit:src/*", Deny),
        ("Write", "src/", "deny edit:src", Deny),
        ("Write", "srcs/a.rs", "deny edit:src/*", Allow),
        ("Write", "./src/x/../a.rs", "deny edit:src/a.rs", Deny),
        ("Write", "/work/space/src/a.rs", "deny edit:src/a.rs", Deny),
        ("Write", "src/a.rs", "deny edit:/work/space/src/*", Deny),
        ("Write", "src/a.rs", "deny edit:./src/*", Deny),
        ("Write", "src/../../out", "deny edit:../*", Deny),
        ("Write", "/work/out", "deny edit:../*", Deny),
        ("Write", "src/../../../..", "deny edit:/", Deny),
        ("Write", "docs/a.md", "deny edit:*, allow edit:docs/*", Allow),
        ("Write", "docs/../a.md", "deny edit:*, allow edit:docs/*", Deny),
        ("Edit", "a", "deny Write:*", Allow),
        ("Write", "a", "deny Write:*", Deny),
        ("Write", "a", "deny write:*", Deny),
        ("Edit", "a", "deny multiedit:*", Deny),
        ("Read", "a", "deny edit:*", Allow),
    ] {
        let verdict =
            call(&workspace_rules(rules), PermissionMode::Default, tool, &json!({ "file_path": path }));
        assert_eq!(verdict.action(), expected, "{tool} {path} under {rules}: {verdict:?}");
    }
}

#[test]
fn other_tools_are_judged_by_their_main_argument() {
    for (tool, arguments, rules, expected) in [
        ("Grep", json!({ "pattern": "x" }), "deny grep:src/*", Allow),
        ("Grep", json!({ "pattern": "x", "path": "src" }), "deny grep:src/*", Deny),
        ("Grep", json!({ "pattern": "x", "path": "/root/.ssh" }), "", Deny),
        ("Grep", json!({ "pattern": "x" }), "deny grep:.", Deny),
        ("Glob", json!({ "pattern": "*", "path": "a/../src" }), "deny list:src", Deny),
        ("Grep", json!({ "pattern": "x", "glob": "secrets/**" }), "deny grep:secrets/*", Deny),
        ("Grep", json!({ "pattern": "x", "glob": "!secrets/**" }), "deny grep:secrets/*", Allow),
        ("Grep", json!({ "pattern": "x", "glob": ".ssh/*", "path": "/root" }), "", Deny),
        ("Grep", json!({ "pattern": "x", "glob": "*.rs" }), "deny grep:secrets/*", Allow),
        ("Grep", json!({ "pattern": "secrets/x" }), "deny grep:secrets/*", Allow),
        ("Glob", json!({ "pattern": "secrets/**" }), "deny glob:secrets/*", Deny),
        ("Glob", json!({ "pattern": "secrets/**" }), "deny glob:*, allow glob:secrets/*", Deny),
        ("Glob", json!({ "pattern": "**/*.rs", "path": "src" }), "deny glob:*, allow glob:src", Allow),
        (
            "WebFetch",
            json!({ "url": "https://a.org/x" }),
            "deny webfetch:*, allow webfetch:https://a.org/*",
            Allow,
        ),
        (
            "WebFetch",
            json!({ "url": "https://b.org/x" }),
            "deny webfetch:*, allow webfetch:https://a.org/*",
            Deny,
        ),
        ("WebSearch", json!({ "query": "a secret" }), "ask websearch:*secret*", Ask),
        ("Skill", json!({ "skill": "deploy" }), "deny skill:deploy", Deny),
        ("Skill", json!({ "name": "deploy" }), "deny skill:deploy", Deny),
        ("SubAgent", json!({ "subagent_type": "builder" }), "ask task:build*", Ask),
        ("SubAgent", json!({ "agent": "builder" }), "deny task:builder", Deny),
        ("SubAgent", json!({ "agent": "planner" }), "deny task:*, allow task:planner", Allow),
        ("AgentSwitch", json!({ "agent": "builder" }), "deny switch:*, allow switch:planner", Deny),
        ("AgentSwitch", json!({ "to": "builder" }), "deny switch:builder", Deny),
        ("AgentSwitch", json!({ "to": "planner" }), "deny switch:*, allow switch:planner", Allow),
        ("TodoWrite", json!({}), "deny todoread:*", Deny),
        ("BashOutput", json!({}), "deny rm *", Allow),
        ("BashOutput", json!({}), "deny *", Deny),
        ("KillBash", json!({}), "ask *, allow KillBash:*", Allow),
        ("mcp_search", json!({ "q": 1 }), "deny mcp_*:*", Deny),
        ("mcp_search", json!({ "q": 1 }), "ask mcp_search:*", Ask),
        ("mcp_search", json!({ "q": 1 }), "deny other_*:*", Allow),
        // The meaning of a pattern for this tool is unknown.
        ("mcp_search", json!({ "q": 1 }), "deny mcp_search:x*", Ask),
        // A call that fails anyway.
        ("Bash", json!({ "command": ["rm"] }), "deny rm *", Ask),
        ("Read", json!(null), "deny read:x", Ask),
    ] {
        let verdict = call(&workspace_rules(rules), PermissionMode::Default, tool, &arguments);
        assert_eq!(verdict.action(), expected, "{tool} {arguments} under {rules}: {verdict:?}");
    }
}
