//! Conformance suite: searches.

use std::{
    ffi::OsStr,
    fs::File,
    os::unix::{ffi::OsStrExt, fs::symlink},
    time::{Duration, SystemTime},
};

use nix::{sys::stat::Mode, unistd::mkfifo};
use remuda_domain::{Code, Result};
use remuda_sandbox::{GlobQuery, GlobResult, GrepMatch, GrepMode, GrepQuery, GrepResult};

use crate::{files::Swapper, fixture::SandboxFixture};

impl SandboxFixture {
    /// Creates files, each a second newer than the previous one.
    fn create_files(&self, files: &[(&str, &str)]) {
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for (age, (path, contents)) in files.iter().enumerate() {
            let path = self.workspace().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, contents).unwrap();
            let time = start + Duration::from_secs(age as u64);
            File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
        }
    }

    async fn glob_at(&self, pattern: &str, path: &str) -> Result<GlobResult> {
        let query = GlobQuery { pattern: pattern.into(), path: path.into(), limit: 100 };
        self.sandbox.glob(query).await
    }

    async fn glob(&self, pattern: &str) -> Vec<String> {
        let answer = self.glob_at(pattern, ".").await.unwrap();
        assert_eq!((answer.paths.len(), answer.incomplete), (answer.total, false));
        answer.paths
    }

    async fn grep(&self, query: GrepQuery) -> GrepResult {
        self.sandbox.grep(query).await.unwrap()
    }

    async fn lines(&self, query: GrepQuery) -> Vec<String> {
        let answer = self.grep(query).await;
        assert!(!answer.truncated, "{answer:?}");
        answer.matches.iter().map(shown).collect()
    }

    async fn rejection(&self, query: GrepQuery) -> (Code, String) {
        let error = self.sandbox.grep(query).await.unwrap_err();
        assert!(error.message().len() < 500 && !error.message().contains('\n'), "{error}");
        (error.code(), error.field().unwrap_or_default().to_owned())
    }
}

fn shown(found: &GrepMatch) -> String {
    let separator = if found.context { '-' } else { ':' };
    let line = found.line.map(|line| format!("{separator}{line}")).unwrap_or_default();
    format!("{}{line}{separator}{}", found.path, found.text)
}

fn query(pattern: &str) -> GrepQuery {
    GrepQuery {
        pattern: pattern.into(),
        path: ".".into(),
        glob: None,
        file_type: None,
        ignore_case: false,
        multiline: false,
        before: 0,
        after: 0,
        mode: GrepMode::Content,
        limit: None,
        offset: 0,
    }
}

pub(crate) async fn glob_finds_the_newest_first(fixture: SandboxFixture) {
    fixture.create_files(&[
        ("old.rs", ""),
        ("src/newer.rs", ""),
        ("src/deep/er/newest.rs", ""),
        ("src/other.txt", ""),
    ]);
    assert_eq!(fixture.glob("**/*.rs").await, ["src/deep/er/newest.rs", "src/newer.rs", "old.rs"]);
    assert_eq!(fixture.glob("*.rs").await, ["old.rs"]);
    assert_eq!(fixture.glob("src/*.{rs,txt}").await, ["src/other.txt", "src/newer.rs"]);
    assert_eq!(fixture.glob("**/**/**/newest.rs").await, ["src/deep/er/newest.rs"]);
    assert_eq!(fixture.glob(&format!("{}*.txt", "**/".repeat(300))).await, ["src/other.txt"]);
    assert!(fixture.glob("src").await.is_empty(), "directories are not files");
    let beneath = fixture.glob_at("**/*.rs", "src").await.unwrap();
    assert_eq!(beneath.paths, ["src/deep/er/newest.rs", "src/newer.rs"]);
    symlink("src/deep", fixture.workspace().join("link")).unwrap();
    assert_eq!(fixture.glob_at("er/*", "link").await.unwrap().paths, ["src/deep/er/newest.rs"]);
    assert_eq!(fixture.glob_at("*.rs", "src/../src").await.unwrap().paths, ["src/newer.rs"]);

    let one = GlobQuery { pattern: "**".into(), path: ".".into(), limit: 1 };
    let answer = fixture.sandbox.glob(one).await.unwrap();
    assert_eq!((answer.paths, answer.total), (vec!["src/other.txt".to_owned()], 4));
}

