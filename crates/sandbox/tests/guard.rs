//! Tool processes die with their worker: this test starts itself as a worker and as its guard, and kills them.
//!
//! It has no harness, because a guard must be a plain process. It also runs the suite's commands once more, gated.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests fail by panicking, and this one is its own harness"
)]

#[path = "it/bench.rs"]
#[expect(dead_code, reason = "other suites need more of it")]
mod bench;
#[path = "it/commands.rs"]
mod commands;

use std::{
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

use bench::{Bench, LONG, code, marked_processes, wait_for};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        // Before any runtime, as `guard::run` asks for.
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
        a_killed_worker_leaves_nothing,
        a_stopped_worker_leaves_nothing,
        signals_for_the_worker_do_not_end_the_guard,
        a_worker_that_ends_ends_its_guard,
        nothing_begins_after_the_workers_time,
        a_guard_that_died_is_replaced,
        a_program_that_is_no_guard,
        a_spare_supervisor_goes_with_its_sandbox,
        cost_of_the_gate,
    ];
    macro_rules! run_suite {
        ($($name:ident,)*) => {$(
            async fn $name() {
                commands::$name(Bench::new(&backend().await).await).await;
            }
        )* run![$($name,)*]};
    }
    run_suite![
        echo_exit_code_and_streams,
        argv_is_not_interpreted,
        a_program_that_does_not_exist,
        signal_is_reported,
        environment_is_only_what_is_allowed,
        runs_in_the_workspace_or_beneath,
        bad_commands_are_refused,
        input_is_closed,
        timeout_kills_grandchildren,
        timeout_ends_a_process_that_ignores_sigterm,
        cancel_is_quick,
        cancelled_before_it_began,
        dropping_the_call_kills,
        large_output_is_bounded,
        endless_output_ends_with_the_timeout,
        background_child_does_not_outlive_the_call,
        a_daemon_does_not_outlive_the_call,
        usage_is_reported,
        input_is_given,
        long_output_is_kept_in_a_file,
        output_is_not_kept_outside_the_workspace,
        invalid_utf8_and_nul_are_replaced,
        live_output_arrives_before_the_end,
        many_at_once,
    ];
    // As the standard harness says it, for whoever counts.
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

/// Whether a process runs. Zombies do not: they wait for a parent that is not ours.
fn process_alive(process: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| {
        let state = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().next());
        !matches!(state, Some("Z" | "X"))
    })
}

/// A worker with one busy tool, which says who it is, and its tool and guard.
async fn worker(feed: Option<&str>) {
    let guard = start_guard().await;
    let backend =
        LocalBackend::new(LocalOptions { guard: Some(Arc::clone(&guard)), ..LocalOptions::default() });
    let bench = Bench::new(&backend).await;
    if feed.is_some() {
        guard.feed(Duration::from_millis(500));
    }
    let script = "(setsid sleep 1000 &); (sleep 1000; :) & echo > begun; sleep 1000";
    let run = bench.exec(Command::shell(script, LONG * 10));
    let say = async {
        bench.written("begun").await;
        println!("{} {}", bench.mark, guard.id());
        tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()))
            .await
            .unwrap()
            .unwrap();
    };
    tokio::select! {
        result = run => panic!("it sleeps: {result:?}"),
        () = say => {}
    }
}

struct Worker {
    child: Child,
    id: Pid,
    /// The mark of its tool's processes.
    tool: String,
    guard: i32,
    /// Where a worker that is killed leaves its workspace.
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
        assert!(worker.tool_runs() && process_alive(worker.guard));
        worker
    }

    fn tool_runs(&self) -> bool {
        !marked_processes(&self.tool).is_empty()
    }

    async fn leaves_nothing(&self) {
        wait_for(|| !self.tool_runs()).await;
        wait_for(|| !process_alive(self.guard)).await;
    }
}

async fn a_killed_worker_leaves_nothing() {
    let worker = Worker::start(&[]).await;
    kill(worker.id, Signal::SIGKILL).unwrap();
    worker.leaves_nothing().await;
}

async fn a_stopped_worker_leaves_nothing() {
    let mut worker = Worker::start(&["fed"]).await;
    kill(worker.id, Signal::SIGSTOP).unwrap();
    wait_for(|| !worker.tool_runs()).await;
    assert!(process_alive(worker.guard));
    worker.child.kill().await.unwrap();
    worker.leaves_nothing().await;
}

async fn signals_for_the_worker_do_not_end_the_guard() {
    let mut worker = Worker::start(&[]).await;
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
        kill(Pid::from_raw(worker.guard), signal).unwrap();
    }
    let guard = Some(Pid::from_raw(worker.guard));
    assert_eq!((nix::unistd::getsid(guard).ok(), nix::unistd::getpgid(guard).ok()), (guard, guard));
    assert!(process_alive(worker.guard) && worker.tool_runs());
    worker.child.kill().await.unwrap();
    worker.leaves_nothing().await;
}

