//! Commands that need no server.

use std::fs;

use remuda_testkit::free_port;

use super::workspace;
use crate::harness::{CommandOutput, temporary_directory, variables};

#[tokio::test]
async fn workspace_init_check_and_show_need_no_server() {
    let directory = temporary_directory();
    let path = directory.path().join("new");
    let dir = path.to_str().unwrap();
    let run = async |arguments: &[&str]| CommandOutput::run(arguments, &[]).await;
    let made = run(&["workspace", "init", dir]).await;
    assert!(made.code == 0 && made.stdout.contains("+ AGENTS.md"), "{}{}", made.stdout, made.stderr);
    let again = run(&["workspace", "init", dir, "--json"]).await.documents().remove(0);
    assert_eq!(
        (again["created"].as_array().unwrap().len(), again["kept"].as_array().unwrap().len() > 2),
        (0, true)
    );
    assert_eq!(run(&["workspace", "init", dir, "--template", "nope"]).await.code, 2);
    let fresh = run(&["workspace", "check", dir]).await;
    assert_eq!(fresh.code, 0, "{}", fresh.stdout);

    let write = |name: &str, text: &str| fs::write(path.join(".openharness").join(name), text).unwrap();
    write("models/broken.yaml", "rehearsed:\n  provider: scripted\n  name: ../scenario.yaml\n");
    write("scenario.yaml", "turns:\n  - say: hi\n    cal: []\n");
    write("agents/bad.md", "---\ndescription: Bad\npolicy:\n  max_steps: 0\n---\nYou are bad.\n");
    write("agents/lost.md", "---\ndescription: Lost\nmodel: platform/nowhere\n---\nYou are lost.\n");
    let checked = run(&["workspace", "check", dir]).await;
    assert_eq!(checked.code, 1, "{}", checked.stdout);
    let lines: Vec<&str> = checked.stdout.lines().collect();
    let found =
        |start: &str, text: &str| lines.iter().any(|line| line.starts_with(start) && line.contains(text));
    assert!(found(".openharness/agents/bad.md:4:", "error: "), "{lines:#?}");
    assert!(found(".openharness/agents/lost.md:3:", "error: "), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("scenario.yaml:3: error: ")), "{lines:#?}");
    assert!(lines.last().unwrap().contains("3 errors"), "{lines:#?}");
    let problems = &lines[..lines.len() - 1];
    assert!(problems.is_sorted_by_key(|line| line.split(':').next()), "{lines:#?}");
    let documents = run(&["workspace", "check", dir, "--json"]).await.documents();
    let bad = documents.iter().find(|problem| problem["subject"] == "bad").unwrap();
    assert_eq!((&bad["line"], &bad["severity"]), (&4.into(), &"error".into()));
    assert_eq!(documents.last().unwrap()["errors"], 3);

    let shown = run(&["workspace", "show", dir]).await.stdout;
    for text in ["developer", "built-in", "workspace/rehearsed", "version", "platform/nowhere (missing)"] {
        assert!(shown.contains(text), "{text} is missing in\n{shown}");
    }
    let document = run(&["workspace", "show", dir, "--json"]).await.documents().remove(0);
    assert_eq!(document["default_agent"], "developer");
    assert_eq!(document["version"].as_str().unwrap().len(), 64);
    let agent = run(&["workspace", "show", dir, "--agent", "developer"]).await.stdout;
    assert!(agent.contains("system prompt") && agent.contains("You change the code"), "{agent}");
    assert_eq!(run(&["workspace", "show", dir, "--agent", "bad"]).await.code, 4);
    assert_eq!(run(&["workspace", "check", "/does/not/exist"]).await.code, 4);
}

#[tokio::test]
async fn models_list_and_test_need_no_server_and_hide_keys() {
    let directory = temporary_directory();
    let root = workspace(directory.path());
    let dir = root.to_str().unwrap();
    let port = free_port().unwrap();
    let away = format!(
        "away:\n  provider: openai-compatible\n  url: http://127.0.0.1:{port}/v1\n  name: m\n  key: ${{env.AWAY_KEY}}\n"
    );
    fs::write(root.join(".openharness/models/away.yaml"), away).unwrap();
    let secrets = variables(&[("AWAY_KEY", "sk-hidden")]);
    let run = async |arguments: &[&str]| CommandOutput::run(arguments, &secrets).await;
    let listed = run(&["models", "list", "--dir", dir]).await;
    for text in ["workspace/rehearsed", "scripted", "workspace/away", "openai-compatible", "yes"] {
        assert!(listed.stdout.contains(text), "{text} is missing in\n{}", listed.stdout);
    }
    let documents = run(&["models", "list", "--dir", dir, "--json"]).await;
    let away =
        documents.documents().into_iter().find(|model| model["reference"] == "workspace/away").unwrap();
    assert_eq!(away["key"], true);

    let asked = run(&["models", "test", "rehearsed", "--dir", dir]).await;
    assert!(asked.code == 0 && asked.stdout.starts_with("You said: "), "{}{}", asked.stdout, asked.stderr);
    assert!(asked.stderr.contains("first byte after") && asked.stderr.contains("tokens"), "{}", asked.stderr);
    let unreachable = run(&["models", "test", "workspace/away", "--dir", dir]).await;
    assert_eq!(unreachable.code, 1, "{}", unreachable.stderr);
    assert!(unreachable.stderr.contains("[model_unavailable]"), "{}", unreachable.stderr);
    assert_eq!(run(&["models", "test", "nope", "--dir", dir]).await.code, 4);
    let shown = run(&["workspace", "show", dir]).await;
    for done in [&listed, &documents, &asked, &unreachable, &shown] {
        assert!(!done.stdout.contains("hidden") && !done.stderr.contains("hidden"), "{done:?}");
    }
}
