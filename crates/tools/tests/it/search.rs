use remuda_domain::Code;
use serde_json::{Value, json};

use crate::fixture::{ToolFixture, rejection};

async fn fixture() -> ToolFixture {
    let fixture = ToolFixture::new();
    for (path, content) in [
        ("a.rs", "fn one() {}\nfn two() {}\n// end\n"),
        ("b.txt", "ONE fn\n"),
        (".hidden", "fn"),
        ("ignored.log", "fn"),
        (".gitignore", "*.log\n"),
    ] {
        fixture.create_file(path, content).await;
    }
    fixture
}

async fn grep(fixture: &ToolFixture, arguments: Value) -> Value {
    fixture.call("Grep", arguments).await.unwrap()
}

#[tokio::test]
async fn glob_finds_files() {
    let fixture = fixture().await;
    let answer = fixture.call("Glob", json!({ "pattern": "*.rs" })).await.unwrap();
    assert_eq!(answer, json!({ "files": ["a.rs"], "total": 1, "truncated": false }));
    for number in 0..150 {
        fixture.create_file(&format!("{number}.many"), "").await;
    }
    let answer = fixture.call("Glob", json!({ "pattern": "*.many", "path": "." })).await.unwrap();
    assert_eq!((&answer["total"], &answer["truncated"]), (&json!(150), &json!(true)));
    assert_eq!(answer["files"].as_array().unwrap().len(), 100);
    let rejected = fixture.fails("Glob", json!({ "pattern": "*", "path": "../" })).await;
    assert_eq!(rejected, (Code::PathNotAllowed, "arguments.path".into()));
    let rejected = fixture.fails("Glob", json!({ "pattern": "[" })).await;
    assert_eq!(rejected, (Code::InvalidArgument, "arguments.pattern".into()));
}

#[tokio::test]
async fn grep_supports_all_output_modes() {
    let fixture = fixture().await;
    let files = grep(&fixture, json!({ "pattern": "fn" })).await;
    let mut names: Vec<&str> = files["files"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    names.sort_unstable();
    assert_eq!((names.as_slice(), &files["truncated"]), (["a.rs", "b.txt"].as_slice(), &json!(false)));
    assert_eq!(
        grep(&fixture, json!({ "pattern": "fn", "output_mode": "count" })).await,
        json!({ "counts": [{ "path": "a.rs", "count": 2 }, { "path": "b.txt", "count": 1 }], "truncated": false })
    );
    assert_eq!(
        grep(&fixture, json!({ "pattern": "one", "output_mode": "content", "-i": true })).await,
        json!({ "content": "a.rs:1:fn one() {}\nb.txt:1:ONE fn\n", "lines": 2, "truncated": false })
    );
}

#[tokio::test]
async fn grep_supports_options_of_ripgrep() {
    let fixture = fixture().await;
    let content = |mut arguments: Value| {
        arguments["output_mode"] = "content".into();
        let fixture = &fixture;
        async move { grep(fixture, arguments).await["content"].as_str().unwrap().to_owned() }
    };
    assert_eq!(content(json!({ "pattern": "one", "-n": false })).await, "a.rs:fn one() {}\n");
    assert_eq!(
        content(json!({ "pattern": "one", "-A": 1 })).await,
        "a.rs:1:fn one() {}\na.rs-2-fn two() {}\n"
    );
    assert_eq!(content(json!({ "pattern": "end", "-B": 1 })).await, "a.rs-2-fn two() {}\na.rs:3:// end\n");
    let around = "a.rs-1-fn one() {}\na.rs:2:fn two() {}\na.rs-3-// end\n";
    assert_eq!(content(json!({ "pattern": "two", "-C": 1 })).await, around);
    assert_eq!(content(json!({ "pattern": "two", "context": 1 })).await, around);
    let apart = content(json!({ "pattern": "end|ONE", "-B": 1 })).await;
    assert_eq!(apart, "a.rs-2-fn two() {}\na.rs:3:// end\n--\nb.txt:1:ONE fn\n");
    assert_eq!(content(json!({ "pattern": "fn", "glob": "*.txt" })).await, "b.txt:1:ONE fn\n");
    assert_eq!(
        content(json!({ "pattern": "fn", "type": "rust", "head_limit": 1 })).await,
        "a.rs:1:fn one() {}\n"
    );
    assert_eq!(
        content(json!({ "pattern": "fn", "offset": 1, "head_limit": 1 })).await,
        "a.rs:2:fn two() {}\n"
    );
    assert_eq!(content(json!({ "pattern": "fn", "path": ".hidden" })).await, ".hidden:1:fn\n");
    assert_eq!(content(json!({ "pattern": "one.*two", "multiline": true })).await.lines().count(), 2);

    fixture.create_file("many", "x\n".repeat(1000)).await;
    assert_eq!(content(json!({ "pattern": "x" })).await.lines().count(), 250);
    assert_eq!(content(json!({ "pattern": "x", "head_limit": 0 })).await.lines().count(), 1000);
}

#[tokio::test]
async fn invalid_arguments_are_rejected() {
    for (tool, arguments, field) in [
        ("Glob", json!({}), "arguments.pattern"),
        ("Glob", json!({ "pattern": "" }), "arguments.pattern"),
        ("Glob", json!({ "pattern": "*", "path": "a\0" }), "arguments.path"),
        ("Glob", json!({ "pattern": "*", "limit": 3 }), "arguments.limit"),
        ("Grep", json!({ "path": "." }), "arguments.pattern"),
        ("Grep", json!({ "pattern": "x", "path": "" }), "arguments.path"),
        ("Grep", json!({ "pattern": "x", "-A": -1 }), "arguments.-A"),
        ("Grep", json!({ "pattern": "x", "output_mode": "lines" }), "arguments.output_mode"),
        ("Grep", json!({ "pattern": "x", "-v": true }), "arguments.-v"),
    ] {
        assert_eq!(rejection(tool, arguments).await, (Code::InvalidArgument, field.to_owned()), "{tool}");
    }
    let fixture = fixture().await;
    for (arguments, field) in [
        (json!({ "pattern": "(" }), "arguments.pattern"),
        (json!({ "pattern": "x", "type": "none such" }), "arguments.type"),
        (json!({ "pattern": "x", "glob": "[" }), "arguments.glob"),
    ] {
        assert_eq!(fixture.fails("Grep", arguments).await, (Code::InvalidArgument, field.to_owned()));
    }
}
