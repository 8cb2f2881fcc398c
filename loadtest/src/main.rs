//! Load generator and invariant checker for Remuda.
//!
//! `loadtest bench` measures rates and latencies, `loadtest limits` the upper bounds of the machine, and `loadtest ratios`
//! compares the two. `loadtest growth` measures whether more sessions or a longer queue slow runs down. `loadtest crash` kills
//! an embedded server repeatedly under a mixed load, and `loadtest chaos` injects faults into a whole cluster. `loadtest fanout`
//! follows events with thousands of readers over HTTP. `loadtest tracing` measures the cost of traces, and `loadtest sandbox`
//! that of executing a command.
//!
//! Every command fails when a guarantee is violated, as observed from outside: by clients, by readers of events, and by tools,
//! which keep their own journal.

mod bench;
mod chaos;
mod check;
mod collector;
mod crash;
mod database_seed;
mod deployment;
mod fanout;
mod growth;
mod limits;
mod load;
mod observed_history;
mod os_stats;
mod prerequisites;
mod processes;
mod ratios;
mod raw_grpc;
mod recovery;
mod report;
mod sandbox;
mod server;
mod svg_chart;
mod timeline;
mod tool_journal;
mod tracing;
mod waiting_client;
mod workload;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "loadtest", version, about = "Load generator and invariant checker for Remuda")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure rate and latency of runs, and check the guarantees meanwhile.
    #[command(after_help = "\
Starts the servers, unless `--endpoint` names one. Clients submit runs over gRPC and wait for their
ends. Without `--rate`, a closed loop of `--clients` keeps each client busy with one run. With
`--rate`, an open loop starts runs at fixed times, and latencies count from these times. One run in
fifty is traced; the report shows how long it took until the run was committed, its token published
and delivered, and until it was started, finished, and known to its client. Fails (exit code 1) when
a guarantee was violated.

Queued runs, and sessions if there are more than 10,000, are written into the database while the
servers are stopped, as copies of a session created through the API. `backlog` executes the queued
runs; all other scenarios leave them in a pool without workers. `--half` finds the highest rate of
a closed loop and measures an open loop at half of it.

Examples:
  cargo run --profile dist -p loadtest -- bench --scenario noop --mode split --json
  cargo run --profile dist -p loadtest -- bench --scenario hot-session --seconds 20
  cargo run --profile dist -p loadtest -- bench --rate 1000 --mode split
  cargo run --profile dist -p loadtest -- bench --scenario many-sessions --mode split --svg many.svg
  cargo run --profile dist -p loadtest -- bench --scenario backlog --queued 100000 --json
  cargo run --profile dist -p loadtest -- bench --scenario noop --queued 1000000 --mode split
  cargo run --profile dist -p loadtest -- bench --half --mode split
  cargo run --profile dist -p loadtest -- bench --endpoint http://127.0.0.1:7777 --clients 1")]
    Bench(bench::BenchArgs),
    /// Kill the embedded server repeatedly under load, and check that nothing is lost, repeated or left over.
    #[command(after_help = "\
Starts `remuda dev` with its own data directory, submits runs of every kind (short and long
commands, parallel calls, cancels, timeouts, failures), follows the events, and kills the
process with SIGKILL, sometimes while it is still starting. The commands write a journal,
which is compared with what the server reports. Fails (exit code 1) and names the runs when
a guarantee was violated.

Examples:
  cargo run -p loadtest -- crash --times 10
  cargo run --profile dist -p loadtest -- crash --release --times 50 --seed 7 --svg crash.svg
  cargo run -p loadtest -- crash --times 20 --json | jq .lost")]
    Crash(crash::CrashArgs),
    /// Inject faults into a cluster under load, and check that nothing is lost, repeated or left over.
    #[command(after_help = "\
Starts its own PostgreSQL, NATS and cluster of `remuda` processes (2 control planes, 3 workers,
2 stream services), each link through a proxy. Generates the same load as `crash` over all
servers while faults hit the cluster one after the other: processes are killed, stopped and
drained, NATS is wiped, PostgreSQL crashes, links are cut, clocks jump. The first and the last
part have no faults, so that the rates before and after can be compared.

Examples:
  cargo run --profile dist -p loadtest -- chaos --release --seconds 180 --svg chaos.svg
  cargo run -p loadtest -- chaos --seconds 60 --faults worker-kill,nats-wipe --seed 7 --json
  cargo run -p loadtest -- chaos --overlap --keep-logs --nats /opt/nats-server")]
    Chaos(chaos::ChaosArgs),
    /// Measure the cost of executing a trivial command, compared with the minimum on this machine.
    #[command(after_help = "\
