use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use remuda_domain::{Code, SessionId, tool::Effects};
use remuda_tools::{Registry, ToolOptions};
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use crate::fixture::{ToolFixture, rejection};

impl ToolFixture {
    pub(crate) async fn read(&self, arguments: Value) -> Value {
        self.call("Read", arguments).await.unwrap()
    }

    pub(crate) async fn create_file(&self, path: &str, content: impl AsRef<[u8]>) {
        self.context.sandbox.get().await.unwrap();
        std::fs::write(self.workspace().join(path), content).unwrap();
    }

    pub(crate) async fn fails(&self, tool: &str, arguments: Value) -> (Code, String) {
        let error = self.call(tool, arguments).await.unwrap_err();
        (error.code(), error.field().unwrap_or_default().to_owned())
    }
}

#[tokio::test]
async fn written_file_is_read_with_line_numbers() {
    let fixture = ToolFixture::new();
    let write = json!({ "file_path": "src/a.txt", "content": "one\r\ntwo é\n\nfour" });
    assert_eq!(
        fixture.call("Write", write.clone()).await.unwrap(),
        json!({ "bytes_written": 17, "created": true })
    );
    assert_eq!(fixture.call("Write", write).await.unwrap(), json!({ "bytes_written": 17, "created": false }));
    assert_eq!(
        fixture.read(json!({ "file_path": "src/a.txt" })).await,
        json!({
            "content": "     1\tone\n     2\ttwo é\n     3\t\n     4\tfour\n",
            "start_line": 1, "lines": 4, "total_lines": 4, "truncated": false, "line_ending": "\r\n"
        })
    );
    assert_eq!(
        fixture.read(json!({ "file_path": "src/a.txt", "offset": 2, "limit": 1 })).await,
        json!({ "content": "     2\ttwo é\n", "start_line": 2, "lines": 1, "total_lines": 4, "truncated": true })
    );
    let rejected = fixture.fails("Read", json!({ "file_path": "src/a.txt", "offset": 5 })).await;
    assert_eq!(rejected, (Code::InvalidArgument, "arguments.offset".into()));
}

#[tokio::test]
async fn read_result_is_bounded() {
    let fixture = ToolFixture::new();
    fixture.create_file("empty", "").await;
    let empty = json!({ "content": "", "start_line": 1, "lines": 0, "total_lines": 0, "truncated": false });
    assert_eq!(fixture.read(json!({ "file_path": "empty" })).await, empty);

    fixture.create_file("lines", "x\n".repeat(5000)).await;
    let answer = fixture.read(json!({ "file_path": "lines" })).await;
    assert_eq!((&answer["lines"], &answer["total_lines"]), (&json!(2000), &json!(5000)));

    fixture.create_file("wide", format!("{}\nnext\n", "é".repeat(3000))).await;
    let answer = fixture.read(json!({ "file_path": "wide" })).await;
    assert!(answer["content"].as_str().unwrap().ends_with("é [… 2000 bytes left out …]\n     2\tnext\n"));

    fixture.create_file("much", format!("{}\n", "y".repeat(1999)).repeat(4000)).await;
    let answer = fixture.read(json!({ "file_path": "much", "limit": 4000 })).await;
    assert!(answer["content"].as_str().unwrap().len() < 265_000);
    assert_eq!((&answer["truncated"], &answer["total_lines"]), (&json!(true), &json!(4000)));

    std::fs::File::create(fixture.workspace().join("sparse")).unwrap().set_len(10 << 30).unwrap();
    let error = fixture.call("Read", json!({ "file_path": "sparse" })).await.unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (Code::ToolFailed, "a binary file of 10737418240 bytes, not text")
    );
}

