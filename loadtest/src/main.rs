//! Drives load over real gRPC and checks the promises while doing so.
//!
//! `loadtest bench` measures rates and latencies, `loadtest limits` what the machine could do at most, and `loadtest ratios` compares
//! the two. `loadtest growth` measures whether more sessions or a longer queue make it slower. `loadtest crash` kills an embedded
//! server again and again under a mixed load, `loadtest chaos` does all kinds of bad things to a whole cluster. `loadtest fanout`
//! follows events with thousands of readers over HTTP, `loadtest tracing` measures what traces cost.
//!
//! All of them fail when a promise is broken, as seen from outside: by clients, by readers of events, and by the tools,
//! which keep a journal of their own. Speed without the promises counts for nothing.

mod bench;
mod chaos;
mod check;
mod collector;
mod crash;
mod draw;
mod fanout;
mod growth;
mod history;
mod journal;
mod kernel;
mod limits;
mod load;
mod needs;
mod processes;
mod ratios;
mod raw_grpc;
mod recovery;
mod report;
mod sandbox;
mod seed;
mod server;
mod stage;
mod timeline;
mod tracing;
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
    /// Measure how fast runs are, and check that every promise is kept meanwhile.
    #[command(after_help = "\
Starts what it needs, unless `--endpoint` names a server, and submits runs over gRPC, each by a
client that waits for its end. Without `--rate` a closed loop keeps so many clients busy; with it
an open loop begins runs at their times, whatever the server does, and latencies count from these.
One run in fifty is traced, and tells how long it took until it was committed, its token published
and delivered, until it was started, finished, and known to its client. Fails (exit code 1) when a
promise was broken, however quick that was.

More than 10,000 sessions, and queued runs, are written into the database while the servers rest, as
copies of a session that was made through the API. `backlog` lets the worker have such runs, all
others leave them in a pool without workers. `--half` finds the highest rate of a closed loop, and
measures an open loop at half of it.

Examples:
  cargo run --release -p loadtest -- bench --scenario noop --mode split --json
  cargo run --release -p loadtest -- bench --scenario hot-session --seconds 20
  cargo run --release -p loadtest -- bench --rate 1000 --mode split
  cargo run --release -p loadtest -- bench --scenario many-sessions --mode split --svg many.svg
  cargo run --release -p loadtest -- bench --scenario backlog --queued 100000 --json
  cargo run --release -p loadtest -- bench --scenario noop --queued 1000000 --mode split
  cargo run --release -p loadtest -- bench --half --mode split
  cargo run --release -p loadtest -- bench --endpoint http://127.0.0.1:7777 --clients 1")]
    Bench(bench::BenchArgs),
    /// Kill the embedded server again and again under load, and check that nothing is lost, repeated or left over.
    #[command(after_help = "\
Starts `remuda dev` with a data directory of its own, submits runs of every kind (quick and
slow commands, parallel calls, cancels, time limits, failures), follows the events, and ends
the process with SIGKILL, now and then while it is still starting. The commands keep a
journal of their own, which is compared with what the server says. Fails (exit code 1) and
names the runs when a promise was broken.

Examples:
  cargo run -p loadtest -- crash --times 10
  cargo run --release -p loadtest -- crash --release --times 50 --seed 7 --svg crash.svg
  cargo run -p loadtest -- crash --times 20 --json | jq .lost")]
    Crash(crash::CrashArgs),
    /// Put a whole cluster under load and faults, and check that nothing is lost, repeated or left over.
    #[command(after_help = "\
Starts PostgreSQL, NATS and a cluster of `remuda` processes (2 control planes, 3 workers,
2 stream services), all its own, each link through a proxy. Drives the same load as `crash`,
over all servers, while one fault after the other hits the cluster: processes are killed,
stopped and drained, NATS is wiped, PostgreSQL crashes, links are cut, clocks jump. The first
part is quiet, and so is the last, so that rates before and after can be compared.

