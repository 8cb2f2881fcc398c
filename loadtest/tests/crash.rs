//! The real thing, in small: `remuda dev` is killed under load, and every promise holds.

use std::{path::Path, process::Stdio, time::Duration};

use remuda_testkit::Child;
use serde_json::Value;

#[test]
fn an_embedded_server_that_is_killed_loses_and_repeats_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let output = |name: &str| std::fs::File::create(path(name)).unwrap();
    let (stdout, stderr) = (output("stdout"), output("stderr"));
    // As a child that dies with this test.
    let mut loadtest = Child::start(Path::new(env!("CARGO_BIN_EXE_loadtest")), None, |command| {
        command.args(["crash", "--times", "4", "--seed", "11", "--sessions", "8", "--rate", "12", "--json"]);
        command.arg("--svg").arg(path("timeline.svg"));
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    })
    .unwrap();
    // Building the server, if it has changed, takes most of it.
    let status = loadtest.wait_timeout(Duration::from_secs(900)).unwrap();
    let read = |name: &str| std::fs::read_to_string(path(name)).unwrap();
    assert!(status.success(), "{status}\n{}\n{}", read("stderr"), read("stdout"));

    let report: Value = serde_json::from_str(&read("stdout")).unwrap();
    assert_eq!(report["faults"]["kill"], 4, "{report}");
    for violation in [
        "lost",
        "duplicated",
        "order_violations",
        "overlaps",
        "reexecuted",
        "dishonest",
        "orphans",
        "cursor_holes",
    ] {
        assert_eq!(report[violation], 0, "{violation} in {report}");
    }
    // It was a test: runs of every end, tools that were at work, and a picture.
    assert!(report["terminal"].as_u64().unwrap() > 40, "{report}");
    for end in ["completed", "failed", "cancelled"] {
        assert!(report["ends"][end].as_u64().is_some(), "{end} in {report}");
    }
    assert!(report["recovery_ms"].is_object() && report["throughput"]["before"].is_number(), "{report}");
    assert!(read("timeline.svg").matches(">kill</text>").count() == 4);
}
