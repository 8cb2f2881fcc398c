use std::os::unix::fs::PermissionsExt;

use remuda_domain::Code;
use serde_json::{Value, json};

use crate::fixture::{ToolFixture, rejection};

fn edit(path: &str, old: &str, new: &str) -> Value {
    json!({ "file_path": path, "old_string": old, "new_string": new })
}

impl ToolFixture {
    /// Creates a file and reads it.
    async fn create_and_read(&self, path: &str, content: impl AsRef<[u8]>) {
        self.create_file(path, content).await;
        self.read(json!({ "file_path": path })).await;
    }

    fn contents(&self, path: &str) -> Vec<u8> {
        std::fs::read(self.workspace().join(path)).unwrap()
    }
}

#[tokio::test]
async fn one_occurrence_is_replaced() {
    let fixture = ToolFixture::new();
    fixture.create_and_read("f", "one\ntwo\nthree\n").await;
    let path = fixture.workspace().join("f");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o741)).unwrap();
    let answer = fixture.call("Edit", edit("f", "two", "2\n2½")).await.unwrap();
    let diff = "@@ -1,3 +1,4 @@\n one\n-two\n+2\n+2½\n three\n";
    assert_eq!(answer, json!({ "replacements": 1, "created": false, "diff": diff }));
    assert_eq!(fixture.contents("f"), "one\n2\n2½\nthree\n".as_bytes());
    assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o741);
    // Its own changes count as read.
    fixture.call("Edit", edit("f", "three\n", "")).await.unwrap();
    fixture.call("Write", json!({ "file_path": "f", "content": "all new" })).await.unwrap();
}

#[tokio::test]
async fn no_match_and_several_matches_have_different_codes() {
    let fixture = ToolFixture::new();
    fixture.create_and_read("f", "aaa b a\n").await;
    let field = || "arguments.old_string".to_owned();
    assert_eq!(fixture.fails("Edit", edit("f", "c", "d")).await, (Code::NoMatch, field()));
    let error = fixture.call("Edit", edit("f", "a", "d")).await.unwrap_err();
    assert_eq!(error.code(), Code::SeveralMatches);
    assert!(error.message().starts_with("found 4 times"), "{error}");
    assert_eq!(
        fixture.fails("Edit", edit("f", "aa", "d")).await,
        (Code::SeveralMatches, field()),
        "they overlap"
    );
    assert_eq!(fixture.contents("f"), b"aaa b a\n");

    let mut all = edit("f", "a", "xy");
    all["replace_all"] = true.into();
    assert_eq!(fixture.call("Edit", all).await.unwrap()["replacements"], 4);
    assert_eq!(fixture.contents("f"), b"xyxyxy b xy\n");
}

#[tokio::test]
async fn edit_requires_a_current_read() {
    let fixture = ToolFixture::new();
    fixture.create_file("f", "text").await;
    let field = || "arguments.file_path".to_owned();
    assert_eq!(fixture.fails("Edit", edit("f", "text", "new")).await, (Code::ReadRequired, field()));
    fixture.create_and_read("f", "text").await;
    fixture.create_file("f", "text, changed").await;
    assert_eq!(fixture.fails("Edit", edit("f", "text", "new")).await, (Code::FileChanged, field()));
    for (path, code) in [
        ("missing", Code::FileNotFound),
        ("../f", Code::PathNotAllowed),
        ("/etc/passwd", Code::PathNotAllowed),
        (".", Code::InvalidArgument),
    ] {
        assert_eq!(fixture.fails("Edit", edit(path, "text", "new")).await, (code, field()), "{path}");
    }
    std::fs::File::create(fixture.workspace().join("sparse")).unwrap().set_len(10 << 30).unwrap();
    assert_eq!(fixture.fails("Edit", edit("sparse", "text", "new")).await, (Code::TooLarge, field()));
}

#[tokio::test]
async fn edit_keeps_line_ends_and_other_bytes() {
    let fixture = ToolFixture::new();
    fixture.create_and_read("crlf", "\u{feff}one\r\ntwo\r\nthree").await;
    let error = fixture.call("Edit", edit("crlf", "one\ntwo", "1")).await.unwrap_err();
    assert_eq!(error.code(), Code::NoMatch);
    assert!(error.message().ends_with("end with \\r\\n"), "{error}");
    fixture.call("Edit", edit("crlf", "one\r\ntwo", "1")).await.unwrap();
    assert_eq!(fixture.contents("crlf"), "\u{feff}1\r\nthree".as_bytes());
    fixture.create_and_read("latin1", b"caf\xe9 one\rtwo\n").await;
    fixture.call("Edit", edit("latin1", "one", "1")).await.unwrap();
    assert_eq!(fixture.contents("latin1"), b"caf\xe9 1\rtwo\n");
}

#[tokio::test]
async fn empty_old_string_creates_a_new_file() {
    let fixture = ToolFixture::new();
    let answer = fixture.call("Edit", edit("new/f", "", "a\n")).await.unwrap();
    assert_eq!(answer, json!({ "replacements": 0, "created": true, "diff": "@@ -0,0 +1,1 @@\n+a\n" }));
    let rejected = fixture.fails("Edit", edit("new/f", "", "b\n")).await;
    assert_eq!(rejected, (Code::InvalidArgument, "arguments.old_string".into()));
    assert_eq!(fixture.contents("new/f"), b"a\n");
}

#[tokio::test]
async fn edit_limits_the_file_size() {
    let fixture = ToolFixture::new();
    fixture.create_and_read("f", "a".repeat(100_000)).await;
    let mut all = edit("f", "a", &"b".repeat(1000));
    all["replace_all"] = true.into();
    assert_eq!(fixture.fails("Edit", all).await, (Code::TooLarge, "arguments.new_string".into()));
}

#[tokio::test]
async fn invalid_arguments_are_rejected() {
    for (arguments, field) in [
        (edit("f", "same", "same"), "arguments.new_string"),
        (edit("f", "", ""), "arguments.new_string"),
        (edit("", "a", "b"), "arguments.file_path"),
        (json!({ "file_path": "f", "old_string": "a" }), "arguments.new_string"),
        (json!({ "file_path": "f", "old_string": 1, "new_string": "b" }), "arguments.old_string"),
        (json!({ "file_path": "f", "old_string": "a", "new_string": "b", "all": true }), "arguments.all"),
    ] {
        assert_eq!(rejection("Edit", arguments).await, (Code::InvalidArgument, field.to_owned()));
    }
}
