//! Finds or builds the `remuda` binary.

use std::{
    env,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, ensure};
use remuda_testkit::{cargo, find_program};
use serde_json::Value;

const VARIABLE: &str = "REMUDA_BIN";
const NAME: &str = "remuda";

/// The `remuda` binary: the one that `REMUDA_BIN` names; else, in a checkout, a fresh build, so that tests never use a stale
/// binary; else the one beside this program.
///
/// Blocks while cargo builds, which is short if nothing has changed. Works under `cargo run` and `cargo test`, which do not
/// hold the build lock while the program runs.
///
/// `optimised` selects the profile `dist` if this program was built with it, else `release`: a measurement compares like with like.
pub fn find_or_build_remuda(optimised: bool) -> Result<PathBuf> {
    if let Some(path) = env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        ensure!(path.is_file(), "{VARIABLE} names {}, which is not a file", path.display());
        return Ok(path);
    }
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let has_cargo = env::var_os("CARGO").is_some() || find_program("cargo").is_some();
    if has_cargo && manifest.is_file() {
        return build(&manifest, optimised);
    }
    let program = env::current_exe().context("cannot find the path of this program")?;
    beside(&program).with_context(|| format!("no {NAME} beside {}; set {VARIABLE}", program.display()))
}

fn build(manifest: &Path, optimised: bool) -> Result<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--package", NAME, "--message-format", "json-render-diagnostics"]);
    command.arg("--manifest-path").arg(manifest);
    if optimised {
        command.args(["--profile", optimised_profile()]);
    }
    let output =
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    ensure!(output.status.success(), "cargo could not build {NAME}");
    let messages = String::from_utf8_lossy(&output.stdout);
    executable(&messages).with_context(|| format!("cargo reported no path of {NAME}"))
}

/// Cargo puts programs into a directory that has the name of their profile.
fn optimised_profile() -> &'static str {
    let program = env::current_exe().unwrap_or_default();
    let directory = program.parent().and_then(Path::file_name);
    if directory.is_some_and(|name| name == "dist") { "dist" } else { "release" }
}

/// Reads the path of the binary from cargo's messages, one JSON document per line.
fn executable(messages: &str) -> Option<PathBuf> {
    messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find_map(|message| {
        let wanted = message["reason"] == "compiler-artifact" && message["target"]["name"] == NAME;
        message["executable"].as_str().filter(|_| wanted).map(PathBuf::from)
    })
}

/// In the same directory, or one above for a test, which is in `deps`.
fn beside(program: &Path) -> Option<PathBuf> {
    program.ancestors().skip(1).take(2).map(|directory| directory.join(NAME)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_path_is_read_from_cargo_messages() {
        let messages = [
            r#"{"reason":"compiler-artifact","target":{"name":"remuda_node"},"executable":null}"#,
            r#"{"reason":"compiler-artifact","target":{"name":"other"},"executable":"/t/other"}"#,
            "not JSON",
            r#"{"reason":"compiler-artifact","target":{"name":"remuda"},"executable":"/t/remuda"}"#,
            r#"{"reason":"build-finished","success":true}"#,
        ];
        assert_eq!(executable(&messages.join("\n")), Some(PathBuf::from("/t/remuda")));
        assert_eq!(executable(messages[0]), None);
    }

    #[test]
    fn binary_is_found_beside_programs_and_above_tests() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        assert_eq!(beside(&path("deps/test")), None);
        std::fs::write(path(NAME), "").unwrap();
        assert_eq!(beside(&path("deps/test")), Some(path(NAME)));
        assert_eq!(beside(&path("loadtest")), Some(path(NAME)));
    }
}
