use std::fs;

use super::*;
use crate::{Config, LoadOptions};

fn load(file: &str, variables: &[(&str, &str)]) -> Result<Config, crate::Error> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("remuda.toml");
    fs::write(&path, file).unwrap();
    let env = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Config::load(&LoadOptions { file: Some(path), env, search: Vec::new(), overrides: Vec::new() })
}

fn problem(file: &str, variables: &[(&str, &str)]) -> (String, String) {
    let error = load(file, variables).unwrap_err();
    let [problem] = error.problems() else { panic!("{file} {variables:?}: {error}") };
    (problem.key.clone(), problem.to_string())
}

#[test]
fn dollars_become_millionths() {
    for (dollars, expected) in [
        (0.0, Some(0)),
        (3.0, Some(3_000_000)),
        (0.1, Some(100_000)),
        (2.35, Some(2_350_000)),
        (0.000_001, Some(1)),
        (1_000_000.0, Some(1_000_000_000_000)),
        (-0.5, None),
        (f64::NAN, None),
        (f64::INFINITY, None),
    ] {
        assert_eq!(micros(dollars), expected, "{dollars}");
    }
    assert_eq!(Budget::default().limit(), Limit::default());
    let limit = Budget { run_tokens: 5, run_cost: 0.25 }.limit();
    assert_eq!((limit.tokens, limit.micros), (Some(5), Some(250_000)));
}

#[test]
fn error_names_the_key_of_an_invalid_value() {
    for (file, key, expected) in [
        (
            "[permissions]\nmode = \"auto\"",
            "permissions.mode",
            "expected one of `default`, `plan`, `full_auto`",
        ),
        (
            "[permissions]\nunattended = \"hang\"",
            "permissions.unattended",
            "expected one of `wait`, `refuse`, `fail`",
        ),
        ("[permissions]\non_expiry = \"deny\"", "permissions.on_expiry", "expected `tell` or `fail`"),
        ("[permissions]\nexpire_after = \"1ms\"", "permissions.expire_after", "expected 1s to"),
        ("[permissions]\napprovers = [\"\"]", "permissions.approvers", "expected names of API keys"),
        ("[permissions]\nrules = [\"bash\"]", "permissions.rules", "expected a list of tables"),
        (
            "[permissions]\nrules = [{permission = \"bash\", action = \"maybe\"}]",
            "permissions.rules",
            "expected one of `allow`, `ask`, `deny`",
        ),
        ("[permissions]\nrules = [{permission = \"bash\"}]", "permissions.rules", "missing field `action`"),
        (
            "[permissions]\nrules = [{permission = \"bash\", action = \"ask\", lock = true}]",
            "permissions.rules",
            "unknown field `lock`",
        ),
        (
            "[permissions]\nrules = [{permission = \"\", action = \"ask\"}]",
            "permissions.rules",
            "1 to 512 bytes in rule 1",
        ),
        ("[delegation]\nmax_depth = 0", "delegation.max_depth", "expected 1 to 20, found 0"),
        ("[delegation]\nmax_depth = 21", "delegation.max_depth", "expected 1 to 20, found 21"),
        ("[context]\nwindow = 10", "context.window", "expected 1000 to 100000000, found 10"),
        ("[context]\nclear_at = 0.0", "context.clear_at", "expected more than 0 and less than"),
        ("[context]\nclear_at = 0.8", "context.clear_at", "less than context.summarize_at (0.8), found 0.8"),
        ("[context]\nsummarize_at = 0.96", "context.summarize_at", "at most 0.95, found 0.96"),
        ("[context]\nsummarize_at = nan", "context.summarize_at", "at most 0.95, found NaN"),
        ("[context]\nmax_failures = 0", "context.max_failures", "expected 1 to 100, found 0"),
        ("[budget]\nrun_cost = -1.0", "budget.run_cost", "expected 0 to 1000000 dollars, found -1"),
        ("[budget]\nrun_tokens = -1", "budget.run_tokens", "expected a whole number from 0"),
        ("[budget]\nrun_cost = \"3\"", "budget.run_cost", "expected a number, found string"),
    ] {
        let (found, message) = problem(file, &[]);
        assert_eq!(found, key, "{file}: {message}");
        assert!(message.contains(expected), "{file}: {message}");
    }
    for (text, expected) in [
        ("bash,edit", "expected a list as in a TOML file"),
        ("[]\n[worker]\nslots = 1", "expected a list as in a TOML file"),
        ("[\"bash\"]", "expected a list of tables"),
    ] {
        let (found, message) = problem("", &[("REMUDA_PERMISSIONS__RULES", text)]);
        assert_eq!(found, "permissions.rules");
        assert!(message.contains(expected), "{text}: {message}");
    }
}

#[test]
fn permissions_and_budget_are_loaded() {
    let file = r#"
        [permissions]
        mode = "plan"
        expire_after = "0s"
        on_expiry = "fail"
        [[permissions.rules]]
        permission = "bash"
        pattern = "rm *"
        action = "deny"
        locked = true
        [budget]
        run_tokens = 100
        run_cost = 2
    "#;
    let config = load(file, &[]).unwrap();
    let permissions = &config.permissions;
    assert_eq!(permissions.mode, PermissionMode::Plan);
    assert!(permissions.expire_after.is_zero() && permissions.on_expiry == OnExpiry::Fail);
    let rule = &permissions.rules[0];
    assert_eq!((rule.permission.as_str(), rule.pattern.as_str(), rule.locked), ("bash", "rm *", true));
    let limit = config.budget.limit();
    assert_eq!((limit.tokens, limit.micros), (Some(100), Some(2_000_000)));
    // The printed configuration can be parsed.
    let again: Config = toml::from_str(&config.to_toml()).unwrap();
    assert_eq!(again, config);

    let variable = r#"[{permission = "webfetch", action = "ask"}]"#;
    let rules = load(file, &[("REMUDA_PERMISSIONS__RULES", variable)]).unwrap().permissions.rules;
    assert_eq!(
        (rules.len(), rules[0].pattern.as_str()),
        (1, "*"),
        "a list replaces the list of an earlier source"
    );
}
