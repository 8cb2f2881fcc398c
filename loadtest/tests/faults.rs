//! Small runs of the fault tests: real servers under load are killed, stopped and wiped, and no guarantee is violated.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{path::Path, process::Stdio, time::Duration};

use remuda_testkit::{Child, SmallDisk};
use serde_json::Value;

const VIOLATIONS: [&str; 9] = [
    "lost",
    "duplicated",
    "order_violations",
    "overlaps",
    "reexecuted",
    "dishonest",
    "orphans",
    "cursor_holes",
    "troubles",
];

/// Runs `loadtest`, which must pass, and returns its JSON report.
fn run_loadtest(arguments: &[&str]) -> Value {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let output = |name: &str| std::fs::File::create(path(name)).unwrap();
    let (stdout, stderr) = (output("stdout"), output("stderr"));
    // A child process that dies with this test.
    let mut loadtest = Child::start(Path::new(env!("CARGO_BIN_EXE_loadtest")), None, |command| {
        command.args(arguments).arg("--json");
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    })
    .unwrap();
    // Most of the time is for building the server, if it has changed.
    let status = loadtest.wait_timeout(Duration::from_secs(900)).unwrap();
    let read = |name: &str| std::fs::read_to_string(path(name)).unwrap();
    assert!(status.success(), "{status}\n{}\n{}", read("stderr"), read("stdout"));
    let report: Value = serde_json::from_str(&read("stdout")).unwrap();
    for violation in VIOLATIONS {
        assert_eq!(report[violation], 0, "{violation} in {report}");
    }
    report
}

/// Like [`run_loadtest`], for commands with a mixed workload. Returns the timeline too.
fn run_with_timeline(arguments: &[&str]) -> (Value, String) {
    let directory = tempfile::tempdir().unwrap();
    let picture = directory.path().join("timeline.svg");
    let report = run_loadtest(&[arguments, &["--svg", picture.to_str().unwrap()]].concat());
    // The workload was real: runs with every kind of end, and a timeline.
    for end in ["completed", "failed", "cancelled"] {
        assert!(report["ends"][end].as_u64().is_some(), "{end} in {report}");
    }
    (report, std::fs::read_to_string(picture).unwrap())
}

#[test]
fn killed_embedded_server_loses_and_repeats_nothing() {
    let (report, picture) =
        run_with_timeline(&["crash", "--times", "4", "--seed", "11", "--sessions", "8", "--rate", "12"]);
    assert_eq!(report["faults"]["kill"], 4, "{report}");
    if SmallDisk::is_available() {
        assert_eq!(report["faults"]["disk-full"], 2, "{report}");
    }
    assert!(report["terminal"].as_u64().unwrap() > 40, "{report}");
    assert!(report["recovery_ms"].is_object() && report["throughput"]["before"].is_number(), "{report}");
    assert_eq!(picture.matches(">kill</text>").count(), 4);
}

#[test]
fn cluster_with_faults_loses_and_repeats_nothing() {
    let kinds = ["worker-kill", "worker-stall", "nats-wipe", "postgres-full"];
    let faults = kinds.join(",");
    let (report, picture) =
        run_with_timeline(&["chaos", "--seconds", "60", "--seed", "3", "--rate", "15", "--faults", &faults]);
    for kind in kinds {
        assert!(report["faults"][kind].as_u64().unwrap_or_default() > 0, "{kind} in {report}");
        assert!(picture.contains(&format!(">{kind}</text>")), "{kind}");
    }
    assert!(report["terminal"].as_u64().unwrap() > 200, "{report}");
    assert!(report["waited"].as_u64().unwrap() > 50, "{report}");
    // A hostile member of the bus attacked all the time, with messages of every kind.
    let hostile = report["hostile"].as_object().unwrap();
    for kind in ["grants", "ends", "events", "control", "offers", "notices", "ready"] {
        let forged = hostile.get(&format!("{kind} forge")).and_then(Value::as_u64).unwrap_or_default();
        assert!(forged > 50, "{kind} in {report}");
    }
    for attack in ["replay", "duplicate", "alter", "strip", "move"] {
        assert!(hostile.keys().any(|name| name.ends_with(attack)), "{attack} in {report}");
    }
}

#[test]
fn reconnecting_readers_miss_no_event() {
    let sizes = [
        ("--reconnects", "150"),
        ("--kills", "3"),
        ("--replica-readers", "40"),
        ("--replica-sessions", "10"),
    ];
    let sizes = sizes.iter().flat_map(|(name, value)| [*name, *value]);
    let arguments: Vec<&str> = ["fanout", "--parts", "reconnect,replicas"].into_iter().chain(sizes).collect();
    let report = run_loadtest(&arguments);
    assert_eq!(report["reconnect"]["reconnects"], 150, "{report}");
    assert!(report["reconnect"]["events"].as_u64().unwrap() > 100, "{report}");
    // Every reader had to move to the other replica at least once.
    let replicas = &report["replicas"];
    assert_eq!(replicas["kills"], 3, "{report}");
    assert!(replicas["connections"].as_u64().unwrap() >= 80, "{report}");
    assert!(replicas["deliveries"].as_u64().unwrap() > 1000, "{report}");
}

#[test]
fn stalled_reader_misses_no_event() {
    let arguments =
        "fanout --parts stall,idle --readers 20 --sessions 4 --rate 200 --seconds 2 --idle-readers 100";
    let arguments: Vec<&str> = arguments.split(' ').chain(["--idle-sessions", "20"]).collect();
    let report = run_loadtest(&arguments);
    assert!(report["stall"]["late_events"].as_u64().unwrap() > 10, "{report}");
    assert!(report["latency"]["latency_ms"]["count"].as_u64().unwrap() > 100, "{report}");
    // Goals are only measured here: they depend on the machine.
    assert!(report["stall"]["goals"]["p99_ratio"]["measured"].is_number(), "{report}");
    assert!(report["idle"]["goals"]["kib_per_reader"]["measured"].is_number(), "{report}");
}
