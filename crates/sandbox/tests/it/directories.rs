//! Conformance suite: directories, full disks and read-only file systems.

use std::{
    ffi::OsStr,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, chown, symlink},
    },
    path::{Path, PathBuf},
    process::Command,
};

use nix::{
    sys::stat::{Mode, SFlag, makedev, mknod},
    unistd::{Uid, mkfifo},
};
use remuda_domain::Code;
use remuda_sandbox::{EntryKind, Listing};

use crate::fixture::{SandboxFixture, code};

pub(crate) async fn directory_is_listed_by_name(fixture: SandboxFixture) {
    let workspace = fixture.workspace();
    std::fs::create_dir(workspace.join("dir")).unwrap();
    for (name, contents) in [("b.txt", "four"), (".hidden", ""), ("new\nline", "x")] {
        std::fs::write(workspace.join(name), contents).unwrap();
    }
    std::fs::write(workspace.join(OsStr::from_bytes(b"bad\xff")), "").unwrap();
    symlink("/etc/passwd", workspace.join("link")).unwrap();
    mkfifo(&workspace.join("fifo"), Mode::S_IRWXU).unwrap();

    let listing = fixture.sandbox.list_files(".", 100).await.unwrap();
    let entries: Vec<_> = listing.entries.iter().map(|entry| (entry.name.as_str(), entry.kind)).collect();
    let expected = [
        (".hidden", EntryKind::File),
        ("b.txt", EntryKind::File),
        ("bad\u{fffd}", EntryKind::File),
        ("dir", EntryKind::Directory),
        ("fifo", EntryKind::Other),
        ("link", EntryKind::Link),
        ("new\nline", EntryKind::File),
    ];
    assert_eq!(entries, expected);
    assert_eq!((listing.entries[1].size, listing.truncated), (4, false));

    let first = fixture.sandbox.list_files(".", 2).await.unwrap();
    assert_eq!((first.entries.as_slice(), first.truncated), (&listing.entries[..2], true));
    assert_eq!(fixture.sandbox.list_files("dir", 10).await.unwrap(), Listing::default());
    for (path, expected) in [
        ("b.txt", Code::InvalidArgument),
        ("fifo", Code::InvalidArgument),
        ("missing", Code::FileNotFound),
        ("b.txt/x", Code::FileNotFound),
        ("..", Code::PathNotAllowed),
        ("/proc/self/fd", Code::PathNotAllowed),
        ("", Code::InvalidArgument),
    ] {
        assert_eq!(code(fixture.sandbox.list_files(path, 10).await), expected, "{path}");
    }
}

pub(crate) async fn large_directory_listing_is_truncated(fixture: SandboxFixture) {
    for number in 0..5000 {
        std::fs::write(fixture.workspace().join(format!("{number:05}")), "").unwrap();
    }
    let listing = fixture.sandbox.list_files(".", 100).await.unwrap();
    assert_eq!((listing.entries.len(), listing.truncated), (100, true));
    assert_eq!(listing.entries[99].name, "00099");
    let all = fixture.sandbox.list_files(".", usize::MAX).await.unwrap();
    assert_eq!((all.entries.len(), all.truncated), (5000, false));
}

pub(crate) async fn remove_affects_only_the_named_entry(fixture: SandboxFixture) {
    fixture.create_secret();
    let workspace = fixture.workspace();
    std::fs::create_dir_all(workspace.join("full/empty")).unwrap();
    for name in ["file", "target", "full/x"] {
        std::fs::write(workspace.join(name), "x").unwrap();
    }
    symlink("target", workspace.join("link")).unwrap();
    symlink("../secret", workspace.join("out")).unwrap();
    symlink("..", workspace.join("parent")).unwrap();
    mkfifo(&workspace.join("fifo"), Mode::S_IRWXU).unwrap();
    for path in ["file", "link", "out", "fifo", "full/empty/", "./full/../full/x", "full"] {
        fixture.sandbox.remove_file(path).await.unwrap();
        assert!(std::fs::symlink_metadata(workspace.join(path)).is_err(), "{path}");
    }
    assert_eq!(fixture.read("target").await.unwrap(), b"x");

    fixture.write("kept/x", "x").await.unwrap();
    symlink("kept", workspace.join("to_kept")).unwrap();
    for (path, expected) in [
        ("kept", Code::InvalidArgument),
        ("to_kept/", Code::FileNotFound),
        ("missing", Code::FileNotFound),
        ("target/x", Code::FileNotFound),
        (".", Code::InvalidArgument),
        ("..", Code::InvalidArgument),
        ("kept/..", Code::InvalidArgument),
        ("../secret", Code::PathNotAllowed),
        ("parent/secret", Code::PathNotAllowed),
        ("/etc/passwd", Code::PathNotAllowed),
    ] {
        let error = fixture.sandbox.remove_file(path).await.unwrap_err();
        assert_eq!((error.code(), error.field()), (expected, Some("path")), "{path}");
    }
    assert_eq!(code(fixture.sandbox.remove_file(workspace.to_str().unwrap()).await), Code::InvalidArgument);
    fixture.assert_outside_is_untouched();
    assert!(fixture.outside.path().join("secret").is_file() && workspace.join("kept/x").is_file());
}

