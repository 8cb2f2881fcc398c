//! The agent commands as people and scripts use them: against `remuda dev` with a scripted model, and without a server.

mod offline;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use nix::sys::signal::Signal;
use remuda_testkit::wait_for;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{CommandOutput, Dev, TIMEOUT, pids, temporary_directory, wait_until_gone};

/// The responses of the scripted model, chosen by the user's message.
const SCENARIO: &str = r#"
conversations:
  - on: { user_contains: "count" }
    turns:
      - think: "Where are they?"
        say: "I look."
        call: [{ tool: Bash, arguments: { command: "printf 'one\\ntwo\\n'; exit 3" } }]
      - say: "There are two lines."
        usage: { input: 1200, output: 7 }
  - on: { user_contains: "gate" }
    turns:
      - say: "I wait."
        call: [{ tool: Bash, arguments: { command: "until [ -e gate ]; do sleep 0.02; done" } }]
      - say: "It is open now, so that this can be said in pieces."
  - on: { user_contains: "hostile" }
    turns:
      - say: "first\u001b[2J\u001b]0;owned\u0007 words"
        call: [{ tool: Bash, arguments: { command: "printf '\\033[31mred\\033[0m\\n'" } }]
      - say: "last\u001b[31m words"
  - on: { user_contains: "sleep" }
    turns:
      - say: "I sleep."
        call: [{ tool: Bash, arguments: { command: "echo $$ > pid; exec sleep 600" } }]
  - on: { user_contains: "break" }
    turns:
      - fail: { status: 400, message: "I will not" }
otherwise: { say: "You said: {{user}}" }
"#;

