//! API keys, tenant isolation, and servers that refuse an unmigrated schema.

use remuda_domain::{Code, Error};
use remuda_proto::v1::{self, set_budget_request::Of};
use remuda_testkit::{nats_binaries, wait_for};

use crate::{
    api::{noop, submit},
    cluster::{Cluster, Services},
    harness::{Cli, TIMEOUT},
};

#[tokio::test]
async fn requests_need_a_valid_key_with_the_right_scope() {
    let cluster = Cluster::start(&nats_binaries()[0], 0).await;
    let services = &cluster.services;
    let anonymous = Cli::new(cluster.control_plane.endpoint());
    let list = ["sessions", "list", "--json"];
    let missing = anonymous.run(&list).await;
    assert_eq!((missing.code, missing.error().0.as_str()), (5, "unauthenticated"));
    let human = anonymous.run(&["sessions", "list"]).await;
    assert!(human.stderr.contains("remuda keys create"), "{}", human.stderr);
    for wrong in ["rmd_wrong", "x", "-", "rmd_\u{e9}", &"k".repeat(5000)] {
        let refused = anonymous.with_key(wrong).run(&list).await;
        assert!(matches!(refused.code, 2 | 5), "{wrong}: {refused:?}");
    }

    let (id, secret) = services.create_key("acme", &[]).await;
    let ci = anonymous.with_key(&secret);
    assert_eq!(ci.run(&list).await.code, 0);
    assert_eq!(
        ci.run(&["workers", "--json"]).await.error().0,
        "permission_denied",
        "the fleet needs operator"
    );
    assert_eq!(ci.run(&["tasks", "--json"]).await.error().0, "permission_denied");
    let (_, reader) = services.create_key("acme", &["read"]).await;
    let reader = anonymous.with_key(&reader);
    assert_eq!(reader.run(&list).await.code, 0);
    assert_eq!(reader.run(&["run", "--tool", "noop", "--json"]).await.error().0, "permission_denied");
    assert_eq!(reader.run(&["webhooks", "list", "--json"]).await.code, 0);
    let hook = ["webhooks", "create", "https://93.184.215.14/", "--session", "s1", "--json"];
    assert_eq!(reader.run(&hook).await.error().0, "permission_denied");

    let keys = services.run(&["keys", "list", "--tenant", "acme", "--json"]).await;
    assert_eq!(keys.documents().len(), 3);
    assert!(!keys.stdout.contains("rmd_"), "secrets are never shown again");
    assert_eq!(services.run(&["keys", "revoke", &id, "--tenant", "acme"]).await.code, 0);
    let refused = || async { ci.run(&list).await.code == 5 };
    wait_for("the server to notice the revoked key", TIMEOUT, refused).await;
    assert_eq!(services.run(&["keys", "revoke", &id, "--tenant", "other"]).await.code, 4);

    // A key is found by its id, whichever tenant it belongs to.
    let (theirs, _) = services.create_key("rival", &["write"]).await;
    let revoked = services.run(&["keys", "revoke", &theirs, "--json"]).await;
    let document = &revoked.documents()[0];
    assert_eq!((&document["tenant"], &document["state"]), (&"rival".into(), &"revoked".into()));
    let revoked = services.run(&["keys", "revoke", &theirs]).await;
    assert_eq!(revoked.stdout.trim(), format!("revoked {theirs} of tenant rival"));
    assert_eq!(services.run(&["keys", "revoke", &theirs, "--tenant", "acme"]).await.code, 4);
    let listed = services.run(&["keys", "list", "--json"]).await.documents();
    let tenants: Vec<&str> = listed.iter().map(|key| key["tenant"].as_str().unwrap_or("none")).collect();
    for tenant in ["acme", "rival", "none"] {
        assert!(tenants.contains(&tenant), "{tenants:?}");
    }
    for mixed in [["--scope", "operator", "--scope", "write"], ["--scope", "operator", "--tenant", "acme"]] {
        let refused = services.run(&[&["keys", "create", "--json"][..], &mixed].concat()).await;
        assert_eq!(refused.error(), ("invalid_argument".to_owned(), "scope".to_owned()), "{mixed:?}");
    }

    let (_, brief) = {
        let created =
            services.run(&["keys", "create", "--tenant", "acme", "--expires-in", "1ms", "--json"]).await;
        (created.code, created.documents()[0]["secret"].as_str().unwrap().to_owned())
    };
    assert_eq!(anonymous.with_key(&brief).run(&list).await.code, 5, "an expired key");
}