/// Root may read everything, so devices must be rejected by kind.
pub(crate) async fn devices_are_not_read(fixture: SandboxFixture) {
    let path = fixture.workspace().join("zero");
    if Uid::effective().is_root() {
        mknod(&path, SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 5)).unwrap();
        assert_eq!(code(fixture.read("zero").await), Code::InvalidArgument);
        assert_eq!(code(fixture.write("zero", "x").await), Code::InvalidArgument);
    } else {
        symlink("/dev/zero", &path).unwrap();
        assert_eq!(code(fixture.read("zero").await), Code::PathNotAllowed);
    }
}

/// Files that a root worker creates belong to the owner of the workspace.
pub(crate) async fn new_files_belong_to_the_owner_of_the_workspace(fixture: SandboxFixture) {
    let workspace = fixture.workspace();
    std::fs::write(workspace.join("theirs"), "old").unwrap();
    let (mut owner, mut other) = (Uid::effective().as_raw(), Uid::effective().as_raw());
    if Uid::effective().is_root() {
        (owner, other) = (12_345, 54_321);
        chown(&workspace, Some(owner), Some(owner)).unwrap();
        chown(workspace.join("theirs"), Some(other), Some(other)).unwrap();
    }
    fixture.write("new/deep/file", "x").await.unwrap();
    fixture.write("theirs", "new").await.unwrap();
    let owner_of = |path: &str| std::fs::metadata(workspace.join(path)).unwrap().uid();
    assert_eq!(["new", "new/deep", "new/deep/file"].map(owner_of), [owner; 3]);
    assert_eq!(owner_of("theirs"), other);
}

/// A small separate file system; `None` where this process may not mount.
struct Mount(PathBuf);

impl Mount {
    fn new(path: PathBuf) -> Option<Self> {
        std::fs::create_dir(&path).unwrap();
        if !Uid::effective().is_root() {
            return None;
        }
        assert!(mount(&["-t", "tmpfs", "-o", "size=64k", "tmpfs"], &path), "cannot mount though root");
        Some(Self(path))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let ended = Command::new("umount").arg("--lazy").arg(&self.0).status();
        assert!(ended.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

fn mount(arguments: &[&str], path: &Path) -> bool {
    Command::new("mount").args(arguments).arg(path).status().unwrap().success()
}

#[expect(clippy::print_stderr, reason = "a skipped test is reported")]
pub(crate) async fn failed_write_on_a_full_disk_keeps_the_old_file(fixture: SandboxFixture) {
    let Some(_mount) = Mount::new(fixture.workspace().join("small")) else {
        eprintln!("skipped: simulating a full disk needs root");
        return;
    };
    fixture.write("small/f", "old").await.unwrap();
    let error = fixture.write("small/f", &"x".repeat(100_000)).await.unwrap_err();
    assert_eq!((error.code(), error.field()), (Code::ToolFailed, Some("path")));
    assert!(error.message().contains("no space is left"), "{error}");
    assert_eq!(fixture.read("small/f").await.unwrap(), b"old");
    let listing = fixture.sandbox.list_files("small", 10).await.unwrap();
    assert_eq!(listing.entries.len(), 1, "{listing:?}");
}

/// Root ignores permissions, but not a read-only mount.
pub(crate) async fn writes_to_a_read_only_directory_are_denied(fixture: SandboxFixture) {
    let path = fixture.workspace().join("fixed");
    let mounted = Mount::new(path.clone());
    fixture.write("fixed/f", "old").await.unwrap();
    if mounted.is_some() {
        assert!(mount(&["-o", "remount,ro"], &path));
    } else {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o555)).unwrap();
    }
    assert_eq!(code(fixture.write("fixed/f", "new").await), Code::PermissionDenied);
    assert_eq!(code(fixture.write("fixed/g/h", "new").await), Code::PermissionDenied);
    assert_eq!(code(fixture.sandbox.remove_file("fixed/f").await), Code::PermissionDenied);
    assert_eq!(fixture.read("fixed/f").await.unwrap(), b"old");
}
