//! Messages to agents, and workspaces: the parts that need no worker.

use futures::StreamExt as _;
use remuda_client::{Client, Target};
use remuda_domain::{Code, MessageId, content::ContentHash};
use remuda_proto::v1::{self, submit_run_request::Input};
use remuda_testkit::nats_binaries;

use crate::{
    api::session,
    bad_input::{invalid, refused},
    cluster::Cluster,
    harness::{Cli, Dev},
};

fn text_message(text: &str) -> v1::MessageInput {
    v1::MessageInput { text: text.to_owned(), ..Default::default() }
}

fn image_message(image: v1::Image) -> v1::MessageInput {
    v1::MessageInput { images: vec![png(vec![1]), image], ..text_message("look") }
}

fn png(data: Vec<u8>) -> v1::Image {
    v1::Image { media_type: "image/png".to_owned(), data, url: String::new() }
}

fn image_url(url: &str) -> v1::Image {
    v1::Image { url: url.to_owned(), ..Default::default() }
}

fn submission(message: v1::MessageInput) -> v1::SubmitRunRequest {
    v1::SubmitRunRequest {
        session: "talk".to_owned(),
        create_session: true,
        input: Some(Input::Message(message)),
        ..Default::default()
    }
}

/// Invalid messages are refused and create no session.
async fn check_refusals(client: &Client) {
    let large = (Code::TooLarge, "message");
    let second = |name: &str| format!("message.images[1]{name}");
    let (image, kind, url) = (second(""), second(".media_type"), second(".url"));
    let of_type = |media_type: &str| v1::Image { media_type: media_type.to_owned(), ..png(vec![1]) };
    let agent = |name: &str| v1::MessageInput { agent: name.to_owned(), ..text_message("hello") };
    let table = [
        ("nothing", text_message(""), invalid("message")),
        ("blanks", text_message(" \n\t"), invalid("message.text")),
        ("NUL", text_message("a\0b"), invalid("message.text")),
        ("5 MiB of text", text_message(&"x".repeat(5 << 20)), large),
        ("text that grows in JSON", text_message(&"\u{1}".repeat(1 << 20)), large),
        ("a large image", image_message(png(vec![0; 4 << 20])), large),
        ("65 parts", v1::MessageInput { images: vec![png(vec![1]); 64], ..text_message("look") }, large),
        ("an image without anything", image_message(v1::Image::default()), invalid(&image)),
        (
            "an image that is two",
            image_message(v1::Image { url: "https://host/a".to_owned(), ..png(vec![1]) }),
            invalid(&image),
        ),
        ("an image of an unknown type", image_message(of_type("image/svg+xml")), invalid(&kind)),
        ("an image without a type", image_message(of_type("")), invalid(&kind)),
        ("an open address", image_message(image_url("http://host/a.png")), invalid(&url)),
        ("a file", image_message(image_url("file:///etc/passwd")), invalid(&url)),
        ("a broken address", image_message(image_url("https://host/\r\nevil")), invalid(&url)),
        ("a long address", image_message(image_url(&format!("https://{}", "h".repeat(5000)))), invalid(&url)),
        ("a hostile agent", agent("\u{1b}[2J"), invalid("message.agent")),
        ("a long agent", agent(&"a".repeat(129)), invalid("message.agent")),
        (
            "an id",
            v1::MessageInput { id: MessageId::new().to_string(), ..text_message("hello") },
            invalid("message.id"),
        ),
    ];
    for (what, message, expected) in table {
        refused(what, client.submit(submission(message)).await, expected);
    }
    let base = || submission(text_message("hello"));
    let unknown = (Code::WorkspaceNotFound, "workspace");
    let nowhere = v1::SubmitRunRequest { workspace: "nope".to_owned(), ..base() };
    refused("an unknown workspace", client.submit(nowhere).await, unknown);
    let odd = v1::SubmitRunRequest { workspace: "a\nb".to_owned(), ..base() };
    refused("a hostile workspace", client.submit(odd).await, invalid("workspace"));
    for model in ["platform/", "workspace/", " m", "a\0b", &"m".repeat(129)] {
        let request = v1::SubmitRunRequest { model: model.to_owned(), ..base() };
        refused(model, client.submit(request).await, invalid("model"));
    }
    let listed = client.list_sessions(v1::ListSessionsRequest::default()).await.unwrap().sessions;
    assert!(listed.is_empty(), "a refused request leaves nothing behind: {listed:?}");

    let content =
        async |hash: &str| client.get_content(v1::GetContentRequest { hash: hash.to_owned() }).await;
    for bad in ["", "x", &"g".repeat(64), &"é".repeat(32)] {
        refused("a hash", content(bad).await, invalid("hash"));
    }
    let unknown = ContentHash::of("never said").to_string();
    refused("an unknown hash", content(&unknown).await, (Code::ContentNotFound, "hash"));
}

/// A workspace of acme, or without keys of the default tenant.
fn workspace(name: &str, root: &str) -> v1::CreateWorkspaceRequest {
    v1::CreateWorkspaceRequest { name: name.to_owned(), root: root.to_owned(), tenant: String::new() }
}

