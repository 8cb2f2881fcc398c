use remuda_domain::Code;
use serde_json::{Value, json};

use crate::bench::{Bench, refused};

impl Bench {
    async fn read(&self, arguments: Value) -> Value {
        self.call("Read", arguments).await.unwrap()
    }

    async fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        self.context.sandbox.get().await.unwrap();
        std::fs::write(self.workspace().join(path), content).unwrap();
    }

    async fn fails(&self, tool: &str, arguments: Value) -> (Code, String) {
        let error = self.call(tool, arguments).await.unwrap_err();
        (error.code(), error.field().unwrap_or_default().to_owned())
    }
}

#[tokio::test]
async fn what_is_written_is_read_with_line_numbers() {
    let bench = Bench::new();
    let write = json!({ "file_path": "src/a.txt", "content": "one\r\ntwo é\n\nfour" });
    assert_eq!(
        bench.call("Write", write.clone()).await.unwrap(),
        json!({ "bytes_written": 17, "created": true })
    );
    assert_eq!(bench.call("Write", write).await.unwrap(), json!({ "bytes_written": 17, "created": false }));
    assert_eq!(
        bench.read(json!({ "file_path": "src/a.txt" })).await,
        json!({
            "content": "     1\tone\n     2\ttwo é\n     3\t\n     4\tfour\n",
            "start_line": 1, "lines": 4, "total_lines": 4, "truncated": false
        })
    );
    assert_eq!(
        bench.read(json!({ "file_path": "src/a.txt", "offset": 2, "limit": 1 })).await,
        json!({ "content": "     2\ttwo é\n", "start_line": 2, "lines": 1, "total_lines": 4, "truncated": true })
    );
    let refusal = bench.fails("Read", json!({ "file_path": "src/a.txt", "offset": 5 })).await;
    assert_eq!(refusal, (Code::InvalidArgument, "arguments.offset".into()));
}

#[tokio::test]
async fn what_is_shown_is_bounded() {
    let bench = Bench::new();
    bench.put("empty", "").await;
    let empty = json!({ "content": "", "start_line": 1, "lines": 0, "total_lines": 0, "truncated": false });
    assert_eq!(bench.read(json!({ "file_path": "empty" })).await, empty);

    bench.put("lines", "x\n".repeat(5000)).await;
    let answer = bench.read(json!({ "file_path": "lines" })).await;
    assert_eq!((&answer["lines"], &answer["total_lines"]), (&json!(2000), &json!(5000)));

    bench.put("wide", format!("{}\nnext\n", "é".repeat(3000))).await;
    let answer = bench.read(json!({ "file_path": "wide" })).await;
    assert!(answer["content"].as_str().unwrap().ends_with("é [… 2000 bytes left out …]\n     2\tnext\n"));

    bench.put("much", format!("{}\n", "y".repeat(1999)).repeat(4000)).await;
    let answer = bench.read(json!({ "file_path": "much", "limit": 4000 })).await;
    assert!(answer["content"].as_str().unwrap().len() < 265_000);
    assert_eq!((&answer["truncated"], &answer["total_lines"]), (&json!(true), &json!(4000)));

    std::fs::File::create(bench.workspace().join("sparse")).unwrap().set_len(10 << 30).unwrap();
    let refusal = bench.fails("Read", json!({ "file_path": "sparse" })).await;
    assert_eq!(refusal, (Code::TooLarge, "arguments.file_path".into()));
}

#[tokio::test]
async fn binary_files_are_recognised() {
    let bench = Bench::new();
    bench.put("picture", b"\x89PNG\r\n\x1a\n rest").await;
    bench.put("object", b"text\0more").await;
    bench.put("latin1", b"caf\xe9\n").await;
    bench.put("late", [vec![b'x'; 9000], vec![0]].concat()).await;
    let error = bench.call("Read", json!({ "file_path": "picture" })).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::ToolFailed, "a PNG image of 13 bytes, not text"));
    assert_eq!(bench.fails("Read", json!({ "file_path": "object" })).await.0, Code::ToolFailed);
    assert_eq!(bench.read(json!({ "file_path": "latin1" })).await["content"], "     1\tcaf\u{fffd}\n");
    let late = bench.read(json!({ "file_path": "late" })).await;
    assert!(!late["content"].as_str().unwrap().contains('\0'));
}

#[tokio::test]
async fn the_workspace_is_the_limit() {
    let bench = Bench::new();
    bench.put("file", "x").await;
    std::os::unix::fs::symlink("/etc", bench.workspace().join("etc")).unwrap();
    let field = || "arguments.file_path".to_owned();
    for (path, code) in [
        ("../outside", Code::PathNotAllowed),
        ("/etc/passwd", Code::PathNotAllowed),
        ("/proc/self/environ", Code::PathNotAllowed),
        ("etc/passwd", Code::PathNotAllowed),
    ] {
        assert_eq!(bench.fails("Read", json!({ "file_path": path })).await, (code, field()), "{path}");
        let write = json!({ "file_path": path, "content": "x" });
        assert_eq!(bench.fails("Write", write).await, (code, field()), "{path}");
    }
    assert_eq!(bench.fails("Read", json!({ "file_path": "missing" })).await, (Code::FileNotFound, field()));
    assert_eq!(bench.fails("Read", json!({ "file_path": "." })).await, (Code::InvalidArgument, field()));
    let write = json!({ "file_path": "file/beneath", "content": "x" });
    assert_eq!(bench.fails("Write", write).await, (Code::FileNotFound, field()));
}

#[tokio::test]
async fn bad_arguments_are_refused() {
    for (tool, arguments, field) in [
        ("Read", json!({}), "arguments.file_path"),
        ("Read", json!({ "file_path": "" }), "arguments.file_path"),
        ("Read", json!({ "file_path": "a\0" }), "arguments.file_path"),
        ("Read", json!({ "file_path": "x".repeat(5000) }), "arguments.file_path"),
        ("Read", json!({ "file_path": 1 }), "arguments.file_path"),
        ("Read", json!({ "file_path": "f", "offset": 0 }), "arguments.offset"),
        ("Read", json!({ "file_path": "f", "limit": -3 }), "arguments.limit"),
        ("Read", json!({ "file_path": "f", "pages": "1" }), "arguments.pages"),
        ("Write", json!({ "file_path": "f" }), "arguments.content"),
        ("Write", json!({ "content": "c" }), "arguments.file_path"),
        ("Write", json!({ "file_path": "f", "content": { "a": 1 } }), "arguments.content"),
        ("Write", json!({ "file_path": "f", "content": "c", "mode": 1 }), "arguments.mode"),
    ] {
        assert_eq!(refused(tool, arguments).await, (Code::InvalidArgument, field.to_owned()), "{tool}");
    }
}
