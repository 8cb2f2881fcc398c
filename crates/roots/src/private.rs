//! Directories and files that only their owner may use.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use nix::unistd::Uid;

/// Mode of directories with data.
pub(crate) const PRIVATE_DIRECTORY: u32 = 0o700;
/// Mode of files with data.
const PRIVATE_FILE: u32 = 0o600;
/// What a group and others may do.
const OTHERS: u32 = 0o077;
/// A directory with one of these is shared on purpose: writable by others, or sticky, like /tmp.
const SHARED: u32 = 0o1022;

/// Something that other users of the machine may read, and its mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposed {
    pub path: PathBuf,
    pub mode: u32,
}

/// What group and others may do with a file or directory; `None` if that is nothing, or if it does not exist.
#[must_use]
pub fn exposed(path: &Path) -> Option<Exposed> {
    let mode = fs::metadata(path).ok()?.mode() & 0o7777;
    (mode & OTHERS != 0).then(|| Exposed { path: path.to_owned(), mode })
}

/// Creates a directory, and missing ones above it, for the owner alone.
pub fn create_private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(PRIVATE_DIRECTORY).create(path)
}

/// Takes the rights of others to an existing directory or file away. Returns what stays exposed: what belongs to another
/// user, and directories that are shared on purpose.
pub fn restrict(path: &Path) -> io::Result<Option<Exposed>> {
    let Some(found) = exposed(path) else { return Ok(None) };
    let metadata = fs::metadata(path)?;
    let is_shared = metadata.is_dir() && found.mode & SHARED != 0;
    if is_shared || metadata.uid() != Uid::effective().as_raw() {
        return Ok(Some(found));
    }
    let mode = if metadata.is_dir() { PRIVATE_DIRECTORY } else { PRIVATE_FILE };
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    Ok(None)
}

/// Opens a file for writing, and creates it for the owner alone. Its contents are removed.
pub fn create_private_file(path: &Path) -> io::Result<File> {
    File::options().write(true).create(true).truncate(true).mode(PRIVATE_FILE).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn with_mode(path: &Path, mode: u32) -> &Path {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn what_is_created_is_private() {
        let base = tempfile::tempdir().unwrap();
        let deep = base.path().join("a/b");
        create_private_directory(&deep).unwrap();
        create_private_directory(&deep).unwrap();
        create_private_file(&deep.join("file")).unwrap();
        assert_eq!(
            [mode(&deep), mode(&base.path().join("a")), mode(&deep.join("file"))],
            [0o700, 0o700, 0o600]
        );
    }

    #[test]
    fn existing_directories_and_files_are_restricted_unless_they_are_shared() {
        let base = tempfile::tempdir().unwrap();
        let (directory, file) = (base.path().join("data"), base.path().join("file"));
        fs::create_dir(&directory).unwrap();
        fs::write(&file, "").unwrap();
        for open in [0o755, 0o750, 0o711] {
            assert_eq!(exposed(with_mode(&directory, open)).unwrap().mode, open);
            assert_eq!(restrict(&directory).unwrap(), None);
            assert_eq!(mode(&directory), 0o700);
        }
        assert_eq!(restrict(with_mode(&file, 0o664)).unwrap(), None);
        assert_eq!(mode(&file), 0o600);
        for shared in [0o1755, 0o775, 0o777] {
            let kept = restrict(with_mode(&directory, shared)).unwrap();
            assert_eq!(kept, Some(Exposed { path: directory.clone(), mode: shared }));
            assert_eq!(mode(&directory), shared);
        }
        assert_eq!(restrict(&base.path().join("missing")).unwrap(), None);
    }
}