/// A directory that workspaces may have. It is not created.
fn docs() -> String {
    std::env::temp_dir().join("remuda-docs").to_str().unwrap().to_owned()
}

/// `operator` registers workspaces for the tenant of `client`; its name is empty without keys.
async fn check_workspaces(client: &Client, operator: &Client, tenant: &str) {
    let workspace = |name: &str, root: &str| v1::CreateWorkspaceRequest {
        tenant: tenant.to_owned(),
        ..workspace(name, root)
    };
    for name in ["", " docs", "a\0b", "a\u{202e}b", &"w".repeat(129)] {
        refused("a name", operator.create_workspace(workspace(name, &docs())).await, invalid("name"));
    }
    let long = format!("/{}", "x".repeat(4096));
    for root in ["", "srv", "../srv", "/srv/../etc", "/srv/./a", "/srv/", "//srv", "/a\0b", "/a\nb", &long] {
        refused("a root", operator.create_workspace(workspace("docs", root)).await, invalid("root"));
    }
    let made = operator.create_workspace(workspace("docs", &docs())).await.unwrap().workspace.unwrap();
    assert!(made.id.starts_with("ws_") && made.created_at.is_some(), "{made:?}");
    let again = operator.create_workspace(workspace("docs", &format!("{}-other", docs()))).await;
    refused("the same name twice", again, (Code::AlreadyExists, "name"));
    let get =
        async |name: &str| client.get_workspace(v1::GetWorkspaceRequest { name: name.to_owned() }).await;
    assert_eq!(get("docs").await.unwrap().workspace, Some(made.clone()));
    refused("an unknown name", get("nope").await, (Code::WorkspaceNotFound, "name"));
    refused("a bad name", get("a\0b").await, invalid("name"));

    let mut names = Vec::new();
    let mut request = v1::ListWorkspacesRequest { page_size: 1, ..Default::default() };
    loop {
        let page = client.list_workspaces(request.clone()).await.unwrap();
        names.extend(page.workspaces.into_iter().map(|it| it.name));
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    assert_eq!(names, ["default", "docs"]);

    let request = v1::CreateSessionRequest {
        name: "writer".to_owned(),
        workspace: "docs".to_owned(),
        agent: "plan".to_owned(),
        model: "platform/small".to_owned(),
        ..Default::default()
    };
    let session = client.create_session(request).await.unwrap().session.unwrap();
    assert_eq!(
        (session.workspace_id, session.agent, session.model),
        (made.id, "plan".into(), "platform/small".into())
    );
}

#[tokio::test]
async fn bad_messages_and_workspaces_are_refused_on_sqlite() {
    let dev = Dev::start().await;
    check_refusals(&dev.client()).await;
    check_workspaces(&dev.client(), &dev.client(), "").await;
}

#[tokio::test]
async fn bad_messages_and_workspaces_are_refused_on_postgresql() {
    let cluster = Cluster::start(&nats_binaries()[0], 0).await;
    check_refusals(&cluster.client()).await;
    let operator = cluster.operator.client();
    check_workspaces(&cluster.client(), &operator, "acme").await;

    // Registering a workspace needs the operator, and a workspace belongs to one tenant.
    let with_scopes = async |tenant: &str, scopes: &[&str]| {
        let (_, secret) = cluster.services.create_key(tenant, scopes).await;
        Cli::new(cluster.control_plane.endpoint()).with_key(&secret).client()
    };
    let writer = with_scopes("acme", &["write"]).await;
    let admin = with_scopes("acme", &["write", "admin"]).await;
    for tenant in [&writer, &admin] {
        let denied = tenant.create_workspace(workspace("mine", &docs())).await.unwrap_err();
        assert_eq!(denied.code(), Code::PermissionDenied);
    }
    let whose = operator.create_workspace(workspace("mine", &docs())).await;
    refused("no tenant", whose, invalid("tenant"));
    let unknown = v1::CreateWorkspaceRequest { tenant: "nobody".to_owned(), ..workspace("mine", &docs()) };
    refused("an unknown tenant", operator.create_workspace(unknown).await, (Code::TenantNotFound, "tenant"));
    assert_eq!(writer.list_workspaces(Default::default()).await.unwrap().workspaces.len(), 2);
    let rival = with_scopes("rival", &["write", "admin"]).await;
    let docs = v1::GetWorkspaceRequest { name: "docs".to_owned() };
    refused("a foreign workspace", rival.get_workspace(docs).await, (Code::WorkspaceNotFound, "name"));
    let there = v1::SubmitRunRequest { workspace: "docs".to_owned(), ..submission(text_message("hello")) };
    refused("a foreign workspace", rival.submit(there).await, (Code::WorkspaceNotFound, "workspace"));
}

async fn queue(client: &Client, session: &str) -> (Vec<v1::Run>, usize) {
    let (mut runs, mut pages) = (Vec::new(), 0);
    let mut request = v1::ListQueueRequest { session: session.to_owned(), ..Default::default() };
    loop {
        let page = client.list_queue(request.clone()).await.unwrap();
        runs.extend(page.runs);
        pages += 1;
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return (runs, pages);
        }
    }
}

