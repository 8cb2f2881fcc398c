//! Tests of the guard: this test starts itself as a worker and as its guard, and kills them.
//!
//! It has no harness, because a guard must be a single-threaded process. It also runs the command suite with
//! a guard.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests fail by panicking, and this one is its own harness"
)]

#[path = "it/commands.rs"]
mod commands;
#[path = "it/fixture.rs"]
#[expect(dead_code, reason = "other suites use more of it")]
mod fixture;

use std::{
    collections::HashSet,
    process::{ExitCode, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use remuda_domain::Code;
use remuda_sandbox::{Backend, Command, ExecStatus, Guard, LocalBackend, LocalOptions, WriteMode, guard};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Child,
};

use fixture::{LONG, SandboxFixture, code, marked_processes, wait_for};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        // Before any runtime, as `guard::run` requires.
        Some("guard") => return guard::run(),
        Some("--list") => return ExitCode::SUCCESS,
        _ => {}
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match arguments.first().map(String::as_str) {
        Some("worker") => runtime.block_on(worker(arguments.get(1).map(String::as_str))),
        _ => runtime.block_on(tests(&arguments)),
    }
    ExitCode::SUCCESS
}

async fn tests(filters: &[String]) {
    let (begun, mut passed) = (Instant::now(), 0);
    macro_rules! run {
        ($($name:path,)*) => {$(
            let name = stringify!($name).replace(' ', "");
            if filters.iter().all(|filter| filter.starts_with('-') || name.contains(filter)) {
                let start = Instant::now();
                $name().await;
                println!("test {name} ... ok ({:?})", start.elapsed());
                passed += 1;
            }
        )*};
    }
    run![
        killed_worker_leaves_no_process,
        stopped_worker_leaves_no_tool_process,
        termination_signals_do_not_end_the_guard,
        guard_ends_with_its_worker,
        nothing_starts_after_the_watchdog_expired,
        dead_guard_is_replaced,
        program_that_is_not_a_guard_is_rejected,
        spare_supervisor_ends_with_its_sandbox_or_backend,
        overhead_of_the_guard,
    ];
    macro_rules! run_suite {
        ($($name:ident,)*) => {$(
            async fn $name() {
                commands::$name(SandboxFixture::new(&backend().await).await).await;
            }
        )* run![$($name,)*]};
    }
    run_suite![
        exit_code_and_output_streams_are_reported,
        argv_is_not_interpreted,
        missing_program_fails_or_exits_with_127,
        signal_is_reported,
        environment_contains_only_allowed_variables,
        working_directory_must_be_in_the_workspace,
        invalid_commands_are_rejected,
        stdin_is_empty_by_default,
        timeout_kills_grandchildren,
        timeout_ends_a_process_that_ignores_sigterm,
        cancel_kills_within_a_second,
        cancelled_command_never_starts,
        dropping_the_call_kills_the_command,
        large_output_is_bounded,
        endless_output_ends_with_the_timeout,
        background_child_does_not_outlive_the_call,
        daemon_does_not_outlive_the_call,
        usage_is_reported,
        stdin_is_delivered,
        long_output_is_spilled_to_a_file,
        output_is_not_spilled_outside_the_workspace,
        invalid_utf8_and_nul_are_replaced,
        live_output_arrives_before_the_end,
        many_commands_run_concurrently,
    ];
    // In the format of the standard harness, for tools that parse it.
    let took = begun.elapsed().as_secs_f64();
    println!(
        "\ntest result: ok. {passed} passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in {took:.2}s"
    );
}

async fn start_guard() -> Arc<Guard> {
    Guard::start(std::env::current_exe().unwrap(), vec!["guard".into()]).await.unwrap()
}

async fn backend() -> LocalBackend {
    LocalBackend::new(LocalOptions { guard: Some(start_guard().await), ..LocalOptions::default() })
}

/// Whether a process runs. Zombies do not count: their parent has not reaped them.
fn is_process_alive(process: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| {
        let state = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().next());
        !matches!(state, Some("Z" | "X"))
    })
}

