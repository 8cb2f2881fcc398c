//! A container image that needs no registry.

use std::{
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};

/// A busybox image on an engine, removed when this is dropped.
#[derive(Debug)]
pub struct BusyboxImage {
    pub name: String,
    host: String,
}

impl BusyboxImage {
    /// Imports this machine's static busybox as an image. `unique` becomes part of its name.
    pub fn import(host: &str, unique: &str) -> Result<Self> {
        let root = tempfile::tempdir()?;
        busybox_root(root.path())?;
        let name = format!("remuda-busybox-{}:1", unique.to_lowercase());
        let mut tar = Command::new("tar")
            .arg("-C")
            .arg(root.path())
            .args(["-cf", "-", "."])
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start tar")?;
        let archive = tar.stdout.take().context("tar has no output")?;
        let imported = docker(host).args(["import", "-", &name]).stdin(archive).output();
        let packed = tar.wait()?;
        let imported = imported.context("cannot start docker: is docker.io installed?")?;
        let stderr = String::from_utf8_lossy(&imported.stderr);
        ensure!(packed.success() && imported.status.success(), "docker import failed: {stderr}");
        Ok(Self { name, host: host.to_owned() })
    }
}

impl Drop for BusyboxImage {
    #[expect(clippy::print_stderr, reason = "Drop cannot return an error")]
    fn drop(&mut self) {
        let removed = docker(&self.host).args(["rmi", "--force", &self.name]).output();
        if !removed.is_ok_and(|output| output.status.success()) {
            eprintln!("warning: cannot remove the image {}", self.name);
        }
    }
}

fn docker(host: &str) -> Command {
    let mut command = Command::new("docker");
    command.args(["--host", host]).stdin(Stdio::null());
    command
}

/// A root file system with busybox and links for its applets.
fn busybox_root(root: &Path) -> Result<()> {
    let candidates = ["/usr/bin/busybox", "/bin/busybox"];
    let busybox = candidates.iter().find(|path| Path::new(path).is_file());
    let busybox = busybox.context("busybox is missing: install busybox-static")?;
    std::fs::create_dir_all(root.join("bin"))?;
    std::fs::copy(busybox, root.join("bin/busybox"))?;
    let list = Command::new(busybox).arg("--list").output()?;
    for applet in String::from_utf8(list.stdout)?.lines().filter(|name| *name != "busybox") {
        symlink("busybox", root.join("bin").join(applet))?;
    }
    Ok(())
}
