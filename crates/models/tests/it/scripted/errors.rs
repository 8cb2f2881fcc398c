//! Invalid scenarios.

use remuda_domain::error::Code;
use remuda_models::check_scenario;

use super::{ScenarioFile, definition};
use crate::fixtures::{call_model, options, request, user};

#[tokio::test]
async fn errors_name_the_file_the_line_and_what_was_expected() {
    let table = [
        ("turns:\n  - say: a\n  - sya: b\n", 3, "unknown field"),
        ("turns:\n  - say: a\nturn: 3\n", 3, "unknown field"),
        ("turns:\n  - say: a\n    when: { user_says: b }\n", 3, "unknown field"),
        ("turns:\n  - call:\n      - tol: Read\n", 3, "unknown field"),
        ("turns:\n  - fail: { code: 3 }\n", 2, "unknown field"),
        ("turns:\n  - usage: { tokens: 3 }\n", 2, "unknown field"),
        ("conversations:\n  - on: { user: hi }\n    turns: []\n", 2, "unknown field"),
        ("conversations:\n  - turns: []\n", 2, "missing field"),
        ("turns:\n  - say: a\n  - call: [{ arguments: {} }]\n", 3, "missing field"),
        ("turns:\n  - say: [a\n", 2, "string"),
        ("turns: 5\n", 1, ""),
        ("turns:\n  - delay: soon\n    say: a\n", 2, "20ms"),
        ("turns:\n  - delay: 11m\n    say: a\n", 2, "at most 10m"),
        ("pace: -1s\nturns:\n  - say: a\n", 1, "20ms"),
        ("log: ../calls\nturns:\n  - say: a\n", 1, "beside the scenario"),
        ("log: /tmp/calls\nturns:\n  - say: a\n", 1, "beside the scenario"),
        ("log: ..\nturns:\n  - say: a\n", 1, "beside the scenario"),
        ("turns:\n  - fail: { status: 200 }\n", 2, "400 to 599"),
        ("turns:\n  - say: a\n    repeat: 0\n", 3, ""),
        ("turns:\n  - say: a\n    finish: never\n", 3, "never"),
        ("turns:\n  - say: a\n  - repeat: 2\n", 3, "say, think, call or fail"),
        (
            "turns:\n  - say: a\n    call:\n      - tool: Read\n        arguments: {}\n        raw: x\n",
            4,
            "not both",
        ),
        ("turns:\n  - say: a\notherwise:\n  say: b\n  repeat: 2\n", 4, "neither when nor repeat"),
        ("turns:\n  - say: a\n    say: b\n", 3, ""),
        ("{}\n", 1, "expected turns"),
    ];
    for (scenario, line, words) in table {
        let scenario_file = ScenarioFile::new(scenario);
        let error = check_scenario(&scenario_file.file()).await.unwrap_err();
        assert_eq!((error.code(), error.field()), (Code::InvalidArgument, Some("name")));
        let place = format!("{}:{line}: ", scenario_file.file().display());
        assert!(
            error.message().starts_with(&place) && error.message().contains(words),
            "{scenario}\n{error}"
        );
        let (result, _) = scenario_file.call_model(&request(vec![user("Hi")])).await;
        assert_eq!(result.unwrap_err().message(), error.message());
    }
}

#[tokio::test]
async fn unreadable_scenario_files_are_rejected() {
    let scenario_file = ScenarioFile::new(&"#".repeat(2 * 1024 * 1024));
    let directory = scenario_file.directory.path().to_owned();
    for (file, words) in [
        (directory.join("missing.yaml"), "No such file"),
        (directory.clone(), "expected a file"),
        (scenario_file.file(), "1 MiB"),
        ("demo.yaml".into(), "absolute"),
    ] {
        let (result, _) = call_model(
            &remuda_models::Models::new(options()),
            &definition(&file),
            &request(vec![user("Hi")]),
        )
        .await;
        let error = result.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().contains(words), "{error}");
    }
}

#[tokio::test]
async fn scenario_without_a_matching_turn_refuses_the_call() {
    let scenario_file = ScenarioFile::new("turns:\n  - say: a\n");
    let (result, _) =
        scenario_file.call_model(&request(vec![user("Hi"), super::assistant("a"), super::result("x")])).await;
    let error = result.unwrap_err();
    assert_eq!(error.code(), Code::ModelRequestRefused);
    assert!(error.message().ends_with("has no turn for answer 2 to this message"), "{error}");
}

#[tokio::test]
async fn log_is_not_written_through_a_symlink() {
    let scenario_file = ScenarioFile::new("log: calls\nturns:\n  - say: a\n");
    let target = scenario_file.directory.path().join("target");
    std::fs::write(&target, "").unwrap();
    std::os::unix::fs::symlink(&target, scenario_file.directory.path().join("calls")).unwrap();
    assert!(scenario_file.call_model(&request(vec![user("Hi")])).await.0.is_err());
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "");
}