/// A worker with one busy tool. Prints the mark of the tool's processes and the guard's process id.
async fn worker(feed: Option<&str>) {
    let guard = start_guard().await;
    let backend =
        LocalBackend::new(LocalOptions { guard: Some(Arc::clone(&guard)), ..LocalOptions::default() });
    let fixture = SandboxFixture::new(&backend).await;
    if feed.is_some() {
        guard.feed_watchdog(Duration::from_millis(500));
    }
    let script = "(setsid sleep 1000 &); (sleep 1000; :) & echo > begun; sleep 1000";
    let run = fixture.exec(Command::shell(script, LONG * 10));
    let say = async {
        fixture.wait_for_file("begun").await;
        println!("{} {}", fixture.mark, guard.id());
        tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()))
            .await
            .unwrap()
            .unwrap();
    };
    tokio::select! {
        result = run => panic!("the command ended: {result:?}"),
        () = say => {}
    }
}

struct Worker {
    child: Child,
    id: Pid,
    /// Mark of its tool's processes.
    tool: String,
    guard: i32,
    /// Holds the workspace that a killed worker leaves behind.
    _temporary: TempDir,
}

impl Worker {
    async fn start(arguments: &[&str]) -> Self {
        let temporary = TempDir::new().unwrap();
        let mut child = tokio::process::Command::new(std::env::current_exe().unwrap())
            .arg("worker")
            .args(arguments)
            .env("TMPDIR", temporary.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).await.unwrap();
        let (tool, guard) = line.trim().split_once(' ').unwrap();
        let id = Pid::from_raw(child.id().unwrap().try_into().unwrap());
        let (tool, guard) = (tool.to_owned(), guard.parse().unwrap());
        let worker = Self { child, id, tool, guard, _temporary: temporary };
        assert!(worker.tool_runs() && is_process_alive(worker.guard));
        worker
    }

    fn tool_runs(&self) -> bool {
        !marked_processes(&self.tool).is_empty()
    }

    async fn assert_no_process_left(&self) {
        wait_for(|| !self.tool_runs()).await;
        wait_for(|| !is_process_alive(self.guard)).await;
    }
}

async fn killed_worker_leaves_no_process() {
    let worker = Worker::start(&[]).await;
    kill(worker.id, Signal::SIGKILL).unwrap();
    worker.assert_no_process_left().await;
}

async fn stopped_worker_leaves_no_tool_process() {
    let mut worker = Worker::start(&["fed"]).await;
    kill(worker.id, Signal::SIGSTOP).unwrap();
    wait_for(|| !worker.tool_runs()).await;
    assert!(is_process_alive(worker.guard));
    worker.child.kill().await.unwrap();
    worker.assert_no_process_left().await;
}

async fn termination_signals_do_not_end_the_guard() {
    let mut worker = Worker::start(&[]).await;
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
        kill(Pid::from_raw(worker.guard), signal).unwrap();
    }
    let guard = Some(Pid::from_raw(worker.guard));
    assert_eq!((nix::unistd::getsid(guard).ok(), nix::unistd::getpgid(guard).ok()), (guard, guard));
    assert!(is_process_alive(worker.guard) && worker.tool_runs());
    worker.child.kill().await.unwrap();
    worker.assert_no_process_left().await;
}

async fn guard_ends_with_its_worker() {
    let mut worker = Worker::start(&[]).await;
    drop(worker.child.stdin.take());
    assert!(worker.child.wait().await.unwrap().success());
    worker.assert_no_process_left().await;
}

/// A worker that was stopped for too long and continues as if nothing had happened.
async fn nothing_starts_after_the_watchdog_expired() {
    let guard = start_guard().await;
    let backend =
        LocalBackend::new(LocalOptions { guard: Some(Arc::clone(&guard)), ..LocalOptions::default() });
    let fixture = SandboxFixture::new(&backend).await;
    guard.feed_watchdog(Duration::ZERO);
    for command in
        [Command::shell("touch began", LONG), Command::argv(vec!["touch".into(), "began".into()], LONG)]
    {
        assert_eq!(code(fixture.exec(command).await), Code::OwnershipLost);
    }
    let wait_for_file = fixture.sandbox.write_file("began", b"x".to_vec(), WriteMode::Overwrite).await;
    assert_eq!(code(wait_for_file), Code::OwnershipLost);
    assert!(!fixture.workspace().join("began").try_exists().unwrap());
    guard.feed_watchdog(LONG);
    assert_eq!(fixture.shell("echo again").await.stdout.text, "again\n");
}