/// A part of a file can be read, however large it is.
#[tokio::test]
async fn large_files_are_read_in_part() {
    let fixture = ToolFixture::new();
    fixture.create_file("large", "0123456789abcde\n".repeat(640 * 1024)).await;
    let answer = fixture.read(json!({ "file_path": "large", "offset": 600_001, "limit": 1 })).await;
    assert_eq!(answer["content"], "600001\t0123456789abcde\n");
    assert_eq!(answer["total_lines"], 640 * 1024);

    // Too large for counting lines; the text ends in a hole of 10 GiB.
    let huge = std::fs::File::options().append(true).open(fixture.workspace().join("large")).unwrap();
    huge.set_len(10 << 30).unwrap();
    let answer = fixture.read(json!({ "file_path": "large", "offset": 2, "limit": 1 })).await;
    assert_eq!(answer["content"], "     2\t0123456789abcde\n");
    assert_eq!((&answer["total_lines"], &answer["truncated"]), (&Value::Null, &json!(true)));
}

#[tokio::test]
async fn binary_files_are_recognised() {
    let fixture = ToolFixture::new();
    fixture.create_file("picture", b"\x89PNG\r\n\x1a\n rest").await;
    fixture.create_file("object", b"text\0more").await;
    fixture.create_file("latin1", b"caf\xe9\n").await;
    fixture.create_file("marked", b"\xef\xbb\xbffirst\n").await;
    fixture.create_file("late", [vec![b'x'; 9000], vec![0]].concat()).await;
    let picture = fixture.read(json!({ "file_path": "picture" })).await;
    let expected =
        json!({ "kind": "image", "media_type": "image/png", "bytes": 13, "data": "iVBORw0KGgogcmVzdA==" });
    assert_eq!(picture, expected);
    fixture.create_file("poster", [b"\xff\xd8\xff".as_slice(), &[7; 800 * 1024]].concat()).await;
    let poster = fixture.read(json!({ "file_path": "poster" })).await;
    assert_eq!((&poster["media_type"], &poster["truncated"]), (&json!("image/jpeg"), &json!(true)));
    assert!(poster.get("data").is_none());
    fixture.create_file("archive", b"PK\x03\x04...").await;
    let error = fixture.call("Read", json!({ "file_path": "archive" })).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::ToolFailed, "a ZIP archive of 7 bytes, not text"));
    assert_eq!(fixture.fails("Read", json!({ "file_path": "object" })).await.0, Code::ToolFailed);
    assert_eq!(fixture.read(json!({ "file_path": "latin1" })).await["content"], "     1\tcaf\u{fffd}\n");
    assert_eq!(fixture.read(json!({ "file_path": "marked" })).await["content"], "     1\tfirst\n");
    let late = fixture.read(json!({ "file_path": "late" })).await;
    assert!(!late["content"].as_str().unwrap().contains('\0'));
}

#[tokio::test]
async fn paths_out_of_the_workspace_are_rejected() {
    let fixture = ToolFixture::new();
    fixture.create_file("file", "x").await;
    std::os::unix::fs::symlink("/etc", fixture.workspace().join("etc")).unwrap();
    let field = || "arguments.file_path".to_owned();
    for (path, code) in [
        ("../outside", Code::PathNotAllowed),
        ("/etc/passwd", Code::PathNotAllowed),
        ("/proc/self/environ", Code::PathNotAllowed),
        ("etc/passwd", Code::PathNotAllowed),
    ] {
        assert_eq!(fixture.fails("Read", json!({ "file_path": path })).await, (code, field()), "{path}");
        let write = json!({ "file_path": path, "content": "x" });
        assert_eq!(fixture.fails("Write", write).await, (code, field()), "{path}");
    }
    assert_eq!(fixture.fails("Read", json!({ "file_path": "missing" })).await, (Code::FileNotFound, field()));
    assert_eq!(fixture.fails("Read", json!({ "file_path": "." })).await, (Code::InvalidArgument, field()));
    let write = json!({ "file_path": "file/beneath", "content": "x" });
    assert_eq!(fixture.fails("Write", write).await, (Code::FileNotFound, field()));
}

#[tokio::test]
async fn invalid_arguments_are_rejected() {
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
        assert_eq!(rejection(tool, arguments).await, (Code::InvalidArgument, field.to_owned()), "{tool}");
    }
}

fn write(path: &str, content: &str) -> Value {
    json!({ "file_path": path, "content": content })
}