async fn a_worker_that_ends_ends_its_guard() {
    let mut worker = Worker::start(&[]).await;
    drop(worker.child.stdin.take());
    assert!(worker.child.wait().await.unwrap().success());
    worker.leaves_nothing().await;
}

/// A worker that was stopped for too long and goes on as if nothing had happened.
async fn nothing_begins_after_the_workers_time() {
    let guard = start_guard().await;
    let backend =
        LocalBackend::new(LocalOptions { guard: Some(Arc::clone(&guard)), ..LocalOptions::default() });
    let bench = Bench::new(&backend).await;
    guard.feed(Duration::ZERO);
    for command in
        [Command::shell("touch began", LONG), Command::argv(vec!["touch".into(), "began".into()], LONG)]
    {
        assert_eq!(code(bench.exec(command).await), Code::OwnershipLost);
    }
    let written = bench.sandbox.write_file("began", b"x".to_vec(), WriteMode::Overwrite).await;
    assert_eq!(code(written), Code::OwnershipLost);
    assert!(!bench.workspace().join("began").try_exists().unwrap());
    guard.feed(LONG);
    assert_eq!(bench.shell("echo again").await.stdout.text, "again\n");
}

async fn a_guard_that_died_is_replaced() {
    let guard = start_guard().await;
    let backend =
        LocalBackend::new(LocalOptions { guard: Some(Arc::clone(&guard)), ..LocalOptions::default() });
    let bench = Bench::new(&backend).await;
    let first = i32::try_from(guard.id()).unwrap();
    let long = bench.exec(Command::shell("echo > begun; while ! [ -e go ]; do sleep 0.01; done", LONG));
    let meanwhile = async {
        bench.written("begun").await;
        kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
        wait_for(|| !process_alive(first)).await;
        assert_eq!(bench.shell("echo still").await.stdout.text, "still\n");
        assert_ne!(i32::try_from(guard.id()).unwrap(), first);
        assert!(!bench.alive().is_empty());
        bench.shell("touch go").await;
    };
    let (result, ()) = tokio::join!(long, meanwhile);
    assert_eq!(result.unwrap().status, ExecStatus::Exited(0));
}

async fn a_program_that_is_no_guard() {
    for (program, arguments) in
        [("/bin/echo", vec!["hello there"]), ("/bin/true", vec![]), ("/no/such", vec![])]
    {
        let arguments = arguments.into_iter().map(str::to_owned).collect();
        let error = Guard::start(program.into(), arguments).await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{program}");
    }
}

/// What is started in advance for a next command that never comes.
async fn a_spare_supervisor_goes_with_its_sandbox() {
    let children = || {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        lists.map(|list| list.split_whitespace().count()).sum::<usize>()
    };
    let backend = backend().await;
    let before = children();
    let bench = Bench::new(&backend).await;
    for _ in 0..3 {
        bench.shell("true").await;
    }
    wait_for(|| children() == before + 1).await;
    drop(bench);
    wait_for(|| children() == before).await;

    // Or with its backend.
    let bench = Bench::new(&backend).await;
    bench.shell("true").await;
    wait_for(|| children() == before + 1).await;
    let stop = tokio_util::sync::CancellationToken::new();
    stop.cancel();
    backend.keep(stop).await;
    wait_for(|| children() == before).await;
}

/// Prints what a command costs, beside a bare process, and what guarding adds. A thousand calls later no file is left open.
async fn cost_of_the_gate() {
    const ROUNDS: usize = 200;
    let open = Bench::new(&LocalBackend::new(LocalOptions::default())).await;
    let gated = Bench::new(&backend().await).await;
    let shell = Command::shell("true", LONG);
    let argv = Command::argv(vec!["true".into()], LONG);
    let names = ["bare", "shell", "gated shell", "argv", "gated argv"];
    let mut times = names.map(|_| Vec::with_capacity(ROUNDS));
    let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    // What is kept between calls is there after the first.
    for bench in [&open, &gated] {
        bench.exec(shell.clone()).await.unwrap();
    }
    let before = open_files();
    // In turns, so that what else the machine does hits all alike.
    for _ in 0..ROUNDS {
        let start = Instant::now();
        tokio::process::Command::new("/bin/bash").args(["-c", "true"]).output().await.unwrap();
        times[0].push(start.elapsed());
        let variants = [(&open, &shell), (&gated, &shell), (&open, &argv), (&gated, &argv)];
        for (times, (bench, command)) in times[1..].iter_mut().zip(variants) {
            let start = Instant::now();
            bench.exec(command.clone()).await.unwrap();
            times.push(start.elapsed());
        }
    }
    for (name, mut times) in names.into_iter().zip(times) {
        times.sort_unstable();
        println!("{name}: median {:?}, undisturbed {:?}", times[ROUNDS / 2], times[ROUNDS / 10]);
    }
    wait_for(|| open_files() <= before + 2).await;
}
