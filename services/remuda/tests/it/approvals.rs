//! Tool calls that wait for an approval: from the `--ask` flag to the decision.

use std::{fs, path::PathBuf};

use remuda_domain::{ApprovalId, Code, RunId};
use remuda_proto::v1;
use remuda_testkit::wait_for;
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    bad_input::{invalid, refused},
    harness::{Cli, CommandOutput, Dev, TIMEOUT, temporary_directory, variables},
};

const SCENARIO: &str = r#"
conversations:
  - on: { user_contains: "make it" }
    turns:
      - call: [{ tool: Bash, arguments: { command: "touch made.txt" } }]
      - say: "It said: {{last_tool_result}}"
otherwise: { say: "You said: {{user}}" }
"#;

/// The rule that makes the calls of these tests need an approval.
const ASK: [&str; 2] = ["--ask", "bash:touch *"];

struct Fixture {
    dev: Dev,
    cli: Cli,
    root: PathBuf,
    // Dropped after the server that uses it.
    _directory: TempDir,
}

impl Fixture {
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
        let agent =
            "---\ndescription: Helps\nmodel: workspace/rehearsed\ntools: { native: ['*'] }\n---\nYou help.\n";
        write(".openharness/agents/helper.md", agent);
        let model = "rehearsed:\n  provider: scripted\n  name: ../scenario.yaml\n";
        write(".openharness/models/models.yaml", model);
        write(".openharness/scenario.yaml", SCENARIO);
        let dev = Dev::start_with(flags).await;
        let cli = dev.cli.clone();
        Self { dev, cli, root, _directory: directory }
    }

    fn file_exists(&self) -> bool {
        self.root.join("made.txt").try_exists().unwrap()
    }

    /// Starts a run that needs an approval and waits until it is parked. Returns the ids of the run and of the approval.
    async fn submit_and_wait_for_approval(&self, session: &str) -> (String, String) {
        let dir = self.root.to_str().unwrap();
        let run = ["run", "make it", "--dir", dir, "--session", session, "--detach"];
        let started = self.cli.run(&[&run, &ASK[..]].concat()).await;
        assert_eq!(started.code, 0, "{}", started.stderr);
        let run = started.stdout.trim().to_owned();
        let asked = || async {
            let found = self.cli.json(&["approvals", "list", "--run", &run]).await;
            found.first().map(|approval| approval["id"].as_str().unwrap().to_owned())
        };
        let approval = wait_for("the approval", TIMEOUT, asked).await;
        let parked = || async { self.cli.one(&["runs", "show", &run]).await["state"] == "parked" };
        wait_for("the run to be parked", TIMEOUT, parked).await;
        (run, approval)
    }

    async fn wait_for_end(&self, run: &str) -> Value {
        let waited = self.cli.run(&["runs", "wait", run]).await;
        assert_eq!(waited.code, 0, "{}", waited.stderr);
        self.cli.one(&["runs", "show", run]).await
    }
}

#[tokio::test]
async fn approved_call_is_shown_in_full_and_executed_once() {
    let fixture = Fixture::new().await;
    let (run, approval) = fixture.submit_and_wait_for_approval("s1").await;
    assert!(!fixture.file_exists(), "the call ran before the decision");

    let shown = fixture.cli.run(&["approvals", "show", &approval]).await.stdout;
    for text in
        ["pending", "helper", "Bash", "touch made.txt", "every key with the scope approve", "hash", &run]
    {
        assert!(shown.contains(text), "{text} is missing in\n{shown}");
    }
    let document = fixture.cli.one(&["approvals", "show", &approval]).await;
    assert_eq!(document["call"]["arguments"]["command"], "touch made.txt");
    let hash = document["call_hash"].as_str().unwrap();
    assert_eq!((hash.len(), &document["permission"]), (64, &"bash".into()));

    let explained = fixture.cli.one(&["explain", &run]).await;
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
        fixture.cli.run(&["approvals", "approve", &approval, "--hash", &"0".repeat(64), "--json"]).await;
    assert_eq!((other.code, other.error().0.as_str()), (8, "approval_changed"));
    let approved = fixture.cli.run(&["approvals", "approve", &approval, "--hash", &hash[..12]]).await;
    assert!(approved.code == 0 && approved.stdout.contains("touch made.txt"), "{approved:?}");
    let ended = fixture.wait_for_end(&run).await;
    assert!(ended["state"] == "completed" && fixture.file_exists(), "{ended}");

    for again in ["approve", "deny"] {
        let again = fixture.cli.run(&["approvals", again, &approval, "--json"]).await;
        assert_eq!((again.code, again.error().0.as_str()), (8, "approval_decided"));
    }
    assert!(fixture.cli.json(&["approvals", "list"]).await.is_empty());
    let all = fixture.cli.json(&["approvals", "list", "--all"]).await;
    assert_eq!(
        (all.len(), &all[0]["state"], &all[0]["decision"]["by"]),
        (1, &"approved".into(), &"local".into())
    );
}