#[tokio::test]
async fn write_requires_a_current_read_of_an_existing_file() {
    let fixture = ToolFixture::new();
    fixture.create_file("f", "theirs").await;
    let required = (Code::ReadRequired, "arguments.file_path".to_owned());
    assert_eq!(fixture.fails("Write", write("f", "mine")).await, required);
    assert_eq!(std::fs::read_to_string(fixture.workspace().join("f")).unwrap(), "theirs");
    fixture.read(json!({ "file_path": "./f", "limit": 1 })).await;
    fixture.call("Write", write("f", "mine")).await.unwrap();
    // Its own writes count as read.
    fixture.call("Write", write("f", "mine again")).await.unwrap();

    fixture.create_file("f", "theirs again").await;
    let changed = (Code::FileChanged, "arguments.file_path".to_owned());
    assert_eq!(fixture.fails("Write", write("f", "mine")).await, changed);
    fixture.create_file("f", "mine again").await;
    fixture.call("Write", write("f", "the same as it was, if later")).await.unwrap();

    // The same file under another name.
    let absolute = fixture.workspace().join("f");
    fixture.call("Write", write(absolute.to_str().unwrap(), "by its full name")).await.unwrap();
    std::os::unix::fs::symlink("f", fixture.workspace().join("link")).unwrap();
    fixture.call("Write", write("link", "by a link")).await.unwrap();
    assert_eq!(std::fs::read_to_string(&absolute).unwrap(), "by a link");
}

/// If a worker dies after the write and before the result, another worker repeats the call.
#[tokio::test]
async fn repeated_write_of_the_same_contents_succeeds() {
    let fixture = ToolFixture::new();
    fixture.create_file("f", "wanted").await;
    let answer = fixture.call("Write", write("f", "wanted")).await.unwrap();
    assert_eq!(answer, json!({ "bytes_written": 6, "created": false }));
    fixture.call("Write", write("f", "and now it is known")).await.unwrap();
}

/// The read history is per session, and survives a change of workers.
#[tokio::test]
async fn read_history_is_per_session() {
    let mut fixture = ToolFixture::new();
    fixture.create_file("f", "theirs").await;
    fixture.read(json!({ "file_path": "f" })).await;
    let reader = std::mem::replace(&mut fixture.context.session, SessionId::new());
    assert_eq!(fixture.fails("Write", write("f", "mine")).await.0, Code::ReadRequired);
    fixture.context.session = reader;
    let other_worker = Registry::native(&ToolOptions::default());
    other_worker.get("Write").unwrap().call(&write("f", "mine"), &fixture.context).await.unwrap();
}

#[tokio::test]
async fn unreadable_history_counts_as_empty() {
    let fixture = ToolFixture::new();
    fixture.create_file("f", "theirs").await;
    fixture.read(json!({ "file_path": "f" })).await;
    let state = fixture.workspace().join(".openharness/state");
    assert_eq!(std::fs::read_to_string(state.join(".gitignore")).unwrap(), "*\n");
    let history = state.join(format!("read-history/{}.json", fixture.context.session));
    for broken in ["", "{", "[1]", "{\"files\": 3}", &"[".repeat(100_000)] {
        std::fs::write(&history, broken).unwrap();
        assert_eq!(fixture.fails("Write", write("f", "mine")).await.0, Code::ReadRequired, "{broken:.20}");
        fixture.read(json!({ "file_path": "f" })).await;
    }
    fixture.call("Write", write("f", "mine")).await.unwrap();

    // If the history cannot be stored, files can still be read.
    std::fs::remove_file(&history).unwrap();
    std::fs::create_dir(&history).unwrap();
    assert_eq!(fixture.read(json!({ "file_path": "f" })).await["content"], "     1\tmine\n");
    assert_eq!(fixture.fails("Write", write("f", "more")).await.0, Code::ReadRequired);
    std::fs::remove_dir_all(fixture.workspace().join(".openharness")).unwrap();
    std::os::unix::fs::symlink("/tmp", fixture.workspace().join(".openharness")).unwrap();
    assert_eq!(fixture.read(json!({ "file_path": "f" })).await["content"], "     1\tmine\n");
}

