//! What every backend finds.

use std::{
    ffi::OsStr,
    fs::File,
    os::unix::{ffi::OsStrExt, fs::symlink},
    time::{Duration, SystemTime},
};

use nix::{sys::stat::Mode, unistd::mkfifo};
use remuda_domain::{Code, Result};
use remuda_sandbox::{GlobAnswer, GlobQuery, GrepAnswer, GrepMatch, GrepMode, GrepQuery};

use crate::{bench::Bench, files::Swapper};

impl Bench {
    /// Makes files, each a second newer than the one before.
    fn put(&self, files: &[(&str, &str)]) {
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for (age, (path, contents)) in files.iter().enumerate() {
            let path = self.workspace().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, contents).unwrap();
            let time = start + Duration::from_secs(age as u64);
            File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
        }
    }

    async fn glob_at(&self, pattern: &str, path: &str) -> Result<GlobAnswer> {
        let query = GlobQuery { pattern: pattern.into(), path: path.into(), limit: 100 };
        self.sandbox.glob(query).await
    }

    async fn glob(&self, pattern: &str) -> Vec<String> {
        let answer = self.glob_at(pattern, ".").await.unwrap();
        assert_eq!((answer.paths.len(), answer.incomplete), (answer.total, false));
        answer.paths
    }

    async fn grep(&self, query: GrepQuery) -> GrepAnswer {
        self.sandbox.grep(query).await.unwrap()
    }

    async fn lines(&self, query: GrepQuery) -> Vec<String> {
        let answer = self.grep(query).await;
        assert!(!answer.truncated, "{answer:?}");
        answer.matches.iter().map(shown).collect()
    }

    async fn refusal(&self, query: GrepQuery) -> (Code, String) {
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

pub(crate) async fn glob_finds_the_newest_first(bench: Bench) {
    bench.put(&[("old.rs", ""), ("src/newer.rs", ""), ("src/deep/er/newest.rs", ""), ("src/other.txt", "")]);
    assert_eq!(bench.glob("**/*.rs").await, ["src/deep/er/newest.rs", "src/newer.rs", "old.rs"]);
    assert_eq!(bench.glob("*.rs").await, ["old.rs"]);
    assert_eq!(bench.glob("src/*.{rs,txt}").await, ["src/other.txt", "src/newer.rs"]);
    assert_eq!(bench.glob("**/**/**/newest.rs").await, ["src/deep/er/newest.rs"]);
    assert_eq!(bench.glob(&format!("{}*.txt", "**/".repeat(300))).await, ["src/other.txt"]);
    assert!(bench.glob("src").await.is_empty(), "directories are not files");
    let beneath = bench.glob_at("**/*.rs", "src").await.unwrap();
    assert_eq!(beneath.paths, ["src/deep/er/newest.rs", "src/newer.rs"]);
    symlink("src/deep", bench.workspace().join("way")).unwrap();
    assert_eq!(bench.glob_at("er/*", "way").await.unwrap().paths, ["src/deep/er/newest.rs"]);
    assert_eq!(bench.glob_at("*.rs", "src/../src").await.unwrap().paths, ["src/newer.rs"]);

    let one = GlobQuery { pattern: "**".into(), path: ".".into(), limit: 1 };
    let answer = bench.sandbox.glob(one).await.unwrap();
    assert_eq!((answer.paths, answer.total), (vec!["src/other.txt".to_owned()], 4));
}

pub(crate) async fn glob_leaves_out_what_is_not_named(bench: Bench) {
    bench.put(&[
        (".gitignore", "target/\n*.log\n"),
        (".env", ""),
        (".git/config", ""),
        (".github/ci.yml", ""),
        ("src/a.rs", ""),
        ("src/.hidden/b.rs", ""),
        ("target/debug/c.rs", ""),
        ("build.log", ""),
    ]);
    assert_eq!(bench.glob("**").await, ["src/a.rs"]);
    assert_eq!(bench.glob("**/*.rs").await, ["src/a.rs"]);
    assert_eq!(bench.glob("target/**").await, ["target/debug/c.rs"]);
    assert_eq!(bench.glob("build.log").await, ["build.log"]);
    assert!(bench.glob("*.log").await.is_empty());
    assert_eq!(bench.glob(".*").await, [".env", ".gitignore"]);
    assert_eq!(bench.glob(".github/*").await, [".github/ci.yml"]);
    assert_eq!(bench.glob("**/.hidden/*.rs").await, ["src/.hidden/b.rs"]);
    assert!(bench.glob(".git/*").await.is_empty());
}

pub(crate) async fn bad_questions_are_refused(bench: Bench) {
    bench.put(&[("file", "x")]);
    mkfifo(&bench.workspace().join("fifo"), Mode::S_IRWXU).unwrap();
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
        let error = bench.glob_at(pattern, path).await.unwrap_err();
        assert_eq!((error.code(), error.field()), (code, Some(field)), "{pattern} {path}");
    }
    for pattern in ["", "(", "a{99999999}", r"(\w{100}){100}", "a\\nb", "\\x00", &"x".repeat(9000), "(?<a"] {
        let refusal = bench.refusal(query(pattern)).await;
        assert_eq!(refusal, (Code::InvalidArgument, "pattern".into()), "{pattern}");
    }
    for (path, code) in
        [("fifo", Code::InvalidArgument), ("missing", Code::FileNotFound), ("../x", Code::PathNotAllowed)]
    {
        let refusal = bench.refusal(GrepQuery { path: path.into(), ..query("x") }).await;
        assert_eq!(refusal, (code, "path".into()), "{path}");
    }
    let refusal = bench.refusal(GrepQuery { glob: Some("[".into()), ..query("x") }).await;
    assert_eq!(refusal, (Code::InvalidArgument, "glob".into()));
    let refusal = bench.refusal(GrepQuery { file_type: Some("klingon\n".into()), ..query("x") }).await;
    assert_eq!(refusal, (Code::InvalidArgument, "file_type".into()));
}

