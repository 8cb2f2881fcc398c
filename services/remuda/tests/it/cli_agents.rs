//! The commands for agents, as a person or a script uses them: against `remuda dev` with a scripted model, and without a server.

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

use crate::harness::{Dev, Done, PATIENCE, pids, temporary_directory, wait_until_gone};

/// What the model says, depending on what it is asked. `@` stands for the workspace's directory.
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
        "---\ndescription: Helps\nmodel: workspace/rehearsed\n---\nYou help.\n",
    );
    write(".openharness/models/models.yaml", "rehearsed:\n  provider: scripted\n  name: ../scenario.yaml\n");
    write(".openharness/scenario.yaml", SCENARIO);
    root
}

struct Stage {
    dev: Dev,
    root: PathBuf,
    // After all that uses it.
    _directory: TempDir,
}

impl Stage {
    async fn new() -> Self {
        let directory = temporary_directory();
        let root = workspace(directory.path());
        Self { dev: Dev::start().await, root, _directory: directory }
    }

    fn dir(&self) -> &str {
        self.root.to_str().unwrap()
    }

    /// Says something in the workspace.
    async fn say(&self, text: &str, more: &[&str]) -> Done {
        self.dev.cli.run(&[&["run", text, "--dir", self.dir()], more].concat()).await
    }
}

