//! The user that runs the commands of a workspace.

use std::{
    os::{fd::AsFd, unix::fs::MetadataExt as _},
    path::Path,
};

use nix::{sys::stat::fstat, unistd::Uid};
use remuda_domain::error::{Error, Result};
use remuda_supervisor::User;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandUser {
    /// The user of this process. If that is root, without its capabilities.
    Own,
    /// The owner of the workspace.
    Owner(User),
    /// Root, with its capabilities for files: the workspace's owner cannot reach it by its path.
    RootForFiles,
}

impl CommandUser {
    /// Only a worker that runs as root can choose: its commands run as the owner of their workspace.
    pub(super) fn of(directory: &impl AsFd, path: &Path) -> Result<Self> {
        if !Uid::effective().is_root() || !can_switch() {
            return Ok(Self::Own);
        }
        let found = fstat(directory).map_err(|errno| {
            Error::unavailable("cannot determine the owner of the workspace").with_source(errno)
        })?;
        let owner = User { uid: found.st_uid, gid: found.st_gid };
        Ok(match owner.uid {
            0 => Self::Own,
            _ if path.ancestors().skip(1).all(|ancestor| can_search(ancestor, owner)) => Self::Owner(owner),
            _ => Self::RootForFiles,
        })
    }
}

fn can_search(directory: &Path, user: User) -> bool {
    std::fs::metadata(directory).is_ok_and(|found| {
        let bit = match (found.uid() == user.uid, found.gid() == user.gid) {
            (true, _) => 0o100,
            (false, true) => 0o010,
            (false, false) => 0o001,
        };
        found.mode() & bit != 0
    })
}

/// Root in a container may lack the capabilities to become another user.
fn can_switch() -> bool {
    const SETGID_AND_SETUID: u64 = 1 << 6 | 1 << 7;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    effective(&status).is_some_and(|capabilities| capabilities & SETGID_AND_SETUID == SETGID_AND_SETUID)
}

fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn directories_are_searched_by_the_most_specific_bit() {
        let directory = tempfile::tempdir().unwrap();
        let found = directory.path().metadata().unwrap();
        let owner = User { uid: found.uid(), gid: found.gid() };
        let (group, others) = (User { uid: 4242, ..owner }, User { uid: 4242, gid: 4242 });
        for (mode, expected) in
            [(0o700, [true, false, false]), (0o710, [true, true, false]), (0o701, [true, false, true])]
        {
            std::fs::set_permissions(directory.path(), Permissions::from_mode(mode)).unwrap();
            assert_eq!([owner, group, others].map(|user| can_search(directory.path(), user)), expected);
        }
    }

    #[test]
    fn effective_capabilities_are_parsed() {
        assert_eq!(effective("CapPrm:\t0000000000000001\nCapEff:\t00000000000000c0\n"), Some(0xc0));
        assert_eq!(effective("Name:\tx\n"), None);
    }
}
