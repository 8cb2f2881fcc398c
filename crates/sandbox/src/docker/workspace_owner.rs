//! Owner of a workspace that containers mount.

use std::{os::unix::fs::MetadataExt as _, path::Path};

use nix::unistd::{Gid, Uid};
use remuda_domain::error::{Error, Result};

use super::create::ContainerUser;
use crate::files::blocking;

/// If this process is root, changes the owner of a root-owned workspace to the containers' user, which could
/// not write there otherwise.
pub(super) async fn change(directory: &Path, user: ContainerUser) -> Result<()> {
    if !Uid::effective().is_root() {
        return Ok(());
    }
    let directory = directory.to_owned();
    blocking(move || {
        let changed = std::fs::metadata(&directory).and_then(|metadata| {
            if metadata.uid() != 0 {
                return Ok(());
            }
            let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
            nix::unistd::chown(&directory, Some(uid), Some(gid)).map_err(Into::into)
        });
        changed.map_err(|error| {
            Error::unavailable("cannot change the owner of the workspace to the container's user")
                .with_source(error)
        })
    })
    .await
}