pub(crate) async fn grep_shows_lines_and_context(bench: Bench) {
    bench.put(&[
        ("a.txt", "one\ntwo\nthree\nfour\nfive\n"),
        ("b/c.txt", "THREE\r\ncaf\u{e9} three"),
        ("d", ""),
    ]);
    assert_eq!(bench.lines(query("three")).await, ["a.txt:3:three", "b/c.txt:2:café three"]);
    assert_eq!(
        bench.lines(GrepQuery { ignore_case: true, ..query("^THREE") }).await,
        ["a.txt:3:three", "b/c.txt:1:THREE"]
    );
    assert_eq!(
        bench.lines(GrepQuery { before: 1, after: 2, path: "a.txt".into(), ..query("three") }).await,
        ["a.txt-2-two", "a.txt:3:three", "a.txt-4-four", "a.txt-5-five"]
    );
    let part = bench.grep(GrepQuery { offset: 1, limit: Some(2), path: "a.txt".into(), ..query("o") }).await;
    assert_eq!(part.matches.iter().map(shown).collect::<Vec<_>>(), ["a.txt:2:two", "a.txt:4:four"]);
    assert!(!part.truncated);
    let part = bench.grep(GrepQuery { limit: Some(1), ..query("o") }).await;
    assert_eq!((part.matches.len(), part.truncated), (1, true));
    assert!(bench.lines(query("nowhere")).await.is_empty());
    assert_eq!(bench.lines(GrepQuery { multiline: true, ..query("two.*four") }).await.len(), 3);
    assert!(bench.lines(query("two.*four")).await.is_empty());
}

pub(crate) async fn grep_names_and_counts_files(bench: Bench) {
    bench.put(&[("old", "x\nx\n"), ("mid/f", "x"), ("new", "x x\n"), ("none", "y")]);
    let names = GrepQuery { mode: GrepMode::FilesWithMatches, ..query("x") };
    assert_eq!(bench.lines(names.clone()).await, ["new:", "mid/f:", "old:"]);
    let part = bench.grep(GrepQuery { offset: 1, limit: Some(1), ..names }).await;
    assert_eq!(
        (part.matches.iter().map(shown).collect::<Vec<_>>(), part.truncated),
        (vec!["mid/f:".into()], true)
    );
    let counts = GrepQuery { mode: GrepMode::Count, ..query("x") };
    assert_eq!(bench.lines(counts).await, ["mid/f:1", "new:1", "old:2"]);
}

