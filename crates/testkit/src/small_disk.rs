//! A small file system that a test can fill.

use std::{
    fs::{self, File, Permissions},
    io::{ErrorKind, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tempfile::TempDir;

use crate::child_process::report;

const CHUNK: usize = 64 << 10;

/// A file system in memory with a fixed size, unmounted when dropped. Mounting needs root.
#[derive(Debug)]
pub struct SmallDisk {
    directory: TempDir,
}

impl SmallDisk {
    /// Mounts a file system of this many bytes on a new directory, which every user may enter.
    pub fn mount(bytes: u64) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("remuda-disk-").tempdir()?;
        let options = format!("size={bytes},mode=0755");
        mount(Some("remuda-test"), directory.path(), Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
            .context("cannot mount a tmpfs; this test needs root")?;
        Ok(Self { directory })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A new directory in it that every user may write to.
    pub fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.path().join(name);
        fs::create_dir(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o777))?;
        Ok(path)
    }

    /// Takes all room that is left. What others free meanwhile stays free.
    pub fn fill(&self) -> Result<()> {
        let mut file = File::options().create(true).append(true).open(self.filler())?;
        loop {
            match file.write(&[0; CHUNK]) {
                Ok(0) => bail!("a write to the small disk wrote nothing"),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(error).context("cannot fill the small disk"),
            }
        }
    }

    /// Gives the room back that [`SmallDisk::fill`] took.
    pub fn free(&self) -> Result<()> {
        fs::remove_file(self.filler()).context("the small disk was not filled")
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process that is being killed may still have files open.
        if let Err(errno) = umount2(self.path(), MntFlags::MNT_DETACH) {
            report(&format!("cannot unmount {}: {errno}", self.path().display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_full_until_freed_and_leaves_no_mount() {
        let disk = SmallDisk::mount(1 << 20).unwrap();
        let (directory, path) = (disk.directory("data").unwrap(), disk.path().to_owned());
        disk.fill().unwrap();
        let write = || fs::write(directory.join("file"), [1; 4096]);
        assert_eq!(write().unwrap_err().kind(), ErrorKind::StorageFull);
        disk.free().unwrap();
        write().unwrap();
        drop(disk);
        assert!(!path.try_exists().unwrap());
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(path.to_str().unwrap()), "{mounts}");
    }
}