async fn dead_guard_is_replaced() {
    let guard = start_guard().await;
    let backend =
        LocalBackend::new(LocalOptions { guard: Some(Arc::clone(&guard)), ..LocalOptions::default() });
    let fixture = SandboxFixture::new(&backend).await;
    let first = i32::try_from(guard.id()).unwrap();
    let long = fixture.exec(Command::shell("echo > begun; while ! [ -e go ]; do sleep 0.01; done", LONG));
    let meanwhile = async {
        fixture.wait_for_file("begun").await;
        kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
        wait_for(|| !is_process_alive(first)).await;
        assert_eq!(fixture.shell("echo still").await.stdout.text, "still\n");
        assert_ne!(i32::try_from(guard.id()).unwrap(), first);
        assert!(!fixture.alive().is_empty());
        fixture.shell("touch go").await;
    };
    let (result, ()) = tokio::join!(long, meanwhile);
    assert_eq!(result.unwrap().status, ExecStatus::Exited(0));
}

async fn program_that_is_not_a_guard_is_rejected() {
    for (program, arguments) in
        [("/bin/echo", vec!["hello there"]), ("/bin/true", vec![]), ("/no/such", vec![])]
    {
        let arguments = arguments.into_iter().map(str::to_owned).collect();
        let error = Guard::start(program.into(), arguments).await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{program}");
    }
}

/// A spare supervisor for a next command that never comes.
async fn spare_supervisor_ends_with_its_sandbox_or_backend() {
    let children = || -> HashSet<String> {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        lists.flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
    };
    let backend = backend().await;
    // Children of other tests may still end.
    let before = children();
    let new_children = || children().difference(&before).count();
    let fixture = SandboxFixture::new(&backend).await;
    for _ in 0..3 {
        fixture.shell("true").await;
    }
    wait_for(|| new_children() == 1).await;
    drop(fixture);
    wait_for(|| new_children() == 0).await;

    // Also when the backend stops.
    let fixture = SandboxFixture::new(&backend).await;
    fixture.shell("true").await;
    wait_for(|| new_children() == 1).await;
    let stop = tokio_util::sync::CancellationToken::new();
    stop.cancel();
    backend.maintain(stop).await;
    wait_for(|| new_children() == 0).await;
}

/// Prints the duration of a command compared to a plain process, and what the guard adds. Checks that a
/// thousand calls leak no descriptor.
async fn overhead_of_the_guard() {
    const ROUNDS: usize = 200;
    let open = SandboxFixture::new(&LocalBackend::new(LocalOptions::default())).await;
    let gated = SandboxFixture::new(&backend().await).await;
    let shell = Command::shell("true", LONG);
    let argv = Command::argv(vec!["true".into()], LONG);
    let names = ["bare", "shell", "gated shell", "argv", "gated argv"];
    let mut times = names.map(|_| Vec::with_capacity(ROUNDS));
    let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    // Resources kept between calls exist after the first call.
    for fixture in [&open, &gated] {
        fixture.exec(shell.clone()).await.unwrap();
    }
    let before = open_files();
    // Interleaved, so that other load affects all variants equally.
    for _ in 0..ROUNDS {
        let start = Instant::now();
        tokio::process::Command::new("/bin/bash").args(["-c", "true"]).output().await.unwrap();
        times[0].push(start.elapsed());
        let variants = [(&open, &shell), (&gated, &shell), (&open, &argv), (&gated, &argv)];
        for (times, (fixture, command)) in times[1..].iter_mut().zip(variants) {
            let start = Instant::now();
            fixture.exec(command.clone()).await.unwrap();
            times.push(start.elapsed());
        }
    }
    for (name, mut times) in names.into_iter().zip(times) {
        times.sort_unstable();
        println!("{name}: median {:?}, undisturbed {:?}", times[ROUNDS / 2], times[ROUNDS / 10]);
    }
    wait_for(|| open_files() <= before + 2).await;
}
