use remuda_config::{Config, LoadOptions};

use super::*;

fn checks() -> Vec<Check> {
    vec![
        Check::ok("a", "fine"),
        Check::not_used("bb", "not used"),
        Check::warning("ccc", "odd\x1b[31m", "fix it"),
        Check::problem("d", "broken", "repair it"),
    ]
}

#[test]
fn text_shows_marks_and_fixes() {
    let text = as_text(&checks(), Mode::Embedded, false);
    let expected = "✓ a    fine\n- bb   not used\n! ccc  odd [31m\n       → fix it\n✗ d    broken\n       → repair it\n\n\
                    not ready for the embedded mode, problems: 1, warnings: 1\n";
    assert_eq!(text, expected);
    assert!(as_text(&checks(), Mode::Embedded, true).contains("\x1b[31m✗"));
}

#[test]
fn json_report_is_one_line() {
    let text = as_json(&checks(), Mode::Split).unwrap();
    assert_eq!(text.lines().count(), 1);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((value["ok"].as_bool(), value["mode"].as_str()), (Some(false), Some("split")));
    assert_eq!(value["checks"][1]["level"], "not_used");
    assert_eq!(value["checks"][3]["mend"], "repair it");
    assert!(value["checks"][0].get("mend").is_none());
}

fn load(dir: &std::path::Path, overrides: &[(&str, &str)]) -> LoadedConfig {
    let mut pairs = vec![("data_dir".to_owned(), dir.join("data").display().to_string())];
    pairs.extend(overrides.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    let options = LoadOptions { overrides: pairs, search: Vec::new(), ..LoadOptions::default() };
    Config::load_with_origins(&options).unwrap()
}

fn level(checks: &[Check], name: &str) -> Level {
    checks.iter().find(|check| check.name == name).unwrap().level
}

#[tokio::test]
async fn fresh_machine_is_ready_for_embedded_mode_and_is_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let checks = run_checks(&load(dir.path(), &[("server.listen", "127.0.0.1:0")]), Mode::Embedded).await;
    for check in checks.iter().filter(|check| check.level == Level::Problem) {
        assert_eq!(check.name, "disk space", "{check:?}");
    }
    assert_eq!(level(&checks, "NATS"), Level::NotUsed);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn unreachable_services_are_problems_in_split_mode() {
    let dir = tempfile::tempdir().unwrap();
    // Bound and closed again, so nothing listens on this port.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (store, nats) =
        (format!("postgres://user:hunter2@{free}/remuda"), format!("nats://user:hunter2@{free}"));
    let loaded = load(
        dir.path(),
        &[
            ("store.url", store.as_str()),
            ("nats.servers", nats.as_str()),
            ("server.listen", "127.0.0.1:0"),
            ("stream.listen", "127.0.0.1:0"),
        ],
    );
    let checks = run_checks(&loaded, Mode::Split).await;
    for name in ["store", "NATS"] {
        assert_eq!(level(&checks, name), Level::Problem);
    }
    assert!(!format!("{checks:?}").contains("hunter2"), "{checks:?}");
    let none = run_checks(&load(dir.path(), &[("nats.servers", nats.as_str())]), Mode::Split).await;
    let store = none.iter().find(|check| check.name == "store").unwrap();
    assert!(store.found.contains("needs PostgreSQL"), "{store:?}");
}

#[tokio::test]
async fn store_file_that_is_not_a_database_is_a_problem() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("not.db");
    std::fs::write(&file, "this is not a database, whatever its name says".repeat(100)).unwrap();
    let url = format!("sqlite:{}", file.display());
    let loaded = load(dir.path(), &[("store.url", url.as_str()), ("server.listen", "127.0.0.1:0")]);
    let checks = run_checks(&loaded, Mode::Embedded).await;
    assert_eq!(level(&checks, "store"), Level::Problem);
}