/// A workspace with one agent and one model that needs no key.
fn workspace(directory: &Path) -> PathBuf {
    let root = directory.join("work");
    let write = |name: &str, text: &str| {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("AGENTS.md", "Be brief.\n");
    write(".openharness/settings.yaml", "default_agent: helper\n");
    write(
        ".openharness/agents/helper.md",
        "---\ndescription: Helps\nmodel: workspace/rehearsed\ntools: { native: ['*'] }\n---\nYou help.\n",
    );
    write(".openharness/models/models.yaml", "rehearsed:\n  provider: scripted\n  name: ../scenario.yaml\n");
    write(".openharness/scenario.yaml", SCENARIO);
    root
}

struct Fixture {
    dev: Dev,
    root: PathBuf,
    // Dropped after the server that uses it.
    _directory: TempDir,
}

impl Fixture {
    async fn new() -> Self {
        let directory = temporary_directory();
        let root = workspace(directory.path());
        Self { dev: Dev::start().await, root, _directory: directory }
    }

    fn dir(&self) -> &str {
        self.root.to_str().unwrap()
    }

    /// Sends a message in the workspace.
    async fn send_message(&self, text: &str, more: &[&str]) -> CommandOutput {
        self.dev.cli.run(&[&["run", text, "--dir", self.dir()], more].concat()).await
    }
}

#[tokio::test]
async fn final_answer_goes_to_stdout_and_progress_to_stderr() {
    let fixture = Fixture::new().await;
    let done = fixture.send_message("count the lines", &["--session", "s1"]).await;
    assert_eq!((done.code, done.stdout.as_str()), (0, "There are two lines.\n"), "{}", done.stderr);
    let expected = [
        "● helper · workspace/rehearsed",
        "✻ Where are they?",
        "I look.",
        "⏺ Bash  printf 'one\\ntwo\\n'; exit 3",
        "⎿ exit code 3",
        "one\n",
        "✓ completed",
        "3 steps",
        "tokens in",
    ];
    let positions: Vec<Option<usize>> = expected.iter().map(|text| done.stderr.find(text)).collect();
    assert!(positions.iter().all(Option::is_some) && positions.is_sorted(), "{positions:?}\n{}", done.stderr);
    assert!(!done.stderr.contains('\u{1b}') && !done.stderr.contains('\r'), "{:?}", done.stderr);

    let quiet = fixture.send_message("hello", &["--session", "s1", "--quiet"]).await;
    assert_eq!((quiet.code, quiet.stdout.as_str(), quiet.stderr.as_str()), (0, "You said: hello\n", ""));

    let failed = fixture.send_message("break", &[]).await;
    assert_eq!((failed.code, failed.stdout.as_str()), (1, ""), "{}", failed.stderr);
    assert!(failed.stderr.contains("✗ failed") && failed.stderr.contains("I will not"), "{}", failed.stderr);
    let failed = fixture.send_message("break", &["--quiet"]).await;
    assert!(
        failed.code == 1 && failed.stderr.contains("I will not"),
        "a failure must be printed even with --quiet"
    );
}

#[tokio::test]
async fn json_flag_prints_documents_for_scripts() {
    let fixture = Fixture::new().await;
    let run = fixture.send_message("count", &["--json"]).await;
    let run = run.documents().remove(0);
    assert_eq!((&run["state"], &run["answer"]), (&"completed".into(), &"There are two lines.".into()));
    assert_eq!((&run["message"]["text"], &run["outcomes"][0]["tool"]), (&"count".into(), &"Bash".into()));

    // The tool waits for the gate file, so that the follower is subscribed before the response comes.
    let mut live = fixture.dev.cli.start(&["run", "gate", "--dir", fixture.dir(), "--json", "--follow"]);
    wait_for("the tool to start", TIMEOUT, || {
        std::future::ready(live.documents().iter().any(|line| line["type"] == "tool.started"))
    })
    .await;
    fs::write(fixture.root.join("gate"), "").unwrap();
    assert_eq!(live.exit_code().await, 0, "{}", live.stderr());
    let lines = live.documents();
    let (run, events) = lines.split_last().unwrap();
    assert_eq!(run["state"], "completed");
    let answers: Vec<&Value> = events
        .iter()
        .filter(|line| line["type"] == "message.completed" && line["data"]["role"] == "assistant")
        .map(|line| &line["data"])
        .collect();
    let text = |message: &Value| message["parts"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(run["answer"], text(answers[1]));
    let deltas: Vec<&Value> = events.iter().filter(|line| line["type"] == "message.delta").collect();
    assert!(
        deltas.iter().any(|piece| piece["message_id"] == answers[1]["message"]),
        "no delta arrived before the message was completed"
    );
    for piece in deltas {
        let message = answers.iter().find(|answer| answer["message"] == piece["message_id"]).unwrap();
        let offset = usize::try_from(piece["offset"].as_u64().unwrap()).unwrap();
        assert!(text(message)[offset..].starts_with(piece["text"].as_str().unwrap()), "{piece}");
    }
}

#[tokio::test]
async fn message_text_can_come_from_stdin() {
    let fixture = Fixture::new().await;
    let endpoint = fixture.dev.client().options().endpoint.clone();
    let piped = |arguments: &str, input: &str| {
        let line = format!("printf '{input}' | \"$REMUDA\" run {arguments} --dir \"$ROOT\" --quiet");
        let mut shell = Command::new("sh");
        shell.args(["-c", &line]).env("REMUDA", env!("CARGO_BIN_EXE_remuda")).env("ROOT", fixture.dir());
        let output = shell.env("REMUDA_ENDPOINT", &endpoint).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(piped("", "two\\nwords\\n"), (Some(0), "You said: two\nwords\n".to_owned()));
    assert_eq!(piped("-", "dash"), (Some(0), "You said: dash\n".to_owned()));
    assert_eq!(piped("given", "ignored").1, "You said: given\n");
    assert_eq!(piped("-", "\\n").0, Some(2), "an empty message must be refused");
}

#[tokio::test]
async fn directory_is_registered_once_and_sessions_can_continue() {
    let fixture = Fixture::new().await;
    for _ in 0..2 {
        assert_eq!(fixture.send_message("hello", &["--session", "s1"]).await.code, 0);
    }
    let workspaces = fixture.dev.cli.json(&["workspace", "list"]).await;
    let ours: Vec<&Value> =
        workspaces.iter().filter(|workspace| workspace["root"] == fixture.dir()).collect();
    assert_eq!(ours.len(), 1, "{workspaces:?}");
    let name = ours[0]["name"].as_str().unwrap();
    assert!(name.starts_with("work-"), "{name}");
    let named = fixture
        .dev
        .cli
        .run(&["run", "again", "--workspace", name, "--session", "s2", "--agent", "build"])
        .await;
    assert_eq!((named.code, named.stdout.as_str()), (0, "You said: again\n"), "{}", named.stderr);
    let added = fixture.dev.cli.one(&["workspace", "add", "mine", fixture.dir()]).await;
    assert_eq!((&added["name"], &added["root"]), (&"mine".into(), &fixture.dir().into()));
    assert_eq!(fixture.dev.cli.run(&["workspace", "add", "mine", fixture.dir()]).await.code, 8);

    let set = fixture.dev.cli.one(&["sessions", "set", "s2", "--agent", "helper", "--title", "t"]).await;
    assert_eq!((&set["agent"], &set["title"]), (&"helper".into(), &"t".into()));
    let arguments = [
        "sessions",
        "create",
        "s3",
        "--workspace",
        name,
        "--agent",
        "plan",
        "--model",
        "workspace/rehearsed",
    ];
    let created = fixture.dev.cli.one(&arguments).await;
    assert_eq!((&created["agent"], &created["model"]), (&"plan".into(), &"workspace/rehearsed".into()));
    let asked = fixture.dev.cli.run(&["run", "hello", "--session", "s3"]).await;
    assert!(asked.stderr.contains("● plan · workspace/rehearsed"), "{}", asked.stderr);

    let unknown = fixture.send_message("hello", &["--agent", "nobody"]).await;
    assert_eq!(unknown.code, 1);
    assert!(unknown.stderr.contains("there is no agent nobody"), "{}", unknown.stderr);
    assert_eq!(fixture.dev.cli.run(&["run", "hello", "--workspace", "nowhere"]).await.code, 4);
}

#[tokio::test]
async fn past_messages_runs_and_steps_can_be_shown() {
    let fixture = Fixture::new().await;
    let run =
        fixture.send_message("count the lines", &["--session", "s1", "--json"]).await.documents().remove(0);
    let id = run["id"].as_str().unwrap();
    let shown = fixture.dev.cli.run(&["sessions", "show", "s1"]).await.stdout;
    let expected = [
        "s1\n",
        fixture.dir(),
        "helper\n",
        "❯ count the lines",
        "● helper",
        "✻ Where are they?",
        "  I look.",
        "⏺ Bash  printf",
        "  ⎿ exit code 3",
        "    one\n    two\n",
        "  There are two lines.",
    ];
    let mut rest = shown.as_str();
    for text in expected {
        let at = rest.find(text).unwrap_or_else(|| panic!("{text:?} is missing or too early in\n{shown}"));
        rest = &rest[at + text.len()..];
    }
    let documents = fixture.dev.cli.json(&["sessions", "show", "s1"]).await;
    let roles: Vec<&str> = documents.iter().filter_map(|line| line["role"].as_str()).collect();
    assert_eq!(
        (&documents[0]["name"], roles),
        (&"s1".into(), vec!["user", "assistant", "tool", "assistant"])
    );
    let last = fixture.dev.cli.run(&["sessions", "show", "s1", "--tail", "1"]).await.stdout;
    assert!(last.contains("There are two lines.") && !last.contains("count the lines"), "{last}");

    let shown = fixture.dev.cli.run(&["runs", "show", id]).await.stdout;
    assert!(shown.contains("❯ count the lines") && shown.contains("● There are two lines."), "{shown}");
    let steps = fixture.dev.cli.run(&["runs", "steps", id]).await.stdout;
    assert!(steps.contains("helper calls workspace/rehearsed") && steps.contains("calls Bash"), "{steps}");
    assert!(steps.contains("1.2k in, 7 out · stop"), "{steps}");
    let steps = fixture.dev.cli.json(&["runs", "steps", id]).await;
    assert_eq!(steps[2]["model_call"]["usage"]["input_tokens"], 1200);
    let listed = fixture.dev.cli.run(&["runs", "list", "--session", "s1"]).await.stdout;
    assert!(listed.contains("\"count the lines\""), "{listed}");
    let waited = fixture.dev.cli.run(&["runs", "wait", id]).await;
    assert_eq!((waited.code, waited.stdout.as_str()), (0, "There are two lines.\n"));

    let watched = fixture.dev.cli.run(&["watch", id, "--deltas"]).await.stdout;
    for text in [
        "message from user",
        "helper calls workspace/rehearsed",
        "the model answered in",
        "⏺ Bash  printf",
        "completed",
    ] {
        assert!(watched.contains(text), "{text} is missing in\n{watched}");
    }
}

#[tokio::test]
async fn control_characters_of_models_and_tools_are_removed() {
    let fixture = Fixture::new().await;
    let done = fixture.send_message("hostile", &["--session", "s1"]).await;
    assert_eq!((done.code, done.stdout.as_str()), (0, "last words\n"));
    assert!(done.stderr.contains("first words\n") && done.stderr.contains("    red\n"), "{:?}", done.stderr);
    let shown = fixture.dev.cli.run(&["sessions", "show", "s1"]).await.stdout;
    let watched = fixture.dev.cli.run(&["runs", "list", "--session", "s1", "--json"]).await;
    let id = watched.documents()[0]["id"].as_str().unwrap().to_owned();
    let watched = fixture.dev.cli.run(&["watch", &id]).await.stdout;
    for text in [&done.stderr, &shown, &watched] {
        let harmful = |c: char| c.is_control() && c != '\n' && c != '\t';
        assert!(!text.contains(harmful) && !text.contains("owned"), "{text:?}");
    }
}

#[tokio::test]
async fn first_ctrl_c_cancels_and_the_second_exits() {
    let mut fixture = Fixture::new().await;
    let arguments = ["run", "sleep", "--dir", fixture.root.to_str().unwrap(), "--session", "s1"];
    let pid = fixture.root.join("pid");
    let wait_until_asleep = async || {
        wait_for("the tool to sleep", TIMEOUT, || {
            std::future::ready(Some(pids(pid.to_str().unwrap())).filter(|pids| !pids.is_empty()))
        })
        .await
    };
    let mut run = fixture.dev.cli.start(&arguments);
    let processes = wait_until_asleep().await;
    run.wait_for_stderr("⏺ Bash").await;
    run.signal(Signal::SIGINT);
    assert_eq!(run.exit_code().await, 6, "{}", run.stderr());
    let stderr = run.stderr();
    assert!(stderr.contains("cancelling the run") && stderr.contains("✗ cancelled"), "{stderr}");
    wait_until_gone(&processes).await;

    fs::remove_file(&pid).unwrap();
    let mut run = fixture.dev.cli.start(&arguments);
    let processes = wait_until_asleep().await;
    // A server that does not answer must not keep the client from exiting.
    fixture.dev.server.process.signal(Signal::SIGSTOP);
    run.signal(Signal::SIGINT);
    run.wait_for_stderr("cancelling the run").await;
    run.signal(Signal::SIGINT);
    assert_eq!(run.exit_code().await, 130, "{}", run.stderr());
    assert!(run.stderr().contains("the run continues"), "{}", run.stderr());
    fixture.dev.server.process.signal(Signal::SIGCONT);
    assert_eq!(fixture.dev.cli.run(&["sessions", "cancel", "s1"]).await.code, 0);
    wait_until_gone(&processes).await;
}

#[tokio::test]
async fn wrong_usage_fails_with_an_explanation() {
    let fixture = Fixture::new().await;
    let (dir, picture) = (fixture.dir().to_owned(), fixture.root.join("AGENTS.md"));
    let picture = picture.to_str().unwrap();
    let cases: [(&[&str], &str); 10] = [
        (&["run"], "expected a message"),
        (&["run", "  "], "expected a message"),
        (&["run", "hi", "--tool", "noop"], "cannot be used with"),
        (&["run", "--agent", "build", "--tool", "noop"], "cannot be used with"),
        (&["run", "hi", "--record"], "required"),
        (&["run", "hi", "--dir", "/does/not/exist"], "/does/not/exist"),
        (&["run", "hi", "--dir", &dir, "--workspace", "x"], "cannot be used with"),
        (&["run", "hi", "--attach", picture], "is not an image"),
        (&["run", "hi", "--attach", "/does/not/exist.png"], "cannot read"),
        (&["sessions", "set", "s1"], "required"),
    ];
    for (arguments, expected) in cases {
        let done = fixture.dev.cli.run(arguments).await;
        assert_eq!(done.code, 2, "{arguments:?}: {}", done.stderr);
        assert!(done.stderr.contains(expected), "{arguments:?}: {}", done.stderr);
    }
    let image = fixture.root.join("dot.any");
    fs::write(&image, b"GIF89a\x01\0\x01\0\0\0\0;").unwrap();
    let seen = fixture.send_message("look", &["--attach", image.to_str().unwrap(), "--json"]).await;
    assert_eq!(seen.code, 0, "{}", seen.stderr);
    assert_eq!(seen.documents()[0]["message"]["images"][0]["media_type"], "image/gif");
}
