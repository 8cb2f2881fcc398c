//! The segments of the system prompt.

use crate::harness::Harness;

const BASE: &str = "BASE TEXT";
const PROVIDER: &str = "FOR THE PROVIDER";
const MODEL: &str = "FOR THE MODEL";
const AGENT: &str = "You are tested.";
const PROJECT: &str = "# House rules\n\nLine two.\n\n## Deep\n- The last line";
const SKILL: &str = "- greet: How to greet";
const ENVIRONMENT: &str = "platform: linux";
const ALL: [&str; 7] = [BASE, PROVIDER, MODEL, AGENT, PROJECT, SKILL, ENVIRONMENT];

const BY_PROVIDER: &str = "providers: { scripted: { inline: FOR THE PROVIDER } }";
const BY_MODEL: &str = "models: { workspace/m: { file: prompts/model.txt } }";

async fn harness() -> Harness {
    let harness = Harness::new("turns: [{ say: hello }]").await;
    harness.write("AGENTS.md", &format!("{PROJECT}\n"));
    harness.write("prompts/model.txt", "FOR THE MODEL\n");
    harness.write(".openharness/skills/greet/SKILL.md", "---\ndescription: How to greet\n---\nSay hello.\n");
    harness
}

#[tokio::test]
async fn prompt_segments_follow_the_order_of_the_settings() {
    let base = "base: { inline: BASE TEXT }";
    let both = format!("llm_optimized: {{ {BY_PROVIDER}, {BY_MODEL} }}");
    let provider = format!("llm_optimized: {{ {BY_PROVIDER} }}");
    let cases: [(&str, String, &[&str]); 7] = [
        ("nothing is set", String::new(), &[AGENT, PROJECT, SKILL]),
        ("the documented order", format!("{base}, {both}"), &[BASE, MODEL, AGENT, PROJECT, SKILL]),
        ("no text for the model", format!("{base}, {provider}"), &[BASE, PROVIDER, AGENT, PROJECT, SKILL]),
        (
            "with the environment",
            format!("{base}, {both}, compose: {{ include_environment: true }}"),
            &[BASE, MODEL, AGENT, PROJECT, SKILL, ENVIRONMENT],
        ),
        (
            "another order",
            format!(
                "{base}, {both}, compose: {{ order: [environment, skills, project_agents_md, agent, llm_optimized, base], include_environment: true }}"
            ),
            &[ENVIRONMENT, SKILL, PROJECT, AGENT, MODEL, BASE],
        ),
        (
            "what is not in the order is not sent",
            format!("{base}, {both}, compose: {{ order: [agent, base], include_environment: true }}"),
            &[AGENT, BASE],
        ),
        (
            "an environment that is in the order and not included",
            format!("{base}, compose: {{ order: [environment, agent] }}"),
            &[AGENT],
        ),
    ];
    let harness = harness().await;
    for (name, settings, expected) in cases {
        harness.write(
            ".openharness/settings.yaml",
            &format!("default_agent: tested\nsystem_prompt: {{ {settings} }}\n"),
        );
        let run = harness.run_message("hello").await;
        let request = harness.requests(run.id).await.remove(0);
        let prompt = harness.content(request.system).await;
        let positions: Vec<Option<usize>> = expected.iter().map(|segment| prompt.find(segment)).collect();
        assert!(positions.iter().all(Option::is_some), "{name}: {positions:?}\n{prompt}");
        assert!(positions.is_sorted(), "{name}: {positions:?}\n{prompt}");
        for absent in ALL.iter().filter(|segment| !expected.contains(segment)) {
            assert!(!prompt.contains(absent), "{name}: {absent}\n{prompt}");
        }
    }
}

#[tokio::test]
async fn equal_prompts_are_stored_once() {
    let harness = harness().await;
    let mut hashes = Vec::new();
    for text in ["one", "two"] {
        let run = harness.run_message(text).await;
        let request = harness.requests(run.id).await.remove(0);
        hashes.push((request.system, request.tools, request.definitions));
    }
    assert_eq!(hashes[0], hashes[1]);
    harness.write("AGENTS.md", "Other rules.\n");
    let run = harness.run_message("three").await;
    let request = harness.requests(run.id).await.remove(0);
    assert_ne!(request.system, hashes[0].0);
    // Earlier prompts stay readable.
    assert!(harness.content(hashes[0].0).await.contains("The last line"));
}

#[tokio::test]
async fn prompt_lists_only_skills_of_the_agent() {
    let harness = harness().await;
    harness.write(".openharness/skills/other/SKILL.md", "---\ndescription: Another one\n---\nDo it.\n");
    for (frontmatter, expected) in [
        ("", vec!["- greet:", "- other:"]),
        ("tools: { skills: [other] }", vec!["- other:"]),
        ("disallowed: { skills: [o*] }", vec!["- greet:"]),
        ("tools: { skills: [] }", vec![]),
    ] {
        harness.write_agent(frontmatter);
        let run = harness.run_message("hello").await;
        let request = harness.requests(run.id).await.remove(0);
        let prompt = harness.content(request.system).await;
        let listed: Vec<&str> =
            ["- greet:", "- other:"].into_iter().filter(|name| prompt.contains(name)).collect();
        assert_eq!(listed, expected, "{frontmatter}");
        let has_tool = harness.offered(&request).await.contains(&"Skill".to_owned());
        assert_eq!(has_tool, !expected.is_empty(), "{frontmatter}");
    }
}
