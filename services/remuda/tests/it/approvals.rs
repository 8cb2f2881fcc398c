//! Calls that wait for a person, from the flag that asks to the decision.

use std::{fs, path::PathBuf};

use remuda_domain::{ApprovalId, Code, RunId};
use remuda_proto::v1;
use remuda_testkit::wait_for;
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    bad_input::{invalid, refused},
    harness::{Cli, Dev, Done, PATIENCE, temporary_directory, variables},
};

const SCENARIO: &str = r#"
conversations:
  - on: { user_contains: "make it" }
    turns:
      - call: [{ tool: Bash, arguments: { command: "touch made.txt" } }]
      - say: "It said: {{last_tool_result}}"
otherwise: { say: "You said: {{user}}" }
"#;

/// What is asked about in these tests.
const ASK: [&str; 2] = ["--ask", "bash:touch *"];

struct Stage {
    dev: Dev,
    cli: Cli,
    root: PathBuf,
    // After all that uses it.
    _directory: TempDir,
}

impl Stage {
    async fn new() -> Self {
        Self::with(&[]).await
    }

    async fn with(flags: &[&str]) -> Self {
        let directory = temporary_directory();
        let root = directory.path().join("work");
        let write = |name: &str, text: &str| {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(".openharness/settings.yaml", "default_agent: helper\n");
        let agent = "---\ndescription: Helps\nmodel: workspace/rehearsed\n---\nYou help.\n";
        write(".openharness/agents/helper.md", agent);
        let model = "rehearsed:\n  provider: scripted\n  name: ../scenario.yaml\n";
        write(".openharness/models/models.yaml", model);
        write(".openharness/scenario.yaml", SCENARIO);
        let dev = Dev::start_with(flags).await;
        let cli = dev.cli.clone();
        Self { dev, cli, root, _directory: directory }
    }

    fn made(&self) -> bool {
        self.root.join("made.txt").try_exists().unwrap()
    }

    /// Starts a run that asks, and waits for the question. Gives the ids of both.
    async fn asks(&self, session: &str) -> (String, String) {
        let dir = self.root.to_str().unwrap();
        let run = ["run", "make it", "--dir", dir, "--session", session, "--detach"];
        let started = self.cli.run(&[&run, &ASK[..]].concat()).await;
        assert_eq!(started.code, 0, "{}", started.stderr);
        let run = started.stdout.trim().to_owned();
        let asked = || async {
            let found = self.cli.json(&["approvals", "list", "--run", &run]).await;
            found.first().map(|approval| approval["id"].as_str().unwrap().to_owned())
        };
        let approval = wait_for("the question", PATIENCE, asked).await;
        let parked = || async { self.cli.one(&["runs", "show", &run]).await["state"] == "parked" };
        wait_for("the run to wait", PATIENCE, parked).await;
        (run, approval)
    }

    async fn ends(&self, run: &str) -> Value {
        let waited = self.cli.run(&["runs", "wait", run]).await;
        assert_eq!(waited.code, 0, "{}", waited.stderr);
        self.cli.one(&["runs", "show", run]).await
    }
}

#[tokio::test]
async fn a_call_is_shown_exactly_approved_once_and_made() {
    let stage = Stage::new().await;
    let (run, approval) = stage.asks("s1").await;
    assert!(!stage.made(), "nobody has decided yet");

    let shown = stage.cli.run(&["approvals", "show", &approval]).await.stdout;
    for text in
        ["pending", "helper", "Bash", "touch made.txt", "every key with the scope approve", "hash", &run]
    {
        assert!(shown.contains(text), "{text} is missing in\n{shown}");
    }
    let document = stage.cli.one(&["approvals", "show", &approval]).await;
    assert_eq!(document["call"]["arguments"]["command"], "touch made.txt");
    let hash = document["call_hash"].as_str().unwrap();
    assert_eq!((hash.len(), &document["permission"]), (64, &"bash".into()));

    let explained = stage.cli.one(&["explain", &run]).await;
    assert_eq!(
        (&explained["reason"], &explained["waits_for"]),
        (&"parked".into(), &approval.as_str().into())
    );
    assert_eq!(
        (&explained["waits"][0]["kind"], &explained["waits"][0]["tool"]),
        (&"approval".into(), &"Bash".into())
    );
    assert!(explained["hint"].as_str().unwrap().contains("remuda approvals show"), "{explained}");

    let other =
        stage.cli.run(&["approvals", "approve", &approval, "--hash", &"0".repeat(64), "--json"]).await;
    assert_eq!((other.code, other.error().0.as_str()), (8, "approval_changed"));
    let approved = stage.cli.run(&["approvals", "approve", &approval, "--hash", &hash[..12]]).await;
    assert!(approved.code == 0 && approved.stdout.contains("touch made.txt"), "{approved:?}");
    let ended = stage.ends(&run).await;
    assert!(ended["state"] == "completed" && stage.made(), "{ended}");

    for again in ["approve", "deny"] {
        let again = stage.cli.run(&["approvals", again, &approval, "--json"]).await;
        assert_eq!((again.code, again.error().0.as_str()), (8, "approval_decided"));
    }
    assert!(stage.cli.json(&["approvals", "list"]).await.is_empty());
    let all = stage.cli.json(&["approvals", "list", "--all"]).await;
    assert_eq!(
        (all.len(), &all[0]["state"], &all[0]["decision"]["by"]),
        (1, &"approved".into(), &"local".into())
    );
}

#[tokio::test]
async fn a_denied_call_is_not_made_and_the_model_is_told_why() {
    let stage = Stage::new().await;
    let (run, approval) = stage.asks("s1").await;
    let denied = stage.cli.one(&["approvals", "deny", &approval, "--message", "use a pencil"]).await;
    assert_eq!(
        (&denied["state"], &denied["decision"]["message"]),
        (&"denied".into(), &"use a pencil".into())
    );
    stage.ends(&run).await;
    assert!(!stage.made());
    let steps = stage.cli.json(&["runs", "steps", &run]).await;
    let call = steps.iter().find(|step| step["kind"] == "tool_call").unwrap();
    assert!(call["outcome"].to_string().contains("use a pencil"), "{call}");
    assert_eq!(call["approval_id"], approval.as_str());
}

#[tokio::test]
async fn a_call_can_be_edited_and_the_like_need_not_be_asked_again() {
    let stage = Stage::new().await;
    let (run, approval) = stage.asks("s1").await;
    let wrong = ["approvals", "approve", &approval, "--json", "--input", "{\"commmand\": \"x\"}"];
    let wrong = stage.cli.run(&wrong).await;
    assert_eq!(wrong.error(), ("invalid_argument".to_owned(), "arguments.commmand".to_owned()));
    let edited = ["approvals", "approve", &approval, "--input", "{\"command\": \"touch other.txt\"}"];
    assert_eq!(stage.cli.run(&edited).await.code, 0);
    stage.ends(&run).await;
    assert!(!stage.made() && stage.root.join("other.txt").try_exists().unwrap());

    let (run, approval) = stage.asks("s1").await;
    assert_eq!(stage.cli.run(&["approvals", "approve", &approval, "--always"]).await.code, 0);
    stage.ends(&run).await;
    let session = stage.cli.one(&["sessions", "show", "s1", "--tail", "0"]).await;
    let rules = session["permissions"]["rules"].as_array().unwrap();
    assert!(rules.len() > 1 && rules.last().unwrap()["action"] == "allow", "{session}");
    // The rules that it was made with are still the first, so the same flags fit.
    let dir = stage.root.to_str().unwrap();
    let more = ["run", "make it", "--dir", dir, "--session", "s1", "--quiet"];
    let more = stage.cli.run(&[&more, &ASK[..]].concat()).await;
    assert_eq!(more.code, 0, "{}", more.stderr);
    let other = ["run", "x", "--dir", dir, "--session", "s1", "--deny", "bash", "--json"];
    assert_eq!(
        stage.cli.run(&other).await.error(),
        ("invalid_argument".to_owned(), "permissions".to_owned())
    );
}

#[tokio::test]
async fn only_who_may_decide_decides() {
    let stage = Stage::with(&["--require-keys"]).await;
    let data = stage.dev.path("data");
    let key = async |name: &str, scopes: &[&str]| {
        let scopes = scopes.iter().flat_map(|scope| ["--scope", scope]).collect::<Vec<_>>();
        let create = ["keys", "create", "--name", name, "--json"];
        let settings = variables(&[("REMUDA_DATA_DIR", &data)]);
        let made = Done::run(&[&create[..], &scopes].concat(), &settings).await;
        assert_eq!(made.code, 0, "{}", made.stderr);
        stage.dev.cli.with_key(made.documents()[0]["secret"].as_str().unwrap())
    };
    let plain = key("ci", &[]).await;
    let (admin, anna, ben) = (
        key("ops", &["write", "admin"]).await,
        key("anna", &["approve"]).await,
        key("ben", &["approve"]).await,
    );
    let dir = stage.root.to_str().unwrap();
    let run = ["run", "make it", "--dir", dir, "--session", "s1", "--detach", "--approver", "anna"];
    let started = admin.run(&[&run, &ASK[..]].concat()).await;
    assert_eq!(started.code, 0, "{}", started.stderr);
    let run = started.stdout.trim().to_owned();
    let asked = || async {
        let found = plain.json(&["approvals", "list"]).await;
        found.first().map(|approval| approval["id"].as_str().unwrap().to_owned())
    };
    let approval = wait_for("the question", PATIENCE, asked).await;
    for (who, cli) in [("no scope", &plain), ("not named", &ben)] {
        let refused = cli.run(&["approvals", "approve", &approval, "--json"]).await;
        assert_eq!((refused.code, refused.error().0.as_str()), (5, "permission_denied"), "{who}");
    }
    let told = plain.run(&["approvals", "approve", &approval]).await;
    assert!(told.stderr.contains("--scope approve"), "{}", told.stderr);
    assert_eq!(anna.run(&["approvals", "approve", &approval]).await.code, 0);
    assert_eq!(plain.run(&["runs", "wait", &run]).await.code, 0);
    assert!(stage.made());
    assert_eq!(
        anna.run(&["run", "x", "--json"]).await.error().0,
        "permission_denied",
        "approve is not write"
    );
}

#[tokio::test]
async fn bad_decisions_and_bad_permissions_are_refused_by_name() {
    let dev = Dev::start().await;
    let client = dev.client();
    let decide = |change: fn(&mut v1::DecideApprovalRequest)| {
        let mut request = v1::DecideApprovalRequest {
            approval_id: ApprovalId::new().to_string(),
            approve: true,
            ..Default::default()
        };
        change(&mut request);
        request
    };
    let unknown = (Code::ApprovalNotFound, "approval_id");
    let long = |request: &mut v1::DecideApprovalRequest| request.message = "x".repeat(100_000);
    let table = [
        ("no id", decide(|it| it.approval_id.clear()), invalid("approval_id")),
        (
            "an id of something else",
            decide(|it| it.approval_id = RunId::new().to_string()),
            invalid("approval_id"),
        ),
        ("a long message", decide(long), invalid("message")),
        ("no JSON", decide(|it| it.arguments = "{".into()), invalid("arguments")),
        ("no object", decide(|it| it.arguments = "[]".into()), invalid("arguments")),
        ("a bad hash", decide(|it| it.call_hash = "x".into()), invalid("call_hash")),
    ];
    for (what, request, expected) in table {
        refused(what, client.decide_approval(request).await, expected);
    }
    let missing = client.decide_approval(decide(|_| {})).await.unwrap_err();
    assert_eq!(missing.code(), unknown.0);
    let list = v1::ListApprovalsRequest::default();
    let list = |change: fn(&mut v1::ListApprovalsRequest)| {
        let mut request = list.clone();
        change(&mut request);
        request
    };
    let table = [
        ("a bad state", list(|it| it.state = "maybe".into()), invalid("state")),
        ("a bad run", list(|it| it.run_id = "x".into()), invalid("run_id")),
        ("a bad size", list(|it| it.page_size = -1), invalid("page_size")),
        ("a bad token", list(|it| it.page_token = "\u{0}".into()), invalid("page_token")),
        ("an unknown session", list(|it| it.session = "nope".into()), (Code::SessionNotFound, "session")),
    ];
    for (what, request, expected) in table {
        refused(what, client.list_approvals(request).await, expected);
    }

    let rule = |permission: &str, pattern: &str, action: &str| v1::PermissionRule {
        permission: permission.to_owned(),
        pattern: pattern.to_owned(),
        action: action.to_owned(),
    };
    let rules = |rules: Vec<v1::PermissionRule>| v1::Permissions { rules, ..Default::default() };
    let long = "x".repeat(100_000);
    let table = [
        (
            "a bad mode",
            v1::Permissions { mode: "yolo".into(), ..Default::default() },
            invalid("permissions.mode"),
        ),
        (
            "a bad policy",
            v1::Permissions { unattended: "maybe".into(), ..Default::default() },
            invalid("permissions.unattended"),
        ),
        ("no permission", rules(vec![rule("", "*", "allow")]), invalid("permissions.rules[0].permission")),
        (
            "a long pattern",
            rules(vec![rule("bash", &long, "allow")]),
            invalid("permissions.rules[0].pattern"),
        ),
        ("NUL", rules(vec![rule("bash", "a\0b", "allow")]), invalid("permissions.rules[0].pattern")),
        (
            "no action",
            rules(vec![rule("bash", "*", "allow"), rule("bash", "*", "")]),
            invalid("permissions.rules[1].action"),
        ),
        ("too many", rules(vec![rule("bash", "*", "ask"); 100_000]), (Code::TooLarge, "permissions.rules")),
        (
            "a bad approver",
            v1::Permissions { approvers: vec!["a\nb".into()], ..Default::default() },
            invalid("permissions.approvers[0]"),
        ),
    ];
    client
        .create_session(v1::CreateSessionRequest { name: "s1".into(), ..Default::default() })
        .await
        .unwrap();
    for (what, permissions, expected) in table {
        let permissions = Some(permissions);
        let request = v1::CreateSessionRequest { permissions: permissions.clone(), ..Default::default() };
        refused(what, client.create_session(request).await, expected);
        let session = "s1".to_owned();
        let request =
            v1::UpdateSessionRequest { session, permissions: permissions.clone(), ..Default::default() };
        refused(what, client.update_session(request).await, expected);
        let mut request = crate::api::submission("s2", vec![crate::api::noop(0)]);
        request.permissions = permissions;
        refused(what, client.submit(request).await, expected);
    }
    let done = dev.cli.run(&["sessions", "set", "s1", "--deny", "rm -rf /", "--json"]).await;
    assert!(done.code == 2 && done.stderr.contains("bash:rm -rf /"), "{}", done.stderr);
    dev.cli.one(&["sessions", "set", "s1", "--mode", "plan", "--deny", "bash:rm *"]).await;
    let set = dev.cli.one(&["sessions", "set", "s1", "--allow", "bash:rm build/*", "--unattended"]).await;
    let permissions = &set["permissions"];
    assert_eq!((&permissions["mode"], &permissions["unattended"]), (&"plan".into(), &"refuse".into()));
    assert_eq!(permissions["rules"].as_array().unwrap().len(), 2, "{set}");
    let cleared = dev.cli.one(&["sessions", "set", "s1", "--clear-rules"]).await;
    assert_eq!(cleared["permissions"]["rules"].as_array().unwrap().len(), 0, "{cleared}");
}
