//! Directories of the operating system, which are no workspaces, whatever is configured.

use std::path::Path;

use nix::unistd::Uid;

/// Refused with everything beneath them.
const TREES: [&str; 21] = [
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr/bin",
    "/usr/include",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/sbin",
    "/var/run",
    "/var/spool",
];

/// Refused themselves: what lies beneath them may be a workspace.
const PARENTS: [&str; 5] = ["/", "/home", "/usr", "/var", "/var/lib"];

/// Root's home, refused with everything beneath it unless this process runs as root.
const HOME_OF_ROOT: &str = "/root";

/// The system directory that a path is or lies in.
#[must_use]
pub fn system_directory(path: &Path) -> Option<&'static str> {
    find(path, Uid::effective().is_root())
}

fn find(path: &Path, is_root: bool) -> Option<&'static str> {
    let trees = TREES.into_iter().chain((!is_root).then_some(HOME_OF_ROOT));
    let parents = PARENTS.into_iter().filter(|parent| path == Path::new(parent));
    trees.filter(|tree| path.starts_with(tree)).chain(parents).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_the_system_are_recognized() {
        for path in ["/", "/etc", "/etc/remuda", "/proc/1/root", "/sys", "/dev/shm/x", "/usr", "/var/run/x"] {
            assert!(find(Path::new(path), true).is_some(), "{path}");
        }
        for path in ["/srv", "/srv/etc", "/home/anna", "/var/lib/remuda/workspaces", "/etcetera", "/tmp/x"] {
            assert_eq!(find(Path::new(path), false), None, "{path}");
        }
    }

    #[test]
    fn home_of_root_belongs_to_root() {
        for path in ["/root", "/root/project"] {
            assert_eq!(find(Path::new(path), true), None);
            assert_eq!(find(Path::new(path), false), Some("/root"));
        }
    }
}