#[tokio::test]
async fn denied_call_is_not_executed_and_the_model_gets_the_reason() {
    let fixture = Fixture::new().await;
    let (run, approval) = fixture.submit_and_wait_for_approval("s1").await;
    let denied = fixture.cli.one(&["approvals", "deny", &approval, "--message", "use a pencil"]).await;
    assert_eq!(
        (&denied["state"], &denied["decision"]["message"]),
        (&"denied".into(), &"use a pencil".into())
    );
    fixture.wait_for_end(&run).await;
    assert!(!fixture.file_exists());
    let steps = fixture.cli.json(&["runs", "steps", &run]).await;
    let call = steps.iter().find(|step| step["kind"] == "tool_call").unwrap();
    assert!(call["outcome"].to_string().contains("use a pencil"), "{call}");
    assert_eq!(call["approval_id"], approval.as_str());
}

#[tokio::test]
async fn approval_can_edit_arguments_and_always_approve_similar_calls() {
    let fixture = Fixture::new().await;
    let (run, approval) = fixture.submit_and_wait_for_approval("s1").await;
    let wrong = ["approvals", "approve", &approval, "--json", "--input", "{\"commmand\": \"x\"}"];
    let wrong = fixture.cli.run(&wrong).await;
    assert_eq!(wrong.error(), ("invalid_argument".to_owned(), "arguments.commmand".to_owned()));
    let edited = ["approvals", "approve", &approval, "--input", "{\"command\": \"touch other.txt\"}"];
    assert_eq!(fixture.cli.run(&edited).await.code, 0);
    fixture.wait_for_end(&run).await;
    assert!(!fixture.file_exists() && fixture.root.join("other.txt").try_exists().unwrap());

    let (run, approval) = fixture.submit_and_wait_for_approval("s1").await;
    assert_eq!(fixture.cli.run(&["approvals", "approve", &approval, "--always"]).await.code, 0);
    fixture.wait_for_end(&run).await;
    let session = fixture.cli.one(&["sessions", "show", "s1", "--tail", "0"]).await;
    let rules = session["permissions"]["rules"].as_array().unwrap();
    assert!(rules.len() > 1 && rules.last().unwrap()["action"] == "allow", "{session}");
    // The rules the session was created with still come first, so the same flags match it.
    let dir = fixture.root.to_str().unwrap();
    let more = ["run", "make it", "--dir", dir, "--session", "s1", "--quiet"];
    let more = fixture.cli.run(&[&more, &ASK[..]].concat()).await;
    assert_eq!(more.code, 0, "{}", more.stderr);
    let other = ["run", "x", "--dir", dir, "--session", "s1", "--deny", "bash", "--json"];
    assert_eq!(
        fixture.cli.run(&other).await.error(),
        ("invalid_argument".to_owned(), "permissions".to_owned())
    );
}

#[tokio::test]
async fn only_named_approvers_with_the_scope_can_decide() {
    let allowed = format!("workspaces.allowed={}", std::env::temp_dir().display());
    let fixture = Fixture::with(&["--require-keys", "--set", &allowed]).await;
    let data = fixture.dev.path("data");
    let key = async |name: &str, scopes: &[&str]| {
        let scopes = scopes.iter().flat_map(|scope| ["--scope", scope]).collect::<Vec<_>>();
        let create = ["keys", "create", "--name", name, "--json"];
        let settings = variables(&[("REMUDA_DATA_DIR", &data)]);
        let made = CommandOutput::run(&[&create[..], &scopes].concat(), &settings).await;
        assert_eq!(made.code, 0, "{}", made.stderr);
        fixture.dev.cli.with_key(made.documents()[0]["secret"].as_str().unwrap())
    };
    let plain = key("ci", &[]).await;
    let (operator, anna, ben) =
        (key("ops", &["operator"]).await, key("anna", &["approve"]).await, key("ben", &["approve"]).await);
    let dir = fixture.root.to_str().unwrap();
    operator.one(&["workspace", "add", "work", dir, "--tenant", "default"]).await;
    let run = ["run", "make it", "--workspace", "work", "--session", "s1", "--detach", "--approver", "anna"];
    let started = plain.run(&[&run, &ASK[..]].concat()).await;
    assert_eq!(started.code, 0, "{}", started.stderr);
    let run = started.stdout.trim().to_owned();
    let asked = || async {
        let found = plain.json(&["approvals", "list"]).await;
        found.first().map(|approval| approval["id"].as_str().unwrap().to_owned())
    };
    let approval = wait_for("the approval", TIMEOUT, asked).await;
    for (who, cli) in [("no scope", &plain), ("not named", &ben)] {
        let refused = cli.run(&["approvals", "approve", &approval, "--json"]).await;
        assert_eq!((refused.code, refused.error().0.as_str()), (5, "permission_denied"), "{who}");
    }
    let refusal = plain.run(&["approvals", "approve", &approval]).await;
    assert!(refusal.stderr.contains("--scope approve"), "{}", refusal.stderr);
    assert_eq!(anna.run(&["approvals", "approve", &approval]).await.code, 0);
    assert_eq!(plain.run(&["runs", "wait", &run]).await.code, 0);
    assert!(fixture.file_exists());
    assert_eq!(
        anna.run(&["run", "x", "--json"]).await.error().0,
        "permission_denied",
        "approve is not write"
    );
}

#[tokio::test]
async fn invalid_decisions_and_permissions_are_refused_with_the_field() {
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
