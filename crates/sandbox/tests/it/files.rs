//! What every backend does with files.

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
use remuda_sandbox::{ByteRange, FileKind, MAX_READ_BYTES, WriteMode, Written};

use crate::bench::{Bench, code};

impl Bench {
    pub(crate) async fn read(&self, path: &str) -> Result<Vec<u8>> {
        self.sandbox.read_file(path, ByteRange::first(1024)).await.map(|contents| contents.bytes)
    }

    pub(crate) async fn write(&self, path: &str, contents: &str) -> Result<Written> {
        self.sandbox.write_file(path, contents.into(), WriteMode::Overwrite).await
    }

    pub(crate) fn outside_is_untouched(&self) {
        let names: Vec<_> =
            std::fs::read_dir(self.outside.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(names.iter().all(|name| name == "workspace" || name == "secret"), "{names:?}");
        if let Ok(secret) = std::fs::read_to_string(self.outside.path().join("secret")) {
            assert_eq!(secret, "secret");
        }
    }

    pub(crate) fn put_secret(&self) {
        std::fs::write(self.outside.path().join("secret"), "secret").unwrap();
    }
}

pub(crate) async fn write_then_read(bench: Bench) {
    assert!(bench.write("a/b/c.txt", "one").await.unwrap().created);
    assert!(!bench.write("a/b/c.txt", "two").await.unwrap().created);
    assert_eq!(bench.read("a/b/c.txt").await.unwrap(), b"two");
    assert_eq!(bench.read("./a/../a/b/c.txt").await.unwrap(), b"two");
    assert_eq!(bench.shell("cat a/b/c.txt; ls -A a/b").await.stdout.text, "twoc.txt\n");
    bench.write("empty", "").await.unwrap();
    assert_eq!(bench.read("empty").await.unwrap(), b"");
    bench.write("-rf * 日本\n", "odd name").await.unwrap();
    assert_eq!(bench.read("-rf * 日本\n").await.unwrap(), b"odd name");
}

pub(crate) async fn ranges(bench: Bench) {
    bench.write("digits", "0123456789").await.unwrap();
    for (offset, limit, expected) in
        [(0, 3, "012"), (8, 5, "89"), (10, 1, ""), (u64::MAX, 1, ""), (0, u64::MAX, "0123456789")]
    {
        let contents = bench.sandbox.read_file("digits", ByteRange { offset, limit }).await.unwrap();
        assert_eq!((contents.bytes.as_slice(), contents.size), (expected.as_bytes(), 10), "{offset}");
    }
}

pub(crate) async fn missing_file(bench: Bench) {
    for path in ["missing", "missing/file"] {
        let error = bench.read(path).await.unwrap_err();
        assert_eq!((error.code(), error.field()), (Code::FileNotFound, Some("path")));
        assert!(error.message().contains(path), "{error}");
        assert_eq!(code(bench.sandbox.stat(path).await), Code::FileNotFound);
    }
    bench.write("file", "").await.unwrap();
    assert_eq!(code(bench.read("file/beneath").await), Code::FileNotFound);
    assert_eq!(code(bench.write("file/beneath", "").await), Code::FileNotFound);
}

pub(crate) async fn overwrite_keeps_the_mode(bench: Bench) {
    bench.shell("echo old > script; chmod 751 script; mkdir d; ln -s ../script d/link").await;
    bench.write("script", "new").await.unwrap();
    bench.write("d/link", "newer").await.unwrap();
    let stat = bench.sandbox.stat("script").await.unwrap();
    assert_eq!((stat.mode, stat.size), (0o751, 5));
}

pub(crate) async fn create_new_does_not_overwrite(bench: Bench) {
    let create = |contents: &str| bench.sandbox.write_file("f", contents.into(), WriteMode::CreateNew);
    assert!(create("one").await.unwrap().created);
    assert_eq!(code(create("two").await), Code::AlreadyExists);
    assert_eq!(bench.read("f").await.unwrap(), b"one");
    assert_eq!(bench.shell("ls -A").await.stdout.text, "f\n");
}

pub(crate) async fn links_within_the_workspace_work(bench: Bench) {
    bench.shell("mkdir -p real/sub; echo -n x > real/f; ln -s real dir; ln -s ../f real/sub/up; ln -s missing dangling").await;
    assert_eq!(bench.read("dir/f").await.unwrap(), b"x");
    assert_eq!(bench.read("real/sub/up").await.unwrap(), b"x");
    assert!(!bench.write("real/sub/up", "y").await.unwrap().created);
    assert!(bench.write("dir/new/g", "z").await.unwrap().created);
    assert!(bench.write("dangling", "w").await.unwrap().created);
    let text = bench
        .shell("cat real/f real/new/g missing; test -L real/sub/up && test -L dangling && echo kept")
        .await
        .stdout
        .text;
    assert_eq!(text, "yzwkept\n");
}

pub(crate) async fn links_do_not_lead_out(bench: Bench) {
    bench.put_secret();
    let workspace = bench.workspace();
    symlink("../secret", workspace.join("relative")).unwrap();
    symlink(bench.outside.path().join("secret"), workspace.join("absolute")).unwrap();
    symlink("..", workspace.join("parent")).unwrap();
    symlink("/", workspace.join("root")).unwrap();
    symlink("/proc/self/environ", workspace.join("environ")).unwrap();
    symlink("/proc/self/root", workspace.join("magic")).unwrap();
    symlink("loop", workspace.join("loop")).unwrap();
    symlink("../new", workspace.join("new")).unwrap();
    let secret = bench.outside.path().join("secret");
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
        assert_eq!(code(bench.read(path).await), Code::PathNotAllowed, "{path}");
        assert_eq!(code(bench.sandbox.stat(path).await), Code::PathNotAllowed, "{path}");
        assert_eq!(code(bench.write(path, "overwritten").await), Code::PathNotAllowed, "{path}");
    }
    bench.outside_is_untouched();
}

