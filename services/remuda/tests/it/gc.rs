//! `remuda gc` deletes old runs, sessions and events while a server runs.

use remuda_testkit::wait_for;
use serde_json::Value;

use crate::{
    api::{bash, history, noop, submission, submit, wait_for_end},
    harness::{CommandOutput, Dev, TIMEOUT},
};

/// Arguments that name the database of a running `remuda dev`.
fn gc<'a>(data: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    ["gc", "--set", data].iter().chain(more).copied().collect()
}

#[tokio::test]
async fn gc_deletes_old_runs_while_the_server_runs() {
    let dev = Dev::start().await;
    let (client, data) = (dev.client(), format!("data_dir={}", dev.path("data")));
    let first = submit(&client, "s1", vec![noop(0)]).await;
    let keyed = {
        let request = remuda_proto::v1::SubmitRunRequest {
            idempotency_key: "once".to_owned(),
            ..submission("s2", vec![noop(0)])
        };
        client.submit(request).await.unwrap().run.unwrap().id
    };
    for run in [&first, &keyed] {
        wait_for_end(&client, run).await;
    }
    let gate = dev.path("gate");
    let running =
        submit(&client, "s1", vec![bash(&format!("until [ -e {gate} ]; do sleep 0.02; done"))]).await;
    let events = history(&client, "s1").await.len();

    // By default nothing is deleted, and the command names the setting that changes this.
    let none = dev.cli.run(&gc(&data, &[])).await;
    assert_eq!(none.code, 0, "{}", none.stderr);
    assert!(none.stderr.contains("limits.runs_kept"), "{}", none.stderr);
    let counted = dev.cli.one(&gc(&data, &["--older-than", "1h", "--dry-run"])).await;
    assert_eq!((&counted["runs"], &counted["runs_kept_seconds"]), (&0.into(), &3600.into()), "{counted}");
    let counted = dev.cli.one(&gc(&data, &["--older-than", "0s", "--dry-run"])).await;
    assert_eq!((&counted["runs"], &counted["dry_run"]), (&1.into(), &true.into()), "{counted}");
    assert_eq!(dev.cli.run(&["runs", "show", &first]).await.code, 0, "a dry run deletes nothing");

    let CommandOutput { code, stdout, stderr } = dev.cli.run(&gc(&data, &["--older-than", "0s"])).await;
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("deleted: 1 runs"), "{stdout}");
    let gone = dev.cli.run(&["runs", "show", &first, "--json"]).await;
    assert_eq!(gone.error().0, "run_not_found");
    // A run with an idempotency key stays for retries, and the executing run continues.
    assert_eq!(dev.cli.run(&["runs", "show", &keyed]).await.code, 0);
    std::fs::write(&gate, "").unwrap();
    assert_eq!(wait_for_end(&client, &running).await.seq, 2);
    assert!(history(&client, "s1").await.len() > events, "events of deleted runs stay, and more came");
}

#[tokio::test]
async fn gc_deletes_idle_sessions_and_old_events() {
    let dev = Dev::start().await;
    let (client, data) = (dev.client(), format!("data_dir={}", dev.path("data")));
    wait_for_end(&client, &submit(&client, "s1", vec![noop(0)]).await).await;
    let count = |value: &Value, what: &str| value[what].as_u64().unwrap();
    let trimmed = dev.cli.one(&gc(&data, &["--events-older-than", "0s", "--dry-run"])).await;
    let rows = count(&trimmed, "event_rows");
    assert!(rows > 0, "{trimmed}");
    assert_eq!(count(&dev.cli.one(&gc(&data, &["--events-older-than", "0s"])).await, "event_rows"), rows);
    // Through the settings instead, which require at least a minute.
    let set = format!("{data}-elsewhere");
    let refused = dev.cli.run(&gc(&set, &["--set", "limits.sessions_kept=5s"])).await;
    assert!(refused.code != 0 && refused.stderr.contains("limits.sessions_kept"), "{}", refused.stderr);
    let kept = dev.cli.one(&gc(&data, &["--set", "limits.sessions_kept=1h"])).await;
    assert_eq!((count(&kept, "sessions"), count(&kept, "sessions_kept_seconds")), (0, 3600));
    let deleted = || async {
        let done = dev.cli.one(&gc(&data, &["--sessions-older-than", "0s"])).await;
        (count(&done, "sessions") == 1).then_some(())
    };
    wait_for("the session to be released and deleted", TIMEOUT, deleted).await;
    assert_eq!(dev.cli.run(&["sessions", "show", "s1", "--json"]).await.error().0, "session_not_found");
    // The name can be used for a new session.
    let run = submit(&client, "s1", vec![noop(0)]).await;
    assert_eq!(wait_for_end(&client, &run).await.seq, 1);
}