pub(crate) async fn glob_skips_hidden_and_ignored_files_unless_named(fixture: SandboxFixture) {
    fixture.create_files(&[
        (".gitignore", "target/\n*.log\n"),
        (".env", ""),
        (".git/config", ""),
        (".github/ci.yml", ""),
        ("src/a.rs", ""),
        ("src/.hidden/b.rs", ""),
        ("target/debug/c.rs", ""),
        ("build.log", ""),
    ]);
    assert_eq!(fixture.glob("**").await, ["src/a.rs"]);
    assert_eq!(fixture.glob("**/*.rs").await, ["src/a.rs"]);
    assert_eq!(fixture.glob("target/**").await, ["target/debug/c.rs"]);
    assert_eq!(fixture.glob("build.log").await, ["build.log"]);
    assert!(fixture.glob("*.log").await.is_empty());
    assert_eq!(fixture.glob(".*").await, [".env", ".gitignore"]);
    assert_eq!(fixture.glob(".github/*").await, [".github/ci.yml"]);
    assert_eq!(fixture.glob("**/.hidden/*.rs").await, ["src/.hidden/b.rs"]);
    assert!(fixture.glob(".git/*").await.is_empty());
}

pub(crate) async fn invalid_queries_are_rejected(fixture: SandboxFixture) {
    fixture.create_files(&[("file", "x")]);
    mkfifo(&fixture.workspace().join("fifo"), Mode::S_IRWXU).unwrap();
    for (pattern, path, code, field) in [
        ("[", ".", Code::InvalidArgument, "pattern"),
        ("", ".", Code::InvalidArgument, "pattern"),
        ("../**", ".", Code::InvalidArgument, "pattern"),
        ("/etc/*", ".", Code::InvalidArgument, "pattern"),
        ("*", "file", Code::InvalidArgument, "path"),
        ("*", "fifo", Code::InvalidArgument, "path"),
        ("*", "missing", Code::FileNotFound, "path"),
        ("*", "..", Code::PathNotAllowed, "path"),
        ("*", "/etc", Code::PathNotAllowed, "path"),
        ("*", "", Code::InvalidArgument, "path"),
    ] {
        let error = fixture.glob_at(pattern, path).await.unwrap_err();
        assert_eq!((error.code(), error.field()), (code, Some(field)), "{pattern} {path}");
    }
    for pattern in ["", "(", "a{99999999}", r"(\w{100}){100}", "a\\nb", "\\x00", &"x".repeat(9000), "(?<a"] {
        let rejection = fixture.rejection(query(pattern)).await;
        assert_eq!(rejection, (Code::InvalidArgument, "pattern".into()), "{pattern}");
    }
    for (path, code) in
        [("fifo", Code::InvalidArgument), ("missing", Code::FileNotFound), ("../x", Code::PathNotAllowed)]
    {
        let rejection = fixture.rejection(GrepQuery { path: path.into(), ..query("x") }).await;
        assert_eq!(rejection, (code, "path".into()), "{path}");
    }
    let rejection = fixture.rejection(GrepQuery { glob: Some("[".into()), ..query("x") }).await;
    assert_eq!(rejection, (Code::InvalidArgument, "glob".into()));
    let rejection = fixture.rejection(GrepQuery { file_type: Some("klingon\n".into()), ..query("x") }).await;
    assert_eq!(rejection, (Code::InvalidArgument, "file_type".into()));
}

pub(crate) async fn grep_shows_lines_and_context(fixture: SandboxFixture) {
    fixture.create_files(&[
        ("a.txt", "one\ntwo\nthree\nfour\nfive\n"),
        ("b/c.txt", "THREE\r\ncaf\u{e9} three"),
        ("d", ""),
    ]);
    assert_eq!(fixture.lines(query("three")).await, ["a.txt:3:three", "b/c.txt:2:café three"]);
    assert_eq!(
        fixture.lines(GrepQuery { ignore_case: true, ..query("^THREE") }).await,
        ["a.txt:3:three", "b/c.txt:1:THREE"]
    );
    assert_eq!(
        fixture.lines(GrepQuery { before: 1, after: 2, path: "a.txt".into(), ..query("three") }).await,
        ["a.txt-2-two", "a.txt:3:three", "a.txt-4-four", "a.txt-5-five"]
    );
    let part =
        fixture.grep(GrepQuery { offset: 1, limit: Some(2), path: "a.txt".into(), ..query("o") }).await;
    assert_eq!(part.matches.iter().map(shown).collect::<Vec<_>>(), ["a.txt:2:two", "a.txt:4:four"]);
    assert!(!part.truncated);
    let part = fixture.grep(GrepQuery { limit: Some(1), ..query("o") }).await;
    assert_eq!((part.matches.len(), part.truncated), (1, true));
    assert!(fixture.lines(query("nowhere")).await.is_empty());
    assert_eq!(fixture.lines(GrepQuery { multiline: true, ..query("two.*four") }).await.len(), 3);
    assert!(fixture.lines(query("two.*four")).await.is_empty());
}