/// The parts of an error that a caller can see.
fn visible_error(error: &Error) -> (Code, String, Option<String>) {
    (error.code(), error.message().to_owned(), error.field().map(str::to_owned))
}

#[tokio::test]
#[expect(clippy::needless_update, reason = "one macro for requests with one field and with many")]
async fn resources_of_another_tenant_look_like_unknown_ones() {
    let cluster = Cluster::start(&nats_binaries()[0], 1).await;
    let owner = cluster.client();
    let run = submit(&owner, "secret", vec![noop(0)]).await;
    owner.wait_until_finished(&run).await.unwrap();
    let session = crate::api::session(&owner, "secret").await.id;
    let (_, key) = cluster.services.create_key("rival", &["write", "admin"]).await;
    let rival_cli = Cli::new(cluster.control_plane.endpoint()).with_key(&key);
    let rival = rival_cli.client();
    let (no_session, no_run) =
        (remuda_domain::SessionId::new().to_string(), remuda_domain::RunId::new().to_string());

    macro_rules! same {
        ($method:ident, $request:ident, $field:ident, $foreign:expr, $unknown:expr $(, $more:ident : $value:expr)*) => {
            let ask = |$field: String| v1::$request { $field, $($more: $value,)* ..Default::default() };
            let foreign = rival.$method(ask($foreign.to_string())).await.unwrap_err();
            let unknown = rival.$method(ask($unknown.to_string())).await.unwrap_err();
            assert_eq!(visible_error(&foreign), visible_error(&unknown), stringify!($method));
            assert!(foreign.code().as_str().ends_with("_not_found"), "{}: {foreign}", stringify!($method));
        };
    }
    same!(get_session, GetSessionRequest, session, session, no_session);
    same!(get_session, GetSessionRequest, session, "secret", "nothing");
    same!(update_session, UpdateSessionRequest, session, session, no_session, title: Some("mine".to_owned()));
    same!(close_session, CloseSessionRequest, session, session, no_session, cancel_runs: true);
    same!(delete_session, DeleteSessionRequest, session, session, no_session, cancel_runs: true);
    same!(cancel_session, CancelSessionRequest, session, session, no_session, tree: true);
    same!(create_session, CreateSessionRequest, parent, session, no_session);
    same!(create_session, CreateSessionRequest, parent, "secret", "nothing");
    same!(list_messages, ListMessagesRequest, session, session, no_session);
    same!(list_queue, ListQueueRequest, session, session, no_session);
    same!(list_child_sessions, ListChildSessionsRequest, session, session, no_session);
    same!(list_approvals, ListApprovalsRequest, session, session, no_session);
    let budget =
        |of| v1::SetBudgetRequest { of: Some(of), limit: Some(v1::Limit { tokens: Some(1), micros: None }) };
    for (foreign, unknown) in [
        (Of::RunId(run.clone()), Of::RunId(no_run.clone())),
        (Of::Session(session.clone()), Of::Session(no_session.clone())),
    ] {
        let foreign = rival.set_budget(budget(foreign)).await.unwrap_err();
        let unknown = rival.set_budget(budget(unknown)).await.unwrap_err();
        assert_eq!(visible_error(&foreign), visible_error(&unknown), "set_budget");
    }
    same!(list_runs, ListRunsRequest, session, session, no_session);
    same!(get_run, GetRunRequest, run_id, run, no_run);
    same!(list_steps, ListStepsRequest, run_id, run, no_run);
    same!(cancel_run, CancelRunRequest, run_id, run, no_run);
    same!(explain_run, ExplainRunRequest, run_id, run, no_run);
    let request = v1::CreateWebhookRequest {
        session: session.clone(),
        url: "https://93.184.215.14/".into(),
        ..Default::default()
    };
    let webhook = owner.create_webhook(request).await.unwrap().webhook.unwrap().id;
    let no_webhook = remuda_domain::WebhookId::new().to_string();
    let url = || "https://93.184.215.14/".to_owned();
    same!(create_webhook, CreateWebhookRequest, session, session, no_session, url: url());
    same!(create_webhook, CreateWebhookRequest, run_id, run, no_run, url: url());
    same!(list_webhooks, ListWebhooksRequest, session, session, no_session);
    same!(get_webhook, GetWebhookRequest, webhook_id, webhook, no_webhook);
    same!(enable_webhook, EnableWebhookRequest, webhook_id, webhook, no_webhook);
    same!(rotate_webhook_secret, RotateWebhookSecretRequest, webhook_id, webhook, no_webhook);
    same!(test_webhook, TestWebhookRequest, webhook_id, webhook, no_webhook);
    same!(list_dead_letters, ListDeadLettersRequest, webhook_id, webhook, no_webhook);
    same!(redeliver, RedeliverRequest, webhook_id, webhook, no_webhook);
    same!(delete_webhook, DeleteWebhookRequest, webhook_id, webhook, no_webhook);
    let tools = v1::ToolsInput { calls: vec![noop(0)], ..Default::default() };
    let tools = || Some(v1::submit_run_request::Input::Tools(tools.clone()));
    same!(submit, SubmitRunRequest, session, session, no_session, input: tools());
    same!(submit, SubmitRunRequest, session, session, no_session, input: tools(), create_session: true);
    // The stream service and the command line return the same errors.
    for (foreign, unknown) in [(&session, &no_session), (&run, &no_run)] {
        let (one, other) =
            (rival_cli.run(&["watch", foreign]).await, rival_cli.run(&["watch", unknown]).await);
        assert_eq!((one.code, &one.stderr), (4, &other.stderr));
    }

    assert!(rival_cli.json(&["sessions", "list"]).await.is_empty());
    assert!(rival_cli.json(&["runs", "list"]).await.is_empty());
    assert!(rival_cli.json(&["webhooks", "list"]).await.is_empty());
    assert_eq!(cluster.cli.one(&["webhooks", "show", &webhook]).await["state"], "active");
    // Names are per tenant: the rival's session of the same name is a different session.
    let mine = rival_cli.one(&["run", "--session", "secret", "--tool", "noop"]).await;
    assert_ne!(mine["session_id"], session.as_str());
    let listed = cluster.cli.json(&["runs", "list"]).await;
    assert_eq!(listed.len(), 1, "the owner sees only its own");
    assert_eq!(cluster.cli.one(&["sessions", "show", &session]).await["status"], "open");
}

#[tokio::test]
async fn servers_refuse_to_start_on_an_unmigrated_schema() {
    let services = Services::start(&nats_binaries()[0]);
    let listen = ["--listen", "127.0.0.1:0"];
    for (command, more) in
        [("control-plane", &listen[..]), ("worker", &[]), ("stream", &listen[..]), ("all", &listen[..])]
    {
        let refused = services.run(&[&[command, "--json"], more].concat()).await;
        assert_eq!(refused.error().0, "schema_mismatch", "{command}: {}", refused.stderr);
        assert!(refused.stderr.contains("remuda migrate"), "{}", refused.stderr);
        assert_ne!(refused.code, 0);
    }
    let (first, second) =
        (services.run(&["migrate", "--json"]).await, services.run(&["migrate", "--json"]).await);
    assert_eq!(first.documents()[0]["from"], 0);
    assert_eq!(second.documents()[0]["from"], first.documents()[0]["to"]);
    drop(services.control_plane(&[]).await);
}