/// As ripgrep does by default, except that a `.gitignore` needs no repository.
pub(crate) async fn grep_leaves_out_what_ripgrep_does(bench: Bench) {
    bench.put(&[
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
    assert_eq!(bench.lines(names.clone()).await, found);
    let with = |glob: &str| GrepQuery { glob: Some(glob.into()), ..names.clone() };
    assert_eq!(bench.lines(with("*.rs")).await, ["a.rs:1"]);
    assert_eq!(bench.lines(with("*.log")).await, ["a.log:1", "keep.log:1", "repo/b.log:1", "sub/seen.log:1"]);
    assert_eq!(bench.lines(with("!*.log")).await, ["a.rs:1", "sub/top.txt:1"]);
    assert_eq!(bench.lines(with("sub/**")).await, ["sub/seen.log:1", "sub/top.txt:1", "sub/unseen:1"]);
    let rust = GrepQuery { file_type: Some("rust".into()), ..names.clone() };
    assert_eq!(bench.lines(rust).await, ["a.rs:1"]);
    // Who names a directory or a file means it; what is above still counts for what is beneath.
    for (path, found) in [
        ("build", vec!["build/f:1"]),
        (".hidden/f", vec![".hidden/f:1"]),
        ("sub", vec!["sub/seen.log:1", "sub/top.txt:1"]),
    ] {
        assert_eq!(bench.lines(GrepQuery { path: path.into(), ..names.clone() }).await, found, "{path}");
    }
}

/// Files that are no text, or no files, or have no end.
pub(crate) async fn odd_files_are_no_trouble(bench: Bench) {
    bench.put_secret();
    let workspace = bench.workspace();
    bench.put(&[("text", "needle\n"), ("new\nline", "needle\n")]);
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
    assert_eq!(bench.lines(query("needle|secret")).await, found);
    assert_eq!(bench.glob("**").await.len(), 8);
}

/// Hard work is done, or given up, but not forever.
pub(crate) async fn searches_are_bounded(bench: Bench) {
    bench.put(&[("evil", &format!("{}!", "a".repeat(200_000)))]);
    assert!(bench.lines(query("(a+)+$")).await.is_empty());
    assert!(bench.lines(query("(a|a)*(a|aa)+b")).await.is_empty());
    let long = bench.lines(query("a!$")).await;
    assert!(long[0].len() < 5000, "{}", long[0].len());

    // Costly patterns are tried on shorter lines only.
    let costly = bench.grep(query("[ab]*a[ab]{8000}c")).await;
    assert!(costly.matches.is_empty() && costly.truncated);

    bench.put(&[("endless", &"y".repeat(5 << 20))]);
    let answer = bench.grep(GrepQuery { mode: GrepMode::Count, ..query("a|y") }).await;
    assert_eq!(answer.matches.iter().map(shown).collect::<Vec<_>>(), ["evil:1"]);
    assert!(answer.truncated, "a line that is too long is left out, and that is said");

    bench.put(&[("many", &format!("{}\n", "z".repeat(1000)).repeat(3000))]);
    let answer = bench.grep(GrepQuery { path: "many".into(), ..query("z") }).await;
    assert!(answer.truncated && (900..1050).contains(&answer.matches.len()), "{}", answer.matches.len());

    std::fs::create_dir_all(bench.workspace().join("d/".repeat(200))).unwrap();
    bench.put(&[("d/f", ""), (&format!("{}f", "d/".repeat(200)), "")]);
    let answer = bench.glob_at("**/f", ".").await.unwrap();
    assert_eq!((answer.paths.as_slice(), answer.incomplete), (["d/f".to_owned()].as_slice(), true));
}

pub(crate) async fn thousands_of_files(bench: Bench) {
    for directory in 0..50 {
        let path = bench.workspace().join(format!("{directory:02}"));
        std::fs::create_dir(&path).unwrap();
        for file in 0..100 {
            std::fs::write(path.join(format!("{file:02}")), "x\n").unwrap();
        }
    }
    let answer = bench.glob_at("**", ".").await.unwrap();
    assert_eq!((answer.paths.len(), answer.total, answer.incomplete), (100, 5000, false));
    let counts = bench.grep(GrepQuery { mode: GrepMode::Count, offset: 4990, ..query("x") }).await;
    assert_eq!((counts.matches.len(), counts.matches[9].path.as_str()), (10, "49/99"));
}

/// Nothing outside is seen, whatever the directories turn into meanwhile.
pub(crate) async fn swapped_directories_are_not_searched(bench: Bench) {
    let swapper = Swapper::start(&bench);
    bench.write("inside", "secret").await.unwrap();
    for _ in 0..200 {
        let found = bench.grep(query("secret")).await;
        assert_eq!(found.matches.iter().map(shown).collect::<Vec<_>>(), ["inside:1:secret"]);
        assert_eq!(bench.glob("**").await, ["inside"]);
        if let Ok(found) = bench.sandbox.grep(GrepQuery { path: "d".into(), ..query("secret") }).await {
            assert!(found.matches.is_empty(), "{found:?}");
        }
    }
    drop(swapper);
}