pub(crate) async fn grep_lists_files_and_counts(fixture: SandboxFixture) {
    fixture.create_files(&[("old", "x\nx\n"), ("mid/f", "x"), ("new", "x x\n"), ("none", "y")]);
    let names = GrepQuery { mode: GrepMode::FilesWithMatches, ..query("x") };
    assert_eq!(fixture.lines(names.clone()).await, ["new:", "mid/f:", "old:"]);
    let part = fixture.grep(GrepQuery { offset: 1, limit: Some(1), ..names }).await;
    assert_eq!(
        (part.matches.iter().map(shown).collect::<Vec<_>>(), part.truncated),
        (vec!["mid/f:".into()], true)
    );
    let counts = GrepQuery { mode: GrepMode::Count, ..query("x") };
    assert_eq!(fixture.lines(counts).await, ["mid/f:1", "new:1", "old:2"]);
}

/// Like ripgrep's defaults, except that a `.gitignore` needs no repository.
pub(crate) async fn grep_applies_the_ignore_rules_of_ripgrep(fixture: SandboxFixture) {
    fixture.create_files(&[
        (".gitignore", "/top.txt\n*.log\nbuild/\n!keep.log\n"),
        (".hidden/f", "x"),
        (".git/f", "x"),
        ("sub/.ignore", "!seen.log\nunseen\n"),
        ("sub/seen.log", "x"),
        ("sub/unseen", "x"),
        ("sub/top.txt", "x"),
        ("top.txt", "x"),
        ("a.log", "x"),
        ("keep.log", "x"),
        ("build/f", "x"),
        ("a.rs", "x"),
        ("repo/.git/info/exclude", "excluded\n"),
        ("repo/excluded", "x"),
        ("repo/b.log", "x"),
    ]);
    let names = GrepQuery { mode: GrepMode::Count, ..query("x") };
    let found = ["a.rs:1", "keep.log:1", "repo/b.log:1", "sub/seen.log:1", "sub/top.txt:1"];
    assert_eq!(fixture.lines(names.clone()).await, found);
    let with = |glob: &str| GrepQuery { glob: Some(glob.into()), ..names.clone() };
    assert_eq!(fixture.lines(with("*.rs")).await, ["a.rs:1"]);
    assert_eq!(
        fixture.lines(with("*.log")).await,
        ["a.log:1", "keep.log:1", "repo/b.log:1", "sub/seen.log:1"]
    );
    assert_eq!(fixture.lines(with("!*.log")).await, ["a.rs:1", "sub/top.txt:1"]);
    assert_eq!(fixture.lines(with("sub/**")).await, ["sub/seen.log:1", "sub/top.txt:1", "sub/unseen:1"]);
    let rust = GrepQuery { file_type: Some("rust".into()), ..names.clone() };
    assert_eq!(fixture.lines(rust).await, ["a.rs:1"]);
    // An explicitly named directory or file is searched; rules of parents still apply beneath it.
    for (path, found) in [
        ("build", vec!["build/f:1"]),
        (".hidden/f", vec![".hidden/f:1"]),
        ("sub", vec!["sub/seen.log:1", "sub/top.txt:1"]),
    ] {
        assert_eq!(fixture.lines(GrepQuery { path: path.into(), ..names.clone() }).await, found, "{path}");
    }
}

