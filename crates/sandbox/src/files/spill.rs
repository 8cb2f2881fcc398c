//! Creates workspace files for spilled command output.

use std::fs::File;

use nix::fcntl::OFlag;
use remuda_domain::error::Result;

use super::{
    HostFiles,
    root::{Root, failed, not_regular, refused},
};
use crate::traits::{FileKind, WriteMode};

impl HostFiles {
    /// Creates an empty file, and missing directories, for writing. Replaces an existing file.
    pub(crate) async fn create_file(&self, path: &str) -> Result<File> {
        self.run_guarded_at(path, Root::create_file).await
    }
}

impl Root {
    fn create_file(&self, path: &str) -> Result<File> {
        self.write(path, b"", WriteMode::Overwrite)?;
        // A command may have replaced it in the meantime: without O_NONBLOCK, a FIFO would block.
        let flags = OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let fd = self.open_beneath(&self.relative(path)?, flags).map_err(|errno| refused(errno, path))?;
        let file = File::from(fd);
        if !file.metadata().map_err(|error| failed(error, path))?.is_file() {
            return Err(not_regular(FileKind::Other, path));
        }
        Ok(file)
    }
}
