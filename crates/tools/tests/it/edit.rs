use std::os::unix::fs::PermissionsExt;

use remuda_domain::Code;
use serde_json::{Value, json};

use crate::bench::{Bench, refused};

fn edit(path: &str, old: &str, new: &str) -> Value {
    json!({ "file_path": path, "old_string": old, "new_string": new })
}

impl Bench {
    /// A file that was read.
    async fn known(&self, path: &str, content: impl AsRef<[u8]>) {
        self.put(path, content).await;
        self.read(json!({ "file_path": path })).await;
    }

    fn holds(&self, path: &str) -> Vec<u8> {
        std::fs::read(self.workspace().join(path)).unwrap()
    }
}

#[tokio::test]
async fn one_occurrence_is_replaced() {
    let bench = Bench::new();
    bench.known("f", "one\ntwo\nthree\n").await;
    let path = bench.workspace().join("f");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o741)).unwrap();
    let answer = bench.call("Edit", edit("f", "two", "2\n2½")).await.unwrap();
    let diff = "@@ -1,3 +1,4 @@\n one\n-two\n+2\n+2½\n three\n";
    assert_eq!(answer, json!({ "replacements": 1, "created": false, "diff": diff }));
    assert_eq!(bench.holds("f"), "one\n2\n2½\nthree\n".as_bytes());
    assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o741);
    // What it has changed itself it knows.
    bench.call("Edit", edit("f", "three\n", "")).await.unwrap();
    bench.call("Write", json!({ "file_path": "f", "content": "all new" })).await.unwrap();
}

#[tokio::test]
async fn none_and_several_are_different_mistakes() {
    let bench = Bench::new();
    bench.known("f", "aaa b a\n").await;
    let field = || "arguments.old_string".to_owned();
    assert_eq!(bench.fails("Edit", edit("f", "c", "d")).await, (Code::NoMatch, field()));
    let error = bench.call("Edit", edit("f", "a", "d")).await.unwrap_err();
    assert_eq!(error.code(), Code::SeveralMatches);
    assert!(error.message().starts_with("found 4 times"), "{error}");
    assert_eq!(
        bench.fails("Edit", edit("f", "aa", "d")).await,
        (Code::SeveralMatches, field()),
        "they overlap"
    );
    assert_eq!(bench.holds("f"), b"aaa b a\n");

    let mut all = edit("f", "a", "xy");
    all["replace_all"] = true.into();
    assert_eq!(bench.call("Edit", all).await.unwrap()["replacements"], 4);
    assert_eq!(bench.holds("f"), b"xyxyxy b xy\n");
}

#[tokio::test]
async fn only_what_was_read_is_changed() {
    let bench = Bench::new();
    bench.put("f", "text").await;
    let field = || "arguments.file_path".to_owned();
    assert_eq!(bench.fails("Edit", edit("f", "text", "new")).await, (Code::ReadRequired, field()));
    bench.known("f", "text").await;
    bench.put("f", "text, changed").await;
    assert_eq!(bench.fails("Edit", edit("f", "text", "new")).await, (Code::FileChanged, field()));
    for (path, code) in [
        ("missing", Code::FileNotFound),
        ("../f", Code::PathNotAllowed),
        ("/etc/passwd", Code::PathNotAllowed),
        (".", Code::InvalidArgument),
    ] {
        assert_eq!(bench.fails("Edit", edit(path, "text", "new")).await, (code, field()), "{path}");
    }
    std::fs::File::create(bench.workspace().join("sparse")).unwrap().set_len(10 << 30).unwrap();
    assert_eq!(bench.fails("Edit", edit("sparse", "text", "new")).await, (Code::TooLarge, field()));
}

#[tokio::test]
async fn nothing_else_in_the_file_changes() {
    let bench = Bench::new();
    bench.known("crlf", "\u{feff}one\r\ntwo\r\nthree").await;
    let error = bench.call("Edit", edit("crlf", "one\ntwo", "1")).await.unwrap_err();
    assert_eq!(error.code(), Code::NoMatch);
    assert!(error.message().ends_with("end with \\r\\n"), "{error}");
    bench.call("Edit", edit("crlf", "one\r\ntwo", "1")).await.unwrap();
    assert_eq!(bench.holds("crlf"), "\u{feff}1\r\nthree".as_bytes());
    bench.known("latin1", b"caf\xe9 one\rtwo\n").await;
    bench.call("Edit", edit("latin1", "one", "1")).await.unwrap();
    assert_eq!(bench.holds("latin1"), b"caf\xe9 1\rtwo\n");
}

#[tokio::test]
async fn nothing_can_be_replaced_by_a_new_file() {
    let bench = Bench::new();
    let answer = bench.call("Edit", edit("new/f", "", "a\n")).await.unwrap();
    assert_eq!(answer, json!({ "replacements": 0, "created": true, "diff": "@@ -0,0 +1,1 @@\n+a\n" }));
    let refusal = bench.fails("Edit", edit("new/f", "", "b\n")).await;
    assert_eq!(refusal, (Code::InvalidArgument, "arguments.old_string".into()));
    assert_eq!(bench.holds("new/f"), b"a\n");
}

#[tokio::test]
async fn a_file_does_not_grow_without_bound() {
    let bench = Bench::new();
    bench.known("f", "a".repeat(100_000)).await;
    let mut all = edit("f", "a", &"b".repeat(1000));
    all["replace_all"] = true.into();
    assert_eq!(bench.fails("Edit", all).await, (Code::TooLarge, "arguments.new_string".into()));
}

#[tokio::test]
async fn bad_arguments_are_refused() {
    for (arguments, field) in [
        (edit("f", "same", "same"), "arguments.new_string"),
        (edit("f", "", ""), "arguments.new_string"),
        (edit("", "a", "b"), "arguments.file_path"),
        (json!({ "file_path": "f", "old_string": "a" }), "arguments.new_string"),
        (json!({ "file_path": "f", "old_string": 1, "new_string": "b" }), "arguments.old_string"),
        (json!({ "file_path": "f", "old_string": "a", "new_string": "b", "all": true }), "arguments.all"),
    ] {
        assert_eq!(refused("Edit", arguments).await, (Code::InvalidArgument, field.to_owned()));
    }
}
