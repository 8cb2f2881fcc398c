//! Compiles the protos in pure Rust (`protox`): no `protoc` is needed on the machine.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    let names = [
        "meta",
        "types",
        "events",
        "sessions",
        "runs",
        "fleet",
        "stream",
        "workspaces",
        "approvals",
        "webhooks",
    ];
    let files: Vec<_> = names.iter().map(|name| root.join(format!("remuda/v1/{name}.proto"))).collect();
    println!("cargo:rerun-if-changed={}", root.display());

    let descriptors = protox::compile(&files, [&root])?;
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("remuda.v1.bin"), descriptors.encode_to_vec())?;
    // Ordered maps, so that the output of a message is deterministic.
    let mut configuration = tonic_prost_build::configure().btree_map(".");
    // An event is as large as its largest body, so the large ones are boxed.
    for body in ["tool_completed", "tool_failed", "approval_requested"] {
        configuration = configuration.boxed(format!(".remuda.v1.Event.body.{body}"));
    }
    configuration.compile_fds(descriptors)?;
    Ok(())
}