Examples:
  cargo run --release -p loadtest -- chaos --release --seconds 180 --svg chaos.svg
  cargo run -p loadtest -- chaos --seconds 60 --faults worker-kill,nats-wipe --seed 7 --json
  cargo run -p loadtest -- chaos --overlap --keep-logs --nats /opt/nats-server")]
    Chaos(chaos::ChaosArgs),
    /// Measure what executing a trivial command costs, beside what it costs at least here.
    #[command(after_help = "\
Compares the local backend with a bare fork and exec, the Docker backend with the engine's own
exec, and the first call of a new session on a spare container with a warm one, all in turns
in one run. Then makes thousands of calls and looks whether anything has grown. Uses the engine
that answers, or starts one of its own; makes an image of busybox, and removes what it made.

Examples:
  cargo run --release -p loadtest -- sandbox
  cargo run --release -p loadtest -- sandbox --calls 500 --json --docker-host unix:///run/docker.sock")]
    Sandbox(sandbox::SandboxArgs),
    /// Measure streams over HTTP with thousands of readers, and check that none misses or repeats an event.
    #[command(after_help = "\
Starts a server for each part, and readers that follow sessions over server-sent events:
latency from commit to reader, the same while one reader does not read, memory of idle readers,
one that reconnects all the time, and two stream services that are killed in turn. What every
reader got is compared with the store's own list. Fails (exit code 1) when an event was missed,
repeated or out of order; a figure beyond its goal is told, and is no failure.

Examples:
  cargo run --release -p loadtest -- fanout --release
  cargo run --release -p loadtest -- fanout --release --parts latency,stall --split --seconds 60
  cargo run -p loadtest -- fanout --parts reconnect,replicas --reconnects 100 --kills 2 --json")]
    Fanout(fanout::FanoutArgs),
    /// Measure what it costs to trace every run, beside servers that trace none.
    #[command(after_help = "\
Starts three installations: one that traces nothing, one that sends every span to a collector
of this program's own (which takes it all and looks at nothing), and one whose collector is not
there. Drives the same closed loop over them in turns, compares each turn with those right
before and after it, and checks the promises of all. A missed goal is told and is no failure.

Examples:
  cargo run --release -p loadtest -- tracing
  cargo run --release -p loadtest -- tracing --mode embedded --rounds 20 --json")]
    Tracing(tracing::TracingArgs),
    /// Measure what this machine can do at most for the work that runs are made of.
    #[command(after_help = "\
Uses the broker, the databases and gRPC directly, with as many callers as `bench` has and the same
durability: tokens that are published, delivered and double-acked; rows of runs that are inserted
and ended on PostgreSQL and on SQLite; calls that are echoed. What Remuda reaches is told as a
part of these.

Examples:
  cargo run --release -p loadtest -- limits
  cargo run --release -p loadtest -- limits --seconds 10 --json")]
    Limits(limits::LimitsArgs),
    /// Compare Remuda with the limits of this machine, in one run, and fail where it has become slower.
    #[command(after_help = "\
Measures `limits`, then small runs in both modes, and compares each ratio with the least that it
should be. `cargo xtask bench-check` does this with everything that it needs.

Examples:
  cargo run --release -p loadtest -- ratios
  cargo run --release -p loadtest -- ratios --seconds 20 --json")]
    Ratios(ratios::RatiosArgs),
    /// Measure whether many sessions, or many queued runs, make every other run dearer.
    #[command(after_help = "\
Measures the closed loop of `bench --scenario noop` at each size, on servers that start on a database
which has so many sessions, or so many runs that wait in a pool without workers. Tells throughput
relative to the smallest size (the goal: at least 80 %) and the memory of every process before and
after the load. A missed goal is told and is no failure; a broken promise is.

Examples:
  cargo run --release -p loadtest -- growth --svg growth.svg
  cargo run --release -p loadtest -- growth --mode embedded --sessions 1000,100000 --queued 0,100000 --json")]
    Growth(growth::GrowthArgs),
}

/// As in the servers, so that the generator costs them as little as possible.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    // Fails only if a provider is installed already, which is as good.
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
        // Servers are children that end with their handles, and their files with them.
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    done.unwrap_or_else(|error| fail(&error))
}

#[expect(clippy::print_stderr, reason = "the way out of a command-line tool")]
fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::FAILURE
}
