//! `loadtest limits`: the upper bounds of this machine for the operations that a run consists of.
//!
//! The broker, the databases and the gRPC library are used directly, without Remuda, with as many callers as `bench` has.
//! Durability is the same: every commit is on disk before it counts.

mod grpc;
mod jetstream;
mod postgres;
mod rows;
mod sqlite;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;

use crate::prerequisites;

/// Concurrent callers, as in `bench`.
pub(crate) const CALLERS: usize = 256;

#[derive(Debug, Args)]
pub(crate) struct LimitsArgs {
    /// Duration of each measurement.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// The nats-server binary [default: the installed one].
    #[arg(long, value_name = "FILE")]
    nats: Option<PathBuf>,
    /// Print the report as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// The measured limits. Rows are inserted and updated rows.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Limits {
    pub(crate) jetstream_tokens_per_s: f64,
    pub(crate) postgres_rows_per_s: f64,
    pub(crate) sqlite_rows_per_s: f64,
    pub(crate) grpc_echo_per_s: f64,
}

impl Limits {
    /// Measures one after the other: each gets the whole machine, as Remuda does.
    pub(crate) async fn measure(nats: Option<PathBuf>, time: Duration) -> anyhow::Result<Self> {
        let nats = prerequisites::ensure_servers(nats).await?;
        Ok(Self {
            jetstream_tokens_per_s: jetstream::measure(nats, time).await.context("JetStream")?,
            postgres_rows_per_s: postgres::measure(time).await.context("PostgreSQL")?,
            sqlite_rows_per_s: sqlite::measure(time).await.context("SQLite")?,
            grpc_echo_per_s: grpc::measure(time).await.context("gRPC")?,
        })
    }
}

#[expect(clippy::print_stdout, reason = "the report is what this program is for")]
pub(crate) async fn run(args: LimitsArgs) -> anyhow::Result<ExitCode> {
    let limits = Limits::measure(args.nats, Duration::from_secs(args.seconds)).await?;
    if args.json {
        println!("{}", serde_json::to_string(&limits)?);
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "JetStream   {:>8.0} tokens/s published, delivered and double-acked",
        limits.jetstream_tokens_per_s
    );
    println!("PostgreSQL  {:>8.0} rows/s inserted and updated", limits.postgres_rows_per_s);
    println!("SQLite      {:>8.0} rows/s inserted and updated", limits.sqlite_rows_per_s);
    println!("gRPC        {:>8.0} calls/s echoed", limits.grpc_echo_per_s);
    Ok(ExitCode::SUCCESS)
}
