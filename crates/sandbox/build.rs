//! Builds the supervisor, statically linked so that it runs in any container, for `supervisor_binary.rs` to embed.

use std::{env, error::Error, fs, path::PathBuf, process::Command};

/// What cargo, clippy or a wrapper set for the crates of the workspace; the supervisor is built as itself.
const NOT_OURS: [&str; 8] = [
    "RUSTFLAGS",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "CARGO_TARGET_DIR",
    "CARGO_BUILD_TARGET_DIR",
    "CARGO_BUILD_TARGET",
    "CLIPPY_ARGS",
    "CLIPPY_CONF_DIR",
];

/// Static, also in where it is loaded: there is nothing to be adjusted when it starts, which is for every command.
const FLAGS: &str = "-Ctarget-feature=+crt-static\u{1f}-Crelocation-model=static";

fn main() -> Result<(), Box<dyn Error>> {
    let crates = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let workspace =
        crates.ancestors().nth(2).ok_or("expected to be two directories beneath the workspace")?;
    let supervisor = workspace.join("crates/supervisor");
    for input in [supervisor.join("src"), supervisor.join("Cargo.toml"), workspace.join("Cargo.lock")] {
        cargo(&format!("rerun-if-changed={}", input.display()));
    }

    let (target, out) = (env::var("TARGET")?, PathBuf::from(env::var("OUT_DIR")?));
    // Beside the profiles (`<target>/<profile>/build/<package>/out`): one build serves all of them, and clippy.
    let shared = out.ancestors().nth(4).ok_or("expected to be built in a target directory")?;
    let directory = shared.join("supervisor");
    let mut build = Command::new(env::var("CARGO")?);
    for name in NOT_OURS {
        build.env_remove(name);
    }
    // With a target given, the flags are the program's and not those of build scripts.
    build
        .env("CARGO_ENCODED_RUSTFLAGS", FLAGS)
        .args(["build", "--quiet", "--package", "remuda-supervisor", "--bin", "remuda-supervisor"])
        .args(["--profile", "supervisor", "--target", &target, "--target-dir"])
        .arg(&directory)
        .current_dir(workspace);
    let status = build.status()?;
    if !status.success() {
        return Err(format!("the supervisor cannot be built: {status}").into());
    }
    // A copy of its own: another build may replace the shared one at any time.
    let program = out.join("remuda-supervisor");
    fs::copy(directory.join(target).join("supervisor/remuda-supervisor"), &program)?;
    cargo(&format!("rustc-env=REMUDA_SUPERVISOR_PROGRAM={}", program.display()));
    Ok(())
}

fn cargo(instruction: &str) {
    println!("cargo::{instruction}");
}