Compares the local backend with a bare fork and exec, the Docker backend with the engine's own
exec, and the first call of a new session on a spare container with a warm one, in alternation.
Then makes thousands of calls and checks that no resource usage has grown. Uses a running Docker
engine or starts its own; creates an image of busybox, and removes everything it created.

Examples:
  cargo run --profile dist -p loadtest -- sandbox
  cargo run --profile dist -p loadtest -- sandbox --calls 500 --json --docker-host unix:///run/docker.sock")]
    Sandbox(sandbox::SandboxArgs),
    /// Measure event streams over HTTP with thousands of readers, and check that no event is missed or repeated.
    #[command(after_help = "\
Starts a server for each part, and readers that follow sessions over server-sent events:
latency from commit to reader, the same while one reader does not read, memory of idle readers,
a reader that reconnects repeatedly, and two stream services that are killed in turn. What every
reader received is compared with the stored events. Fails (exit code 1) when an event was missed,
repeated or out of order; a missed goal is reported, but is no failure.

Examples:
  cargo run --profile dist -p loadtest -- fanout --release
  cargo run --profile dist -p loadtest -- fanout --release --parts latency,stall --split --seconds 60
  cargo run -p loadtest -- fanout --parts reconnect,replicas --reconnects 100 --kills 2 --json")]
    Fanout(fanout::FanoutArgs),
    /// Measure the cost of tracing every run, compared with servers that trace none.
    #[command(after_help = "\
Starts three installations: one without traces, one that exports every span to a collector in
this program (which discards it), and one whose collector is unreachable. Runs the same closed
loop on them in alternation, compares each interval with those right before and after it, and
checks the guarantees of all. A missed goal is reported, but is no failure.

Examples:
  cargo run --profile dist -p loadtest -- tracing
  cargo run --profile dist -p loadtest -- tracing --mode embedded --rounds 20 --json")]
    Tracing(tracing::TracingArgs),
    /// Measure the upper bounds of this machine for the operations that runs consist of.
    #[command(after_help = "\
Uses the broker, the databases and gRPC directly, with as many callers as `bench` has and the same
durability: tokens published, delivered and double-acked; rows of runs inserted and updated in
PostgreSQL and SQLite; echo calls. `loadtest ratios` compares Remuda with these bounds.

Examples:
  cargo run --profile dist -p loadtest -- limits
  cargo run --profile dist -p loadtest -- limits --seconds 10 --json")]
    Limits(limits::LimitsArgs),
    /// Compare Remuda with the upper bounds of this machine, and fail if a ratio is too low.
    #[command(after_help = "\
Measures `limits`, then small runs in both modes, and compares each ratio with its lower bound.
`cargo xtask bench-check` runs this in the release profile.

Examples:
  cargo run --profile dist -p loadtest -- ratios
  cargo run --profile dist -p loadtest -- ratios --seconds 20 --json")]
    Ratios(ratios::RatiosArgs),
    /// Measure whether many sessions or many queued runs slow down other runs.
    #[command(after_help = "\
Measures the closed loop of `bench --scenario noop` at each size, on servers that start on a database
with this many sessions, or with this many runs queued in a pool without workers. Reports throughput
relative to the smallest size (goal: at least 80 %) and the memory of every process before and after
the load. A missed goal is reported, but is no failure; a violated guarantee is.

Examples:
  cargo run --profile dist -p loadtest -- growth --svg growth.svg
  cargo run --profile dist -p loadtest -- growth --mode embedded --sessions 1000,100000 --queued 0,100000 --json")]
    Growth(growth::GrowthArgs),
}

/// The same allocator as in the servers, so that the load generator takes little CPU from them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    // Fails only if a provider is already installed.
    drop(rustls::crypto::ring::default_provider().install_default());
    let command = async {
        match Cli::parse().command {
            Command::Bench(args) => bench::run(args).await,
            Command::Crash(args) => crash::run(args).await,
            Command::Chaos(args) => chaos::run(args).await,
            Command::Sandbox(args) => sandbox::run(args).await,
            Command::Fanout(args) => fanout::run(args).await,
            Command::Tracing(args) => tracing::run(args).await,
            Command::Limits(args) => limits::run(args).await,
            Command::Ratios(args) => ratios::run(args).await,
            Command::Growth(args) => growth::run(args).await,
        }
    };
    let done = tokio::select! {
        done = command => done,
        // The servers are child processes that end when their handles are dropped, and their files are removed.
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    done.unwrap_or_else(|error| fail(&error))
}

#[expect(clippy::print_stderr, reason = "the way out of a command-line tool")]
fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::FAILURE
}
