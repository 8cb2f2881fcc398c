//! Finds libfaketime, which fakes the wall clock of a process.

use std::{env, fs, path::PathBuf};

const LIBRARY: &str = "faketime/libfaketimeMT.so.1";
/// Debian has a directory per architecture below the first; others use the second.
const DIRECTORIES: [&str; 2] = ["/usr/lib", "/usr/lib64"];

/// Names the library if it is in none of these.
const VARIABLE: &str = "REMUDA_TEST_FAKETIME";

/// The library for multi-threaded programs, if it is installed. Debian's package is `faketime`.
#[must_use]
pub fn faketime_library() -> Option<PathBuf> {
    if let Some(path) = env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        return Some(PathBuf::from(path)).filter(|path| path.is_file());
    }
    find(&DIRECTORIES.map(PathBuf::from))
}

fn find(roots: &[PathBuf]) -> Option<PathBuf> {
    let directories = roots.iter().flat_map(|root| {
        let below = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
        std::iter::once(root.clone()).chain(below)
    });
    directories.map(|directory| directory.join(LIBRARY)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_is_found_below_the_architecture_directory() {
        let root = tempfile::tempdir().unwrap();
        let roots = [root.path().join("absent"), root.path().to_owned()];
        assert_eq!(find(&roots), None);
        let path = root.path().join("x86_64-linux-gnu").join(LIBRARY);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        assert_eq!(find(&roots), Some(path));
    }
}