#[tokio::test]
async fn queued_message_is_stored_unchanged_and_deduplicated() {
    let cluster = Cluster::start(&nats_binaries()[0], 0).await;
    let client = cluster.client();
    let docs = v1::CreateWorkspaceRequest { tenant: "acme".to_owned(), ..workspace("docs", &docs()) };
    cluster.operator.client().create_workspace(docs).await.unwrap();
    let message = v1::MessageInput {
        images: vec![png(b"\x89PNG\0\xff".to_vec()), image_url("https://host/a.png")],
        agent: "plan".to_owned(),
        ..text_message("look\n\"here\" \u{1f40e}")
    };
    let request = v1::SubmitRunRequest {
        idempotency_key: "once".to_owned(),
        workspace: "docs".to_owned(),
        model: "platform/small".to_owned(),
        ..submission(message.clone())
    };
    let receipt = client.submit(request.clone()).await.unwrap();
    let run = receipt.run.unwrap();
    let Some(v1::run::Input::Message(stored)) = &run.input else { panic!("not a message: {run:?}") };
    assert!(stored.id.starts_with("msg_"), "{stored:?}");
    assert_eq!(*stored, v1::MessageInput { id: stored.id.clone(), ..message });
    assert!(run.answer.is_empty());
    let (queued, _) = queue(&client, "talk").await;
    assert_eq!(queued, std::slice::from_ref(&run));
    let session = session(&client, "talk").await;
    assert_eq!(
        (session.agent.as_str(), session.model.as_str(), session.pending_runs),
        ("", "platform/small", 1)
    );
    let history: Vec<v1::Event> =
        client.follow(Target::Run(run.id.clone()), 0).take(1).map(Result::unwrap).collect().await;
    assert_eq!(history[0].r#type, "run.queued");
    assert!(history[0].data.contains(r#""kind":"message""#), "{}", history[0].data);

    // A repeated request returns the same run, although the server would have generated another message id.
    let again = client.submit(request.clone()).await.unwrap();
    assert!(again.deduplicated);
    assert_eq!(again.run, Some(run.clone()));
    let other = v1::SubmitRunRequest { input: Some(Input::Message(text_message("else"))), ..request.clone() };
    refused("another message", client.submit(other).await, (Code::IdempotencyConflict, "idempotency_key"));

    // The settings of a request must match an existing session.
    let fresh = |change: fn(&mut v1::SubmitRunRequest)| {
        let mut request = v1::SubmitRunRequest { idempotency_key: String::new(), ..request.clone() };
        change(&mut request);
        client.submit(request)
    };
    let elsewhere = fresh(|it| it.workspace = "default".to_owned()).await;
    refused("another workspace", elsewhere, (Code::AlreadyExists, "workspace"));
    refused("another model", fresh(|it| it.model = "small".to_owned()).await, (Code::AlreadyExists, "model"));
    fresh(|it| it.create_session = false).await.unwrap();
    assert_eq!(queue(&client, "talk").await.0.len(), 2);

    let update = |agent: Option<&str>, model: Option<&str>| {
        client.update_session(v1::UpdateSessionRequest {
            session: "talk".to_owned(),
            title: None,
            agent: agent.map(str::to_owned),
            model: model.map(str::to_owned),
            permissions: None,
            if_revision: Vec::new(),
        })
    };
    refused("late", update(None, Some("large")).await, (Code::SessionModelLocked, "model"));
    let updated = update(Some("build"), Some("platform/small")).await.unwrap().session.unwrap();
    assert_eq!(updated.agent, "build");

    let cancelled = client.cancel_run(v1::CancelRunRequest { run_id: run.id, reason: "enough".into() }).await;
    assert_eq!(cancelled.unwrap().run.unwrap().state(), v1::RunState::Cancelled);
}

#[tokio::test]
async fn large_queued_messages_are_split_into_pages() {
    let cluster = Cluster::start(&nats_binaries()[0], 0).await;
    let client = cluster.client();
    for number in 0..7 {
        let image = png(vec![number; 3 << 20]);
        let message = v1::MessageInput { images: vec![image], ..text_message("look") };
        client.submit(submission(message)).await.unwrap();
    }
    let (queued, pages) = queue(&client, "talk").await;
    assert_eq!(queued.iter().map(|run| run.seq).collect::<Vec<_>>(), (1..=7).collect::<Vec<_>>());
    assert!(pages > 1, "21 MiB in one response");
    let mut listed = Vec::new();
    let mut request = v1::ListRunsRequest { session: "talk".to_owned(), ..Default::default() };
    loop {
        let page = client.list_runs(request.clone()).await.unwrap();
        listed.extend(page.runs.iter().map(|run| run.seq));
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    assert_eq!(listed, (1..=7).rev().collect::<Vec<_>>());
}
