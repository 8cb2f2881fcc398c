//! A small file system that a test can fill.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::statvfs::statvfs,
    unistd::Uid,
};
use tempfile::TempDir;

use crate::child_process::report;

/// Attempts to fill a file system that others write to meanwhile.
const TRIES: usize = 100;

/// A file system in memory, unmounted when dropped. Mounting needs root.
#[derive(Debug)]
pub struct SmallDisk {
    path: PathBuf,
    bytes: u64,
    /// Removed after the file system was unmounted.
    directory: Option<TempDir>,
}

impl SmallDisk {
    /// Whether this process may mount file systems.
    #[must_use]
    pub fn is_available() -> bool {
        Uid::effective().is_root()
    }

    /// Mounts a file system with room for this many bytes on a new directory, which every user may enter.
    pub fn mount(bytes: u64) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("remuda-disk-").tempdir()?;
        let mut disk = Self::mount_at(directory.path(), bytes)?;
        disk.directory = Some(directory);
        Ok(disk)
    }

    /// Mounts it on an existing directory.
    pub fn mount_at(path: &Path, bytes: u64) -> Result<Self> {
        let options = format!("size={bytes},mode=0755");
        mount(Some("remuda-test"), path, Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
            .context("cannot mount a tmpfs; this needs root")?;
        Ok(Self { path: path.to_owned(), bytes, directory: None })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A new directory in it that every user may write to.
    pub fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o777))?;
        Ok(path)
    }

    /// Takes all room that is left: the file system shrinks to what is used. Takes no memory.
    pub fn fill(&self) -> Result<()> {
        for _ in 0..TRIES {
            let now = statvfs(&self.path)?;
            let used = now.blocks().saturating_sub(now.blocks_free()).saturating_mul(now.fragment_size());
            match self.resize(used) {
                // More is used by now.
                Err(Errno::EINVAL) => {}
                resized => return resized.context("cannot fill the small disk"),
            }
        }
        anyhow::bail!("the small disk is written to all the time")
    }

    /// Gives the room back that [`SmallDisk::fill`] took.
    pub fn free(&self) -> Result<()> {
        self.resize(self.bytes).context("cannot give room to the small disk")
    }

    fn resize(&self, bytes: u64) -> nix::Result<()> {
        let options = format!("size={bytes}");
        mount(None::<&str>, &self.path, None::<&str>, MsFlags::MS_REMOUNT, Some(options.as_str()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process that is being killed may still have files open.
        if let Err(errno) = umount2(&self.path, MntFlags::MNT_DETACH) {
            report(&format!("cannot unmount {}: {errno}", self.path.display()));
        }
        drop(self.directory.take());
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn is_full_until_freed_and_leaves_no_mount() {
        let disk = SmallDisk::mount(1 << 20).unwrap();
        let (directory, path) = (disk.directory("data").unwrap(), disk.path().to_owned());
        fs::write(directory.join("before"), [1; 10_000]).unwrap();
        let write = || fs::write(directory.join("file"), [1; 4096]);
        for _ in 0..2 {
            disk.fill().unwrap();
            assert_eq!(write().unwrap_err().kind(), ErrorKind::StorageFull);
            disk.free().unwrap();
            write().unwrap();
            fs::remove_file(directory.join("file")).unwrap();
        }
        assert_eq!(fs::read(directory.join("before")).unwrap(), [1; 10_000]);
        drop(disk);
        assert!(!path.try_exists().unwrap());
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(path.to_str().unwrap()), "{mounts}");
    }
}
