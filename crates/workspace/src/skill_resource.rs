//! Reads files of a skill.
//!
//! They are read during a run, whose tools may have replaced files or links since the skill was loaded. So the kernel
//! resolves each path beneath the directory that the skill was loaded from.

use std::{fs::File, io::Read as _, path::Path};

use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    sys::stat::Mode,
};
use remuda_domain::error::{Code, Error, Result};

use crate::{
    definition_files::{is_descendant_path, open_beneath},
    definitions::Skill,
};

/// Longer files are truncated.
const MAX_BYTES: u64 = 256 * 1024;

impl Skill {
    /// Reads the beginning of a file of the skill. `path` is relative to the skill's directory. Blocking.
    pub fn read_resource(&self, path: &str) -> Result<String> {
        let outside = || Error::new(Code::PathNotAllowed, "expected a file of the skill");
        let missing = || Error::new(Code::FileNotFound, "the skill has no such file");
        if !is_descendant_path(path) {
            return Err(outside());
        }
        let folder = self.directory.strip_prefix(&self.root).map_err(|_| outside())?;
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = open(&self.root, flags, Mode::empty()).map_err(|_| missing())?;
        // Without O_NONBLOCK, opening a FIFO would wait for a writer.
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let file =
            open_beneath(&root, &folder.join(Path::new(path)), flags).map_err(|errno| match errno {
                Errno::EXDEV | Errno::ELOOP => outside(),
                _ => missing(),
            })?;
        let file = File::from(file);
        if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Err(missing());
        }
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(|_| missing())?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn skill_reads_only_files_beneath_its_directory() {
        let directories = tempfile::tempdir().unwrap();
        let (root, directory) = (directories.path().join("w"), directories.path().join("w/skills/s"));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("how.md"), "so").unwrap();
        fs::write(directories.path().join("secret"), "hidden").unwrap();
        symlink(directories.path(), directory.join("out")).unwrap();
        let skill = Skill {
            name: "s".into(),
            description: String::new(),
            root,
            directory: directory.clone(),
            body: "b".into(),
        };
        assert_eq!(skill.read_resource("how.md").unwrap(), "so");
        let code = |path: &str| skill.read_resource(path).unwrap_err().code();
        for path in ["../../../secret", "/etc/passwd", "out/secret"] {
            assert_eq!(code(path), Code::PathNotAllowed, "{path}");
        }
        assert_eq!(code("nothing.md"), Code::FileNotFound);
        assert_eq!(code("."), Code::FileNotFound);
        // The skill's directory is replaced by a link that leads out after loading.
        fs::remove_dir_all(&directory).unwrap();
        symlink(directories.path(), &directory).unwrap();
        assert_eq!(code("secret"), Code::PathNotAllowed);
    }
}