pub(crate) async fn dots_and_absolute_paths_do_not_lead_out(bench: Bench) {
    bench.put_secret();
    let secret = bench.outside.path().join("secret");
    let detour = format!("{}/../secret", bench.workspace().display());
    let sibling = format!("{}-sibling", bench.workspace().display());
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
        assert!(matches!(code(bench.read(path).await), Code::PathNotAllowed | Code::FileNotFound), "{path}");
        assert!(bench.write(path, "overwritten").await.is_err(), "{path}");
    }
    bench.outside_is_untouched();
    let absolute = format!("{}/inside", bench.workspace().display());
    bench.write(&absolute, "ok").await.unwrap();
    assert_eq!(bench.read("inside").await.unwrap(), b"ok");
    assert_eq!(
        bench.sandbox.stat(bench.workspace().to_str().unwrap()).await.unwrap().kind,
        FileKind::Directory
    );
}

pub(crate) async fn only_regular_files_are_read(bench: Bench) {
    bench.shell("mkfifo fifo; mkdir dir").await;
    let _socket = UnixListener::bind(bench.workspace().join("socket")).unwrap();
    for path in ["fifo", "dir", "socket", ".", "dir/"] {
        let error = bench.read(path).await.unwrap_err();
        assert_eq!((error.code(), error.field()), (Code::InvalidArgument, Some("path")), "{path}");
    }
}

pub(crate) async fn only_regular_files_are_replaced(bench: Bench) {
    bench.shell("mkfifo fifo; mkdir dir").await;
    for path in ["fifo", "dir", ".", "dir/", "new/", "dir/.."] {
        assert_eq!(code(bench.write(path, "x").await), Code::InvalidArgument, "{path}");
    }
    assert_eq!(bench.shell("ls -A . dir").await.stdout.text, ".:\ndir\nfifo\n\ndir:\n");
}

pub(crate) async fn hard_link_keeps_the_old_contents(bench: Bench) {
    bench.put_secret();
    std::fs::hard_link(bench.outside.path().join("secret"), bench.workspace().join("linked")).unwrap();
    bench.write("linked", "new").await.unwrap();
    bench.outside_is_untouched();
}

pub(crate) async fn bad_paths_are_refused(bench: Bench) {
    let (long, name) = ("x/".repeat(2500), "n".repeat(256));
    for path in ["", "a\0b", &long, &name] {
        let read = bench.read(path).await.unwrap_err();
        let write = bench.write(path, "x").await.unwrap_err();
        for error in [read, write] {
            assert_eq!((error.code(), error.field()), (Code::InvalidArgument, Some("path")));
            assert!(error.message().len() < 1000);
        }
    }
    let error = bench.read("no\u{1b}[31m\nsuch").await.unwrap_err();
    assert!(!error.message().contains(['\u{1b}', '\n']), "{error}");
}

/// Lets the directory `d` turn into a link to the outside and back, as fast as it goes, until it is dropped.
pub(crate) struct Swapper {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Swapper {
    pub(crate) fn start(bench: &Bench) -> Self {
        bench.put_secret();
        std::fs::create_dir(bench.workspace().join("d")).unwrap();
        symlink("..", bench.workspace().join("l")).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let [d, l] = ["d", "l"].map(|name| bench.workspace().join(name));
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

/// A directory that keeps turning into a link to the outside is never followed.
pub(crate) async fn swapped_directories_do_not_lead_out(bench: Bench) {
    let swapper = Swapper::start(&bench);
    for number in 0..300 {
        if let Ok(bytes) = bench.read("d/secret").await {
            panic!("read {bytes:?}");
        }
        let _may_fail = bench.write(&format!("d/new{number}"), "x").await;
        assert!(bench.sandbox.remove_file("d/secret").await.is_err());
        if let Ok(listing) = bench.sandbox.list_files("d", 1000).await {
            assert!(listing.entries.iter().all(|entry| entry.name.starts_with("new")), "{listing:?}");
        }
    }
    drop(swapper);
    bench.outside_is_untouched();
    assert!(bench.outside.path().join("secret").is_file());
}

pub(crate) async fn sparse_file_is_not_read_whole(bench: Bench) {
    bench.shell("truncate -s 4G sparse").await;
    let contents = bench.sandbox.read_file("sparse", ByteRange::first(u64::MAX)).await.unwrap();
    assert_eq!((contents.bytes.len() as u64, contents.size), (MAX_READ_BYTES, 4 * 1024 * 1024 * 1024));
}

pub(crate) async fn stat_says_what_is_there(bench: Bench) {
    bench.shell("mkfifo fifo; echo -n abc > file; chmod 640 file; ln -s file link").await;
    let stat = bench.sandbox.stat("link").await.unwrap();
    assert_eq!((stat.kind, stat.size, stat.mode), (FileKind::File, 3, 0o640));
    assert!(stat.modified.is_some());
    assert_eq!(bench.sandbox.stat("fifo").await.unwrap().kind, FileKind::Other);
    assert_eq!(bench.sandbox.stat(".").await.unwrap().kind, FileKind::Directory);
    let mode = std::fs::metadata(bench.workspace().join("file")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
}
