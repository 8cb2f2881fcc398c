use clap::Parser;
use serde_json::json;

use super::*;

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    calls: CallArgs,
    #[arg(long)]
    follow: bool,
}

fn parse(line: &[&str]) -> Result<Vec<(String, Value, bool)>, String> {
    let cli = Cli::try_parse_from([&["run"], line].concat()).map_err(|error| error.to_string())?;
    let calls = cli.calls.load().map_err(|error| error.to_string())?.unwrap_or_default();
    let read =
        |call: v1::ToolCall| (call.tool, serde_json::from_str(&call.arguments).unwrap(), call.parallel);
    Ok(calls.into_iter().map(read).collect())
}

#[test]
fn arguments_belong_to_the_tool_before_them() {
    let calls = parse(&[
        "--tool",
        "Write",
        "--arg",
        "path=a.txt",
        "--follow",
        "--arg",
        "content=x = 1",
        "--tool",
        "noop",
        "--tool=Bash",
        "--args-json",
        r#"{"command":"cat a.txt"}"#,
        "-a",
        "limit:=10",
        "--parallel",
    ]);
    let expected = [
        ("Write", json!({ "path": "a.txt", "content": "x = 1" })),
        ("noop", json!({})),
        ("Bash", json!({ "command": "cat a.txt", "limit": 10 })),
    ];
    assert_eq!(calls.unwrap(), expected.map(|(tool, arguments)| (tool.to_owned(), arguments, true)));
}

#[test]
fn argument_values_are_strings_unless_marked_as_json() {
    let calls =
        parse(&["-t", "T", "-a", "s=10", "-a", "n:=10", "-a", "e=", "-a", "u=http://h/?a:=b", "-a", "d=--x"]);
    let expected = json!({ "s": "10", "n": 10, "e": "", "u": "http://h/?a:=b", "d": "--x" });
    assert_eq!(calls.unwrap()[0].1, expected);
}

#[test]
fn invalid_flags_are_rejected_with_an_explanation() {
    let cases: [(&[&str], &str); 8] = [
        (&["--arg", "a=1", "--tool", "T"], "before it"),
        (&["--tool", "T", "--arg", "a"], "expected key=value"),
        (&["--tool", "T", "--arg", "a:={"], "expected JSON after :="),
        (&["--tool", "T", "--arg", "=x"], "expected a key"),
        (&["--tool", "T", "--arg", "a=1", "--arg", "a=2"], "given twice"),
        (&["--tool", "T", "--args-json", "[1]"], "expected a JSON object"),
        (&["--parallel"], "required"),
        (&["--tool", "T", "--calls", "x"], "cannot be used with"),
    ];
    for (line, expected) in cases {
        let error = parse(line).unwrap_err();
        assert!(error.contains(expected), "{line:?}: {error}");
    }
}

#[test]
fn calls_are_read_from_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("calls.json");
    let path = path.to_str().unwrap();
    std::fs::write(
        path,
        r#"[{"tool":"noop"},{"tool":"Bash","arguments":{"command":"ls"},"parallel":true,"timeout":"2s"}]"#,
    )
    .unwrap();
    let calls = parse(&["--calls", path]).unwrap();
    assert_eq!(calls[0], ("noop".to_owned(), json!({}), false));
    assert_eq!(calls[1], ("Bash".to_owned(), json!({ "command": "ls" }), true));

    for (text, expected) in
        [("{}", "expected a JSON array"), (r#"[{"tool":"T","x":1}]"#, "unknown field `x`")]
    {
        std::fs::write(path, text).unwrap();
        assert!(parse(&["--calls", path]).unwrap_err().contains(expected));
    }
    assert!(parse(&["--calls", "/does/not/exist"]).unwrap_err().contains("cannot read /does/not/exist"));
}
