//! What an agent looks up.

use std::os::unix::fs::symlink;

use remuda_domain::RunState;

use crate::{lab::Lab, look::verdict};

const SKILL: &str = "---\nname: greet\ndescription: How to greet\n---\n# Greeting\n\nSay hello twice.\n";

/// What became of one look at a skill, given the arguments in YAML.
async fn look(lab: &Lab, arguments: &str) -> (String, String) {
    lab.write_scenario(&format!(
        "turns:\n  - call: [{{ tool: Skill, arguments: {{ {arguments} }} }}]\n  - say: done\n"
    ));
    let run = lab.ask("go").await;
    assert_eq!(run.state, RunState::Completed, "{arguments}: {:?}", run.failure);
    let outcome = &run.outcomes[0];
    let told = outcome.failure.as_ref().map(|failure| failure.message.clone());
    (verdict(outcome), told.unwrap_or_else(|| outcome.output.as_str().unwrap_or_default().to_owned()))
}

#[tokio::test]
async fn a_skill_is_read_with_its_files_and_nothing_else() {
    let lab = Lab::new("turns: [{ say: unused }]").await;
    let skill = ".openharness/skills/welcome";
    lab.write(&format!("{skill}/SKILL.md"), SKILL);
    lab.write(&format!("{skill}/deep/words.txt"), "hello, hullo\n");
    lab.write("secret", "nobody's business\n");
    let directory = lab.directory.path().join(skill);
    symlink(lab.directory.path().join("secret"), directory.join("link")).unwrap();
    symlink("deep/words.txt", directory.join("inside")).unwrap();
    std::process::Command::new("mkfifo").arg(directory.join("pipe")).status().unwrap();
    let absolute = lab.directory.path().join("secret").display().to_string();
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
    for (arguments, expected, told) in cases {
        let arguments = arguments.trim_matches(['{', '}']);
        let (verdict, text) = look(&lab, arguments).await;
        assert_eq!(verdict, expected, "{arguments}: {text}");
        assert!(text.contains(told), "{arguments}: {text}");
        assert!(!text.contains("nobody's business"), "{arguments}");
    }
}