/// Parallel calls of a run do not lose each other's records.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parallel_reads_are_all_recorded() {
    let fixture = Arc::new(ToolFixture::new());
    let names: Vec<String> = (0..30).map(|number| format!("f{number}")).collect();
    for name in &names {
        fixture.create_file(name, name).await;
    }
    let tasks = TaskTracker::new();
    for name in names.clone() {
        let fixture = Arc::clone(&fixture);
        tasks.spawn(async move { fixture.read(json!({ "file_path": name })).await });
    }
    tasks.close();
    tasks.wait().await;
    for name in &names {
        fixture.call("Write", write(name, "new")).await.unwrap();
    }
}

/// A directory is constantly swapped with a link to the outside: files outside are neither read nor changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn swapped_directories_are_not_followed() {
    let fixture = ToolFixture::new();
    fixture.create_file("own", "").await;
    let (workspace, outside) = (fixture.workspace(), fixture.workspace().parent().unwrap().to_owned());
    std::fs::write(outside.join("secret"), "secret").unwrap();
    std::fs::create_dir(workspace.join("d")).unwrap();
    std::os::unix::fs::symlink("..", workspace.join("l")).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let swapper = std::thread::spawn({
        let (stop, [d, l]) = (Arc::clone(&stop), ["d", "l"].map(|name| workspace.join(name)));
        move || {
            while !stop.load(Ordering::Relaxed) {
                renameat2(AT_FDCWD, &d, AT_FDCWD, &l, RenameFlags::RENAME_EXCHANGE).unwrap();
            }
        }
    });
    let edit = json!({ "file_path": "d/secret", "old_string": "secret", "new_string": "changed" });
    let mut seen = Vec::new();
    for _ in 0..100 {
        seen.push(fixture.call("Read", json!({ "file_path": "d/secret" })).await.is_ok());
        seen.push(fixture.call("Edit", edit.clone()).await.is_ok());
        let _may_create_one_inside = fixture.call("Write", write("d/other", "mine")).await;
    }
    stop.store(true, Ordering::Relaxed);
    swapper.join().unwrap();
    assert!(!seen.contains(&true));
    assert_eq!(std::fs::read_to_string(outside.join("secret")).unwrap(), "secret");
    assert!(!outside.join("other").try_exists().unwrap());
}

#[tokio::test]
async fn hard_links_are_read_but_never_written_through() {
    let fixture = ToolFixture::new();
    fixture.create_file("own", "").await;
    let outside = fixture.workspace().parent().unwrap().join("secret");
    std::fs::write(&outside, "secret").unwrap();
    std::fs::hard_link(&outside, fixture.workspace().join("linked")).unwrap();
    fixture.read(json!({ "file_path": "linked" })).await;
    let edit = json!({ "file_path": "linked", "old_string": "secret", "new_string": "changed" });
    fixture.call("Edit", edit).await.unwrap();
    fixture.call("Write", write("linked", "mine")).await.unwrap();
    assert_eq!(std::fs::read_to_string(outside).unwrap(), "secret");
}

#[tokio::test]
async fn cancelled_call_changes_no_file() {
    let fixture = ToolFixture::new();
    fixture.create_file("f", "text").await;
    fixture.read(json!({ "file_path": "f" })).await;
    fixture.context.cancel.cancel();
    for (tool, arguments) in [
        ("Read", json!({ "file_path": "f" })),
        ("Write", write("f", "new")),
        ("Edit", json!({ "file_path": "f", "old_string": "text", "new_string": "new" })),
        ("Glob", json!({ "pattern": "*" })),
        ("Grep", json!({ "pattern": "x" })),
    ] {
        assert_eq!(fixture.fails(tool, arguments).await.0, Code::Cancelled, "{tool}");
    }
    assert_eq!(std::fs::read_to_string(fixture.workspace().join("f")).unwrap(), "text");
}

#[test]
fn file_tools_declare_their_effects() {
    let tools = Registry::native(&ToolOptions::default());
    for (tool, effects) in [
        ("Read", Effects::ReadOnly),
        ("Glob", Effects::ReadOnly),
        ("Grep", Effects::ReadOnly),
        ("Write", Effects::Idempotent),
        ("TodoWrite", Effects::Idempotent),
        ("Edit", Effects::Mutating),
    ] {
        assert_eq!(tools.get(tool).unwrap().effects(), effects, "{tool}");
    }
}