/// Binary files, special files, sparse files and links.
pub(crate) async fn special_and_binary_files_are_skipped(fixture: SandboxFixture) {
    fixture.create_secret();
    let workspace = fixture.workspace();
    fixture.create_files(&[("text", "needle\n"), ("new\nline", "needle\n")]);
    std::fs::write(workspace.join(OsStr::from_bytes(b"bad\xff")), "needle\n").unwrap();
    std::fs::write(workspace.join("binary"), b"needle\n\0needle\n").unwrap();
    std::fs::write(workspace.join("late"), [b"needle\n".as_slice(), &[b'x'; 300_000], b"\0"].concat())
        .unwrap();
    std::fs::write(workspace.join("latin1"), b"caf\xe9 needle\n").unwrap();
    let utf16: Vec<u8> = "\u{feff}needle\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    std::fs::write(workspace.join("utf16"), utf16).unwrap();
    File::create(workspace.join("sparse")).unwrap().set_len(10 << 30).unwrap();
    mkfifo(&workspace.join("fifo"), Mode::S_IRWXU).unwrap();
    symlink("text", workspace.join("link")).unwrap();
    symlink("../secret", workspace.join("out")).unwrap();
    symlink(".", workspace.join("loop")).unwrap();
    symlink("/proc/self", workspace.join("proc")).unwrap();
    let found = [
        "bad\u{fffd}:1:needle",
        "latin1:1:caf\u{fffd} needle",
        "new\nline:1:needle",
        "text:1:needle",
        "utf16:1:needle",
    ];
    assert_eq!(fixture.lines(query("needle|secret")).await, found);
    assert_eq!(fixture.glob("**").await.len(), 8);
}

/// Expensive searches finish or are given up within bounds.
pub(crate) async fn expensive_searches_are_bounded(fixture: SandboxFixture) {
    fixture.create_files(&[("evil", &format!("{}!", "a".repeat(200_000)))]);
    assert!(fixture.lines(query("(a+)+$")).await.is_empty());
    assert!(fixture.lines(query("(a|a)*(a|aa)+b")).await.is_empty());
    let long = fixture.lines(query("a!$")).await;
    assert!(long[0].len() < 5000, "{}", long[0].len());

    // Expensive patterns are tried on shorter lines only.
    let costly = fixture.grep(query("[ab]*a[ab]{8000}c")).await;
    assert!(costly.matches.is_empty() && costly.truncated);

    fixture.create_files(&[("endless", &"y".repeat(5 << 20))]);
    let answer = fixture.grep(GrepQuery { mode: GrepMode::Count, ..query("a|y") }).await;
    assert_eq!(answer.matches.iter().map(shown).collect::<Vec<_>>(), ["evil:1"]);
    assert!(answer.truncated, "an overlong line is omitted and reported as truncation");

    fixture.create_files(&[("many", &format!("{}\n", "z".repeat(1000)).repeat(3000))]);
    let answer = fixture.grep(GrepQuery { path: "many".into(), ..query("z") }).await;
    assert!(answer.truncated && (900..1050).contains(&answer.matches.len()), "{}", answer.matches.len());

    std::fs::create_dir_all(fixture.workspace().join("d/".repeat(200))).unwrap();
    fixture.create_files(&[("d/f", ""), (&format!("{}f", "d/".repeat(200)), "")]);
    let answer = fixture.glob_at("**/f", ".").await.unwrap();
    assert_eq!((answer.paths.as_slice(), answer.incomplete), (["d/f".to_owned()].as_slice(), true));
}

pub(crate) async fn thousands_of_files_are_searched(fixture: SandboxFixture) {
    for directory in 0..50 {
        let path = fixture.workspace().join(format!("{directory:02}"));
        std::fs::create_dir(&path).unwrap();
        for file in 0..100 {
            std::fs::write(path.join(format!("{file:02}")), "x\n").unwrap();
        }
    }
    let answer = fixture.glob_at("**", ".").await.unwrap();
    assert_eq!((answer.paths.len(), answer.total, answer.incomplete), (100, 5000, false));
    let counts = fixture.grep(GrepQuery { mode: GrepMode::Count, offset: 4990, ..query("x") }).await;
    assert_eq!((counts.matches.len(), counts.matches[9].path.as_str()), (10, "49/99"));
}

/// Nothing outside is found while directories are swapped with links.
pub(crate) async fn swapped_directories_are_not_searched(fixture: SandboxFixture) {
    let swapper = Swapper::start(&fixture);
    fixture.write("inside", "secret").await.unwrap();
    for _ in 0..200 {
        let found = fixture.grep(query("secret")).await;
        assert_eq!(found.matches.iter().map(shown).collect::<Vec<_>>(), ["inside:1:secret"]);
        assert_eq!(fixture.glob("**").await, ["inside"]);
        if let Ok(found) = fixture.sandbox.grep(GrepQuery { path: "d".into(), ..query("secret") }).await {
            assert!(found.matches.is_empty(), "{found:?}");
        }
    }
    drop(swapper);
}
