//! Conformance suite: files.

use std::{
    os::unix::{
        fs::{PermissionsExt, symlink},
        net::UnixListener,
    },
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use remuda_domain::{Code, Result};
use remuda_sandbox::{ByteRange, FileKind, MAX_READ_BYTES, WriteMode, WriteOutcome};

use crate::fixture::{SandboxFixture, code};

impl SandboxFixture {
    pub(crate) async fn read(&self, path: &str) -> Result<Vec<u8>> {
        self.sandbox.read_file(path, ByteRange::first(1024)).await.map(|contents| contents.bytes)
    }

    pub(crate) async fn write(&self, path: &str, contents: &str) -> Result<WriteOutcome> {
        self.sandbox.write_file(path, contents.into(), WriteMode::Overwrite).await
    }

    pub(crate) fn assert_outside_is_untouched(&self) {
        let names: Vec<_> =
            std::fs::read_dir(self.outside.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(names.iter().all(|name| name == "workspace" || name == "secret"), "{names:?}");
        if let Ok(secret) = std::fs::read_to_string(self.outside.path().join("secret")) {
            assert_eq!(secret, "secret");
        }
    }

    pub(crate) fn create_secret(&self) {
        std::fs::write(self.outside.path().join("secret"), "secret").unwrap();
    }
}

pub(crate) async fn write_then_read(fixture: SandboxFixture) {
    assert!(fixture.write("a/b/c.txt", "one").await.unwrap().created);
    assert!(!fixture.write("a/b/c.txt", "two").await.unwrap().created);
    assert_eq!(fixture.read("a/b/c.txt").await.unwrap(), b"two");
    assert_eq!(fixture.read("./a/../a/b/c.txt").await.unwrap(), b"two");
    assert_eq!(fixture.shell("cat a/b/c.txt; ls -A a/b").await.stdout.text, "twoc.txt\n");
    fixture.write("empty", "").await.unwrap();
    assert_eq!(fixture.read("empty").await.unwrap(), b"");
    fixture.write("-rf * 日本\n", "odd name").await.unwrap();
    assert_eq!(fixture.read("-rf * 日本\n").await.unwrap(), b"odd name");
}

pub(crate) async fn byte_ranges_are_read(fixture: SandboxFixture) {
    fixture.write("digits", "0123456789").await.unwrap();
    for (offset, limit, expected) in
        [(0, 3, "012"), (8, 5, "89"), (10, 1, ""), (u64::MAX, 1, ""), (0, u64::MAX, "0123456789")]
    {
        let contents = fixture.sandbox.read_file("digits", ByteRange { offset, limit }).await.unwrap();
        assert_eq!((contents.bytes.as_slice(), contents.size), (expected.as_bytes(), 10), "{offset}");
    }
}

pub(crate) async fn missing_file_is_reported_with_its_path(fixture: SandboxFixture) {
    for path in ["missing", "missing/file"] {
        let error = fixture.read(path).await.unwrap_err();
        assert_eq!((error.code(), error.field()), (Code::FileNotFound, Some("path")));
        assert!(error.message().contains(path), "{error}");
        assert_eq!(code(fixture.sandbox.stat(path).await), Code::FileNotFound);
    }
    fixture.write("file", "").await.unwrap();
    assert_eq!(code(fixture.read("file/beneath").await), Code::FileNotFound);
    assert_eq!(code(fixture.write("file/beneath", "").await), Code::FileNotFound);
}

pub(crate) async fn overwrite_keeps_the_mode(fixture: SandboxFixture) {
    fixture.shell("echo old > script; chmod 751 script; mkdir d; ln -s ../script d/link").await;
    fixture.write("script", "new").await.unwrap();
    fixture.write("d/link", "newer").await.unwrap();
    let stat = fixture.sandbox.stat("script").await.unwrap();
    assert_eq!((stat.mode, stat.size), (0o751, 5));
}

pub(crate) async fn create_new_does_not_overwrite(fixture: SandboxFixture) {
    let create = |contents: &str| fixture.sandbox.write_file("f", contents.into(), WriteMode::CreateNew);
    assert!(create("one").await.unwrap().created);
    assert_eq!(code(create("two").await), Code::AlreadyExists);
    assert_eq!(fixture.read("f").await.unwrap(), b"one");
    assert_eq!(fixture.shell("ls -A").await.stdout.text, "f\n");
}

pub(crate) async fn links_within_the_workspace_are_followed(fixture: SandboxFixture) {
    fixture.shell("mkdir -p real/sub; echo -n x > real/f; ln -s real dir; ln -s ../f real/sub/up; ln -s missing dangling").await;
    assert_eq!(fixture.read("dir/f").await.unwrap(), b"x");
    assert_eq!(fixture.read("real/sub/up").await.unwrap(), b"x");
    assert!(!fixture.write("real/sub/up", "y").await.unwrap().created);
    assert!(fixture.write("dir/new/g", "z").await.unwrap().created);
    assert!(fixture.write("dangling", "w").await.unwrap().created);
    let text = fixture
        .shell("cat real/f real/new/g missing; test -L real/sub/up && test -L dangling && echo kept")
        .await
        .stdout
        .text;
    assert_eq!(text, "yzwkept\n");
}

pub(crate) async fn links_out_of_the_workspace_are_rejected(fixture: SandboxFixture) {
    fixture.create_secret();
    let workspace = fixture.workspace();
    symlink("../secret", workspace.join("relative")).unwrap();
    symlink(fixture.outside.path().join("secret"), workspace.join("absolute")).unwrap();
    symlink("..", workspace.join("parent")).unwrap();
    symlink("/", workspace.join("root")).unwrap();
    symlink("/proc/self/environ", workspace.join("environ")).unwrap();
    symlink("/proc/self/root", workspace.join("magic")).unwrap();
    symlink("loop", workspace.join("loop")).unwrap();
    symlink("../new", workspace.join("new")).unwrap();
    let secret = fixture.outside.path().join("secret");
    let through_root = format!("root{}", secret.display());
    let paths = [
        "relative",
        "absolute",
        "parent/secret",
        &through_root,
        "environ",
        "magic/etc/passwd",
        "loop",
        "new",
        "parent/new/x",
    ];
    for path in paths {
        assert_eq!(code(fixture.read(path).await), Code::PathNotAllowed, "{path}");
        assert_eq!(code(fixture.sandbox.stat(path).await), Code::PathNotAllowed, "{path}");
        assert_eq!(code(fixture.write(path, "overwritten").await), Code::PathNotAllowed, "{path}");
    }
    fixture.assert_outside_is_untouched();
}

pub(crate) async fn paths_out_of_the_workspace_are_rejected(fixture: SandboxFixture) {
    fixture.create_secret();
    let secret = fixture.outside.path().join("secret");
    let detour = format!("{}/../secret", fixture.workspace().display());
    let sibling = format!("{}-sibling", fixture.workspace().display());
    let paths = [
        "../secret",
        "a/../../secret",
        "../../../../../../etc/passwd",
        "/etc/passwd",
        "/proc/self/environ",
        "/dev/zero",
        "..",
        secret.to_str().unwrap(),
        &detour,
        &sibling,
    ];
    for path in paths {
        assert!(
            matches!(code(fixture.read(path).await), Code::PathNotAllowed | Code::FileNotFound),
            "{path}"
        );
        assert!(fixture.write(path, "overwritten").await.is_err(), "{path}");
    }
    fixture.assert_outside_is_untouched();
    let absolute = format!("{}/inside", fixture.workspace().display());
    fixture.write(&absolute, "ok").await.unwrap();
    assert_eq!(fixture.read("inside").await.unwrap(), b"ok");
    assert_eq!(
        fixture.sandbox.stat(fixture.workspace().to_str().unwrap()).await.unwrap().kind,
        FileKind::Directory
    );
}

pub(crate) async fn only_regular_files_are_read(fixture: SandboxFixture) {
    fixture.shell("mkfifo fifo; mkdir dir").await;
    let _socket = UnixListener::bind(fixture.workspace().join("socket")).unwrap();
    for path in ["fifo", "dir", "socket", ".", "dir/"] {
        let error = fixture.read(path).await.unwrap_err();
        assert_eq!((error.code(), error.field()), (Code::InvalidArgument, Some("path")), "{path}");
    }
}

pub(crate) async fn only_regular_files_are_replaced(fixture: SandboxFixture) {
    fixture.shell("mkfifo fifo; mkdir dir").await;
    for path in ["fifo", "dir", ".", "dir/", "new/", "dir/.."] {
        assert_eq!(code(fixture.write(path, "x").await), Code::InvalidArgument, "{path}");
    }
    assert_eq!(fixture.shell("ls -A . dir").await.stdout.text, ".:\ndir\nfifo\n\ndir:\n");
}

pub(crate) async fn overwrite_leaves_hard_links_unchanged(fixture: SandboxFixture) {
    fixture.create_secret();
    std::fs::hard_link(fixture.outside.path().join("secret"), fixture.workspace().join("linked")).unwrap();
    fixture.write("linked", "new").await.unwrap();
    fixture.assert_outside_is_untouched();
}

pub(crate) async fn invalid_paths_are_rejected(fixture: SandboxFixture) {
    let (long, name) = ("x/".repeat(2500), "n".repeat(256));
    for path in ["", "a\0b", &long, &name] {
        let read = fixture.read(path).await.unwrap_err();
        let write = fixture.write(path, "x").await.unwrap_err();
        for error in [read, write] {
            assert_eq!((error.code(), error.field()), (Code::InvalidArgument, Some("path")));
            assert!(error.message().len() < 1000);
        }
    }
    let error = fixture.read("no\u{1b}[31m\nsuch").await.unwrap_err();
    assert!(!error.message().contains(['\u{1b}', '\n']), "{error}");
}

/// Swaps the directory `d` with a link to the outside, as fast as possible, until it is dropped.
pub(crate) struct Swapper {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Swapper {
    pub(crate) fn start(fixture: &SandboxFixture) -> Self {
        fixture.create_secret();
        std::fs::create_dir(fixture.workspace().join("d")).unwrap();
        symlink("..", fixture.workspace().join("l")).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let [d, l] = ["d", "l"].map(|name| fixture.workspace().join(name));
        let stopped = Arc::clone(&stop);
        let swap = move || {
            while !stopped.load(Ordering::Relaxed) {
                renameat2(AT_FDCWD, &d, AT_FDCWD, &l, RenameFlags::RENAME_EXCHANGE).unwrap();
            }
        };
        Self { stop, thread: Some(std::thread::spawn(swap)) }
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

/// A directory that is constantly swapped with a link to the outside is never followed.
pub(crate) async fn swapped_directories_are_not_followed(fixture: SandboxFixture) {
    let swapper = Swapper::start(&fixture);
    for number in 0..300 {
        if let Ok(bytes) = fixture.read("d/secret").await {
            panic!("read {bytes:?}");
        }
        let _may_fail = fixture.write(&format!("d/new{number}"), "x").await;
        assert!(fixture.sandbox.remove_file("d/secret").await.is_err());
        if let Ok(listing) = fixture.sandbox.list_files("d", 1000).await {
            assert!(listing.entries.iter().all(|entry| entry.name.starts_with("new")), "{listing:?}");
        }
    }
    drop(swapper);
    fixture.assert_outside_is_untouched();
    assert!(fixture.outside.path().join("secret").is_file());
}

pub(crate) async fn sparse_file_is_not_read_whole(fixture: SandboxFixture) {
    fixture.shell("truncate -s 4G sparse").await;
    let contents = fixture.sandbox.read_file("sparse", ByteRange::first(u64::MAX)).await.unwrap();
    assert_eq!((contents.bytes.len() as u64, contents.size), (MAX_READ_BYTES, 4 * 1024 * 1024 * 1024));
}

pub(crate) async fn stat_reports_kind_and_size(fixture: SandboxFixture) {
    fixture.shell("mkfifo fifo; echo -n abc > file; chmod 640 file; ln -s file link").await;
    let stat = fixture.sandbox.stat("link").await.unwrap();
    assert_eq!((stat.kind, stat.size, stat.mode), (FileKind::File, 3, 0o640));
    assert!(stat.modified.is_some());
    assert_eq!(fixture.sandbox.stat("fifo").await.unwrap().kind, FileKind::Other);
    assert_eq!(fixture.sandbox.stat(".").await.unwrap().kind, FileKind::Directory);
    let mode = std::fs::metadata(fixture.workspace().join("file")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
}
