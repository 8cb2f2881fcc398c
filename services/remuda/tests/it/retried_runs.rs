//! `remuda runs retry`: the same input as a new run.

use remuda_domain::RunState;
use remuda_proto::v1;
use serde_json::json;

use crate::{
    api::{bash, submission, wait_for_end},
    harness::Dev,
};

#[tokio::test]
async fn retried_run_has_the_input_the_time_limit_and_the_labels_of_the_first() {
    let dev = Dev::start().await;
    let client = dev.client();
    let ready = dev.path("ready");
    let request = v1::SubmitRunRequest {
        labels: [("team".to_owned(), "core".to_owned())].into(),
        timeout: std::time::Duration::from_secs(90).try_into().ok(),
        ..submission("s1", vec![bash(&format!("cat {ready}")), bash("echo done")])
    };
    let first = client.submit(request).await.unwrap().run.unwrap();
    let first = wait_for_end(&client, &first.id).await;
    std::fs::write(&ready, "now\n").unwrap();

    let retried = dev.cli.run(&["runs", "retry", &first.id]).await;
    assert_eq!((retried.code, retried.stdout.as_str()), (0, "now\ndone\n"), "{}", retried.stderr);
    assert!(retried.stderr.contains("the workspace and the session's messages are as they are now"));
    let runs = dev.cli.json(&["runs", "list", "--session", "s1"]).await;
    let [second, listed] = runs.as_slice() else { panic!("{runs:?}") };
    assert_eq!(listed["id"], first.id.as_str());
    assert_eq!(
        (&second["labels"], &second["timeout_ms"]),
        (&json!({ "team": "core" }), &listed["timeout_ms"])
    );
    let second = wait_for_end(&client, second["id"].as_str().unwrap()).await;
    assert_eq!(second.state(), v1::RunState::from(RunState::Completed));
    let commands = |run: &v1::Run| {
        let Some(v1::run::Input::Tools(tools)) = &run.input else { panic!("{run:?}") };
        tools.calls.iter().map(|call| (call.id.clone(), call.arguments.clone())).collect::<Vec<_>>()
    };
    for ((id, arguments), (new_id, new_arguments)) in commands(&first).iter().zip(&commands(&second)) {
        assert_eq!(arguments, new_arguments);
        assert_ne!(id, new_id, "calls have ids of their own");
    }
}