#[tokio::test]
async fn the_answer_goes_to_stdout_and_the_work_to_stderr() {
    let stage = Stage::new().await;
    let done = stage.say("count the lines", &["--session", "s1"]).await;
    assert_eq!((done.code, done.stdout.as_str()), (0, "There are two lines.\n"), "{}", done.stderr);
    let told = [
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
    let places: Vec<Option<usize>> = told.iter().map(|text| done.stderr.find(text)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}\n{}", done.stderr);
    assert!(!done.stderr.contains('\u{1b}') && !done.stderr.contains('\r'), "{:?}", done.stderr);

    let quiet = stage.say("hello", &["--session", "s1", "--quiet"]).await;
    assert_eq!((quiet.code, quiet.stdout.as_str(), quiet.stderr.as_str()), (0, "You said: hello\n", ""));

    let failed = stage.say("break", &[]).await;
    assert_eq!((failed.code, failed.stdout.as_str()), (1, ""), "{}", failed.stderr);
    assert!(failed.stderr.contains("✗ failed") && failed.stderr.contains("I will not"), "{}", failed.stderr);
    let failed = stage.say("break", &["--quiet"]).await;
    assert!(failed.code == 1 && failed.stderr.contains("I will not"), "silence would look like an answer");
}

#[tokio::test]
async fn scripts_get_documents() {
    let stage = Stage::new().await;
    let run = stage.say("count", &["--json"]).await;
    let run = run.documents().remove(0);
    assert_eq!((&run["state"], &run["answer"]), (&"completed".into(), &"There are two lines.".into()));
    assert_eq!((&run["message"]["text"], &run["outcomes"][0]["tool"]), (&"count".into(), &"Bash".into()));

    // The tool waits for the gate, so that whoever follows is there when the answer comes.
    let mut live = stage.dev.cli.start(&["run", "gate", "--dir", stage.dir(), "--json", "--follow"]);
    wait_for("the tool to start", PATIENCE, || {
        std::future::ready(live.documents().iter().any(|line| line["type"] == "tool.started"))
    })
    .await;
    fs::write(stage.root.join("gate"), "").unwrap();
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
    let heard: Vec<&Value> = events.iter().filter(|line| line["type"] == "message.delta").collect();
    assert!(
        heard.iter().any(|piece| piece["message_id"] == answers[1]["message"]),
        "nothing was heard before it was said"
    );
    for piece in heard {
        let said = answers.iter().find(|answer| answer["message"] == piece["message_id"]).unwrap();
        let offset = usize::try_from(piece["offset"].as_u64().unwrap()).unwrap();
        assert!(text(said)[offset..].starts_with(piece["text"].as_str().unwrap()), "{piece}");
    }
}

#[tokio::test]
async fn text_comes_from_stdin_too() {
    let stage = Stage::new().await;
    let endpoint = stage.dev.client().options().endpoint.clone();
    let piped = |arguments: &str, input: &str| {
        let line = format!("printf '{input}' | \"$REMUDA\" run {arguments} --dir \"$ROOT\" --quiet");
        let mut shell = Command::new("sh");
        shell.args(["-c", &line]).env("REMUDA", env!("CARGO_BIN_EXE_remuda")).env("ROOT", stage.dir());
        let output = shell.env("REMUDA_ENDPOINT", &endpoint).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(piped("", "two\\nwords\\n"), (Some(0), "You said: two\nwords\n".to_owned()));
    assert_eq!(piped("-", "dash"), (Some(0), "You said: dash\n".to_owned()));
    assert_eq!(piped("given", "ignored").1, "You said: given\n");
    assert_eq!(piped("-", "\\n").0, Some(2), "nothing was said");
}

#[tokio::test]
async fn a_directory_is_registered_once_and_sessions_go_on() {
    let stage = Stage::new().await;
    for _ in 0..2 {
        assert_eq!(stage.say("hello", &["--session", "s1"]).await.code, 0);
    }
    let workspaces = stage.dev.cli.json(&["workspace", "list"]).await;
    let ours: Vec<&Value> = workspaces.iter().filter(|workspace| workspace["root"] == stage.dir()).collect();
    assert_eq!(ours.len(), 1, "{workspaces:?}");
    let name = ours[0]["name"].as_str().unwrap();
    assert!(name.starts_with("work-"), "{name}");
    let named = stage
        .dev
        .cli
        .run(&["run", "again", "--workspace", name, "--session", "s2", "--agent", "build"])
        .await;
    assert_eq!((named.code, named.stdout.as_str()), (0, "You said: again\n"), "{}", named.stderr);
    let added = stage.dev.cli.one(&["workspace", "add", "mine", stage.dir()]).await;
    assert_eq!((&added["name"], &added["root"]), (&"mine".into(), &stage.dir().into()));
    assert_eq!(stage.dev.cli.run(&["workspace", "add", "mine", stage.dir()]).await.code, 8);

    let set = stage.dev.cli.one(&["sessions", "set", "s2", "--agent", "helper", "--title", "t"]).await;
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
    let created = stage.dev.cli.one(&arguments).await;
    assert_eq!((&created["agent"], &created["model"]), (&"plan".into(), &"workspace/rehearsed".into()));
    let asked = stage.dev.cli.run(&["run", "hello", "--session", "s3"]).await;
    assert!(asked.stderr.contains("● plan · workspace/rehearsed"), "{}", asked.stderr);

    let unknown = stage.say("hello", &["--agent", "nobody"]).await;
    assert_eq!(unknown.code, 1);
    assert!(unknown.stderr.contains("there is no agent nobody"), "{}", unknown.stderr);
    assert_eq!(stage.dev.cli.run(&["run", "hello", "--workspace", "nowhere"]).await.code, 4);
}

#[tokio::test]
async fn what_was_said_can_be_read_again() {
    let stage = Stage::new().await;
    let run = stage.say("count the lines", &["--session", "s1", "--json"]).await.documents().remove(0);
    let id = run["id"].as_str().unwrap();
    let shown = stage.dev.cli.run(&["sessions", "show", "s1"]).await.stdout;
    let told = [
        "s1\n",
        stage.dir(),
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
    for text in told {
        let at = rest.find(text).unwrap_or_else(|| panic!("{text:?} is missing or too early in\n{shown}"));
        rest = &rest[at + text.len()..];
    }
    let documents = stage.dev.cli.json(&["sessions", "show", "s1"]).await;
    let roles: Vec<&str> = documents.iter().filter_map(|line| line["role"].as_str()).collect();
    assert_eq!(
        (&documents[0]["name"], roles),
        (&"s1".into(), vec!["user", "assistant", "tool", "assistant"])
    );
    let last = stage.dev.cli.run(&["sessions", "show", "s1", "--tail", "1"]).await.stdout;
    assert!(last.contains("There are two lines.") && !last.contains("count the lines"), "{last}");

    let shown = stage.dev.cli.run(&["runs", "show", id]).await.stdout;
    assert!(shown.contains("❯ count the lines") && shown.contains("● There are two lines."), "{shown}");
    let steps = stage.dev.cli.run(&["runs", "steps", id]).await.stdout;
    assert!(steps.contains("helper asks workspace/rehearsed") && steps.contains("calls Bash"), "{steps}");
    assert!(steps.contains("1.2k in, 7 out · stop"), "{steps}");
    let steps = stage.dev.cli.json(&["runs", "steps", id]).await;
    assert_eq!(steps[2]["model_call"]["usage"]["input_tokens"], 1200);
    let listed = stage.dev.cli.run(&["runs", "list", "--session", "s1"]).await.stdout;
    assert!(listed.contains("\"count the lines\""), "{listed}");
    let waited = stage.dev.cli.run(&["runs", "wait", id]).await;
    assert_eq!((waited.code, waited.stdout.as_str()), (0, "There are two lines.\n"));

    let watched = stage.dev.cli.run(&["watch", id, "--deltas"]).await.stdout;
    for text in [
        "user said",
        "helper asks workspace/rehearsed",
        "the model answered in",
        "⏺ Bash  printf",
        "completed",
    ] {
        assert!(watched.contains(text), "{text} is missing in\n{watched}");
    }
}

#[tokio::test]
async fn what_models_and_tools_say_is_harmless() {
    let stage = Stage::new().await;
    let done = stage.say("hostile", &["--session", "s1"]).await;
    assert_eq!((done.code, done.stdout.as_str()), (0, "last words\n"));
    assert!(done.stderr.contains("first words\n") && done.stderr.contains("    red\n"), "{:?}", done.stderr);
    let shown = stage.dev.cli.run(&["sessions", "show", "s1"]).await.stdout;
    let watched = stage.dev.cli.run(&["runs", "list", "--session", "s1", "--json"]).await;
    let id = watched.documents()[0]["id"].as_str().unwrap().to_owned();
    let watched = stage.dev.cli.run(&["watch", &id]).await.stdout;
    for text in [&done.stderr, &shown, &watched] {
        let harmful = |c: char| c.is_control() && c != '\n' && c != '\t';
        assert!(!text.contains(harmful) && !text.contains("owned"), "{text:?}");
    }
}

#[tokio::test]
async fn ctrl_c_cancels_and_a_second_one_leaves() {
    let mut stage = Stage::new().await;
    let arguments = ["run", "sleep", "--dir", stage.root.to_str().unwrap(), "--session", "s1"];
    let pid = stage.root.join("pid");
    let asleep = async || {
        wait_for("the tool to sleep", PATIENCE, || {
            std::future::ready(Some(pids(pid.to_str().unwrap())).filter(|pids| !pids.is_empty()))
        })
        .await
    };
    let mut run = stage.dev.cli.start(&arguments);
    let family = asleep().await;
    run.says("⏺ Bash").await;
    run.signal(Signal::SIGINT);
    assert_eq!(run.exit_code().await, 6, "{}", run.stderr());
    let told = run.stderr();
    assert!(told.contains("cancelling the run") && told.contains("✗ cancelled"), "{told}");
    wait_until_gone(&family).await;

    fs::remove_file(&pid).unwrap();
    let mut run = stage.dev.cli.start(&arguments);
    let family = asleep().await;
    // A server that does not answer must not hold anybody.
    stage.dev.server.process.signal(Signal::SIGSTOP);
    run.signal(Signal::SIGINT);
    run.says("cancelling the run").await;
    run.signal(Signal::SIGINT);
    assert_eq!(run.exit_code().await, 130, "{}", run.stderr());
    assert!(run.stderr().contains("the run goes on"), "{}", run.stderr());
    stage.dev.server.process.signal(Signal::SIGCONT);
    assert_eq!(stage.dev.cli.run(&["sessions", "cancel", "s1"]).await.code, 0);
    wait_until_gone(&family).await;
}

#[tokio::test]
async fn wrong_usage_is_explained() {
    let stage = Stage::new().await;
    let (dir, picture) = (stage.dir().to_owned(), stage.root.join("AGENTS.md"));
    let picture = picture.to_str().unwrap();
    let cases: [(&[&str], &str); 10] = [
        (&["run"], "expected something to say"),
        (&["run", "  "], "expected something to say"),
        (&["run", "hi", "--tool", "noop"], "cannot be used with"),
        (&["run", "--agent", "build", "--tool", "noop"], "cannot be used with"),
        (&["run", "hi", "--record"], "required"),
        (&["run", "hi", "--dir", "/does/not/exist"], "/does/not/exist"),
        (&["run", "hi", "--dir", &dir, "--workspace", "x"], "cannot be used with"),
        (&["run", "hi", "--attach", picture], "is no picture"),
        (&["run", "hi", "--attach", "/does/not/exist.png"], "cannot read"),
        (&["sessions", "set", "s1"], "required"),
    ];
    for (arguments, expected) in cases {
        let done = stage.dev.cli.run(arguments).await;
        assert_eq!(done.code, 2, "{arguments:?}: {}", done.stderr);
        assert!(done.stderr.contains(expected), "{arguments:?}: {}", done.stderr);
    }
    let image = stage.root.join("dot.any");
    fs::write(&image, b"GIF89a\x01\0\x01\0\0\0\0;").unwrap();
    let seen = stage.say("look", &["--attach", image.to_str().unwrap(), "--json"]).await;
    assert_eq!(seen.code, 0, "{}", seen.stderr);
    assert_eq!(seen.documents()[0]["message"]["images"][0]["media_type"], "image/gif");
}
