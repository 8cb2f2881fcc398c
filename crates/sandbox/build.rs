//! Builds the supervisor as a static program that runs in any container. `supervisor_binary.rs` embeds it.

use std::{env, error::Error, fs, path::PathBuf, process::Command};

/// Variables that cargo, clippy or a wrapper set for the workspace's crates. They must not affect the
/// supervisor's build.
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

/// Static and not relocatable: the loader has nothing to adjust at each start, and one process starts per
/// command.
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
    // Beside the profiles (`<target>/<profile>/build/<package>/out`): one build serves all profiles and
    // clippy.
    let shared = out.ancestors().nth(4).ok_or("expected to be built in a target directory")?;
    let directory = shared.join("supervisor");
    let mut build = Command::new(env::var("CARGO")?);
    for name in NOT_OURS {
        build.env_remove(name);
    }
    // With an explicit target, the flags apply to the program and not to build scripts.
    build
        .env("CARGO_ENCODED_RUSTFLAGS", FLAGS)
        .args(["build", "--quiet", "--package", "remuda-supervisor", "--bin", "remuda-supervisor"])
        .args(["--profile", "supervisor", "--target", &target, "--target-dir"])
        .arg(&directory)
        .current_dir(workspace);
    let status = build.status()?;
    if !status.success() {
        return Err(format!("cannot build the supervisor: {status}").into());
    }
    // Copied, because another build may replace the shared file at any time.
    let program = out.join("remuda-supervisor");
    fs::copy(directory.join(target).join("supervisor/remuda-supervisor"), &program)?;
    cargo(&format!("rustc-env=REMUDA_SUPERVISOR_PROGRAM={}", program.display()));
    Ok(())
}

fn cargo(instruction: &str) {
    println!("cargo::{instruction}");
}
