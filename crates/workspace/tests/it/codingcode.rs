//! Loads a project from CodingCode's documentation.

use remuda_domain::agent::{AgentMode, AgentSource};

use crate::support::{Workspace, fixture, listed};

#[test]
fn codingcode_profiles_load() {
    let workspace = Workspace::with(&[
        (
            "platform:models/m.yaml",
            "deepseek-chat:\n  provider: openai-compatible\n  url: https://api.example/v1\n  name: deepseek-chat\n",
        ),
        ("platform:tools/settings.yaml", "scanner:\n  command: scan\n"),
    ]);
    let definitions = workspace.loader().load(&fixture("codingcode"));
    assert!(definitions.problems.is_empty(), "{}", listed(&definitions.problems));

    let searcher = definitions.agent("code-searcher").unwrap();
    assert_eq!(searcher.description, "在代码库中查找定义与引用");
    assert_eq!(searcher.mode, AgentMode::All);
    assert_eq!(searcher.tools.native.as_deref().unwrap(), ["Read", "Grep", "Glob"]);
    assert_eq!(searcher.tools.external.as_deref(), Some(&[][..]));
    assert_eq!(searcher.policy.max_steps, 100);
    assert_eq!(searcher.model.as_ref().unwrap().reference, "platform/deepseek-chat");
    assert_eq!(searcher.origin.source, AgentSource::CodingCode);
    assert!(searcher.subagents.is_empty(), "a read-only agent may not delegate");

    let auditor = definitions.agent("security-auditor").unwrap();
    assert_eq!(auditor.description, "Checks for weaknesses: injection, traversal, leaked keys");
    assert_eq!(auditor.tools.native.as_deref().unwrap(), ["Read", "Grep", "Bash", "BashOutput", "KillBash"]);
    assert_eq!(auditor.tools.external.as_deref().unwrap(), ["scanner"]);
    assert!(auditor.subagents.contains(&"code-searcher".to_owned()));
    assert!(!auditor.subagents.contains(&"security-auditor".to_owned()));
    assert_eq!(auditor.permission.len(), 2);

    let reader = definitions.agent("reader").unwrap();
    let native = reader.tools.native.as_deref().unwrap();
    assert!(
        native.contains(&"Read".to_owned())
            && !native.iter().any(|t| ["Bash", "Write", "Edit"].contains(&t.as_str()))
    );
    assert_eq!(reader.tools.actions.as_deref(), Some(&[][..]));
    assert_eq!(reader.policy.max_steps, 180);
    assert!(!definitions.agents.contains_key("plan"), "it is disabled");
}
