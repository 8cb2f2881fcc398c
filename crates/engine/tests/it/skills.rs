//! The `Skill` tool.

use std::os::unix::fs::symlink;

use remuda_domain::RunState;

use crate::{harness::Harness, inspect::status_and_code};

const SKILL: &str = "---\nname: greet\ndescription: How to greet\n---\n# Greeting\n\nSay hello twice.\n";

/// The outcome of one call of `Skill` with these arguments in YAML.
async fn call_skill(harness: &Harness, arguments: &str) -> (String, String) {
    harness.write_scenario(&format!(
        "turns:\n  - call: [{{ tool: Skill, arguments: {{ {arguments} }} }}]\n  - say: done\n"
    ));
    let run = harness.run_message("go").await;
    assert_eq!(run.state, RunState::Completed, "{arguments}: {:?}", run.failure);
    let outcome = &run.outcomes[0];
    let failure = outcome.failure.as_ref().map(|failure| failure.message.clone());
    (
        status_and_code(outcome),
        failure.unwrap_or_else(|| outcome.output.as_str().unwrap_or_default().to_owned()),
    )
}

#[tokio::test]
async fn skill_tool_reads_only_files_of_the_skill() {
    let harness = Harness::new("turns: [{ say: unused }]").await;
    let skill = ".openharness/skills/welcome";
    harness.write(&format!("{skill}/SKILL.md"), SKILL);
    harness.write(&format!("{skill}/deep/words.txt"), "hello, hullo\n");
    harness.write("secret", "nobody's business\n");
    let directory = harness.directory.path().join(skill);
    symlink(harness.directory.path().join("secret"), directory.join("link")).unwrap();
    symlink("deep/words.txt", directory.join("inside")).unwrap();
    std::process::Command::new("mkfifo").arg(directory.join("pipe")).status().unwrap();
    let absolute = harness.directory.path().join("secret").display().to_string();
    let cases = [
        ("skill: greet".to_owned(), "completed", "Say hello twice."),
        ("name: greet".to_owned(), "completed", "# Greeting"),
        ("skill: greet, resource_path: deep/words.txt".to_owned(), "completed", "hello, hullo"),
        ("skill: greet, resource_path: inside".to_owned(), "completed", "hello, hullo"),
        (
            "skill: greet, resource_path: ../../../secret".to_owned(),
            "failed path_not_allowed",
            "file of the skill",
        ),
        (
            "skill: greet, resource_path: ../../settings.yaml".to_owned(),
            "failed path_not_allowed",
            "file of the skill",
        ),
        ("skill: greet, resource_path: link".to_owned(), "failed path_not_allowed", "file of the skill"),
        (format!("skill: greet, resource_path: {absolute}"), "failed path_not_allowed", "file of the skill"),
        ("skill: greet, resource_path: none".to_owned(), "failed file_not_found", "no such file"),
        ("skill: greet, resource_path: deep".to_owned(), "failed file_not_found", "no such file"),
        ("skill: greet, resource_path: pipe".to_owned(), "failed file_not_found", "no such file"),
        ("skill: other".to_owned(), "failed invalid_argument", "greet"),
        ("{}".to_owned(), "failed invalid_argument", "skill"),
    ];
    for (arguments, expected, failure) in cases {
        let arguments = arguments.trim_matches(['{', '}']);
        let (status_and_code, text) = call_skill(&harness, arguments).await;
        assert_eq!(status_and_code, expected, "{arguments}: {text}");
        assert!(text.contains(failure), "{arguments}: {text}");
        assert!(!text.contains("nobody's business"), "{arguments}");
    }
}
