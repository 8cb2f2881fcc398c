//! Collects the files of a template and copies them into a workspace.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use remuda_domain::error::{Code, Error, Result};

use super::failed;

const MAX_FILES: usize = 10_000;
const MAX_BYTES: u64 = 256 * 1024 * 1024;
const MAX_DEPTH: usize = 32;

/// A file to be created.
#[derive(Debug)]
pub(super) struct NewFile {
    /// Relative to the root.
    pub path: PathBuf,
    contents: Contents,
}

#[derive(Debug)]
enum Contents {
    Text(String),
    /// Copied with its permissions.
    CopyOf(PathBuf),
}

impl NewFile {
    pub(super) fn text(path: &str, text: &str) -> Self {
        Self { path: path.into(), contents: Contents::Text(text.to_owned()) }
    }

    pub(super) fn read_text(&self) -> Result<String> {
        match &self.contents {
            Contents::Text(text) => Ok(text.clone()),
            Contents::CopyOf(path) => fs::read_to_string(path).map_err(|error| unusable(&self.path, error)),
        }
    }

    fn write(&self, to: &Path) -> io::Result<()> {
        match &self.contents {
            Contents::Text(text) => fs::write(to, text),
            Contents::CopyOf(from) => fs::copy(from, to).map(|_| ()),
        }
    }
}

/// Collects all files of a directory. Links to files are followed if they stay within it.
pub(super) fn collect(template: &Path) -> Result<Vec<NewFile>> {
    let template = template.canonicalize().map_err(|error| unusable(template, error))?;
    let mut collector = FileCollector { template: &template, files: Vec::new(), bytes: 0 };
    collector.directory(&template, Path::new(""), 0)?;
    collector.files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(collector.files)
}

struct FileCollector<'a> {
    template: &'a Path,
    files: Vec<NewFile>,
    bytes: u64,
}

impl FileCollector<'_> {
    fn directory(&mut self, directory: &Path, shown: &Path, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(refused(shown, &format!("is more than {MAX_DEPTH} directories deep")));
        }
        for entry in fs::read_dir(directory).map_err(|error| unusable(shown, error))? {
            let entry = entry.map_err(|error| unusable(shown, error))?;
            let shown = shown.join(entry.file_name());
            if entry.file_name() == ".git" {
                continue;
            }
            let real = entry.path().canonicalize().map_err(|error| unusable(&shown, error))?;
            if !real.starts_with(self.template) {
                return Err(refused(&shown, "leads out of the template"));
            }
            let is_link = entry.file_type().map_err(|error| unusable(&shown, error))?.is_symlink();
            let metadata = fs::metadata(&real).map_err(|error| unusable(&shown, error))?;
            if metadata.is_file() {
                self.file(real, shown, metadata.len())?;
            } else if metadata.is_dir() && !is_link {
                self.directory(&real, &shown, depth + 1)?;
            } else {
                return Err(refused(&shown, "is neither a file nor a directory"));
            }
        }
        Ok(())
    }

    fn file(&mut self, real: PathBuf, path: PathBuf, size: u64) -> Result<()> {
        self.bytes += size;
        if self.files.len() >= MAX_FILES || self.bytes > MAX_BYTES {
            let limits = format!("{MAX_FILES} files or {} MiB", MAX_BYTES >> 20);
            return Err(refused(Path::new("the template"), &format!("has more than {limits}")));
        }
        self.files.push(NewFile { path, contents: Contents::CopyOf(real) });
        Ok(())
    }
}

/// Creates all files or none, and returns the created ones. Files that exist are skipped.
pub(super) fn create_files(root: &Path, files: &[NewFile]) -> Result<Vec<PathBuf>> {
    if files.is_empty() {
        return Ok(Vec::new());
    }
    // On the same file system as the root, so that each file appears atomically.
    let staging = StagingDirectory::new(root)?;
    for (index, file) in files.iter().enumerate() {
        file.write(&staging.file(index)).map_err(|error| failed(&file.path, error))?;
    }
    let mut created = CreatedPaths::default();
    for (index, file) in files.iter().enumerate() {
        let directories = make_parents(root, &file.path, &mut created);
        let linked = directories.and_then(|()| link_into_place(&staging.file(index), &root.join(&file.path)));
        match linked {
            Ok(true) => created.files.push(file.path.clone()),
            // The file was created concurrently.
            Ok(false) => {}
            Err(error) => {
                created.undo(root);
                return Err(failed(&file.path, error));
            }
        }
    }
    Ok(created.files)
}

/// Links a staged file to its name; `false` if the name exists.
fn link_into_place(staged: &Path, target: &Path) -> io::Result<bool> {
    match fs::hard_link(staged, target) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(error),
        // The file system may not support hard links.
        Err(_) if target.symlink_metadata().is_ok() => Ok(false),
        Err(_) => fs::rename(staged, target).map(|()| true),
    }
}

/// Creates the parent directories of a file. None of them may be a link, since it could lead out of the root.
fn make_parents(root: &Path, path: &Path, created: &mut CreatedPaths) -> io::Result<()> {
    let mut relative = PathBuf::new();
    for component in path.parent().into_iter().flat_map(Path::components) {
        relative.push(component);
        let directory = root.join(&relative);
        match fs::create_dir(&directory) {
            Ok(()) => created.directories.push(relative.clone()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if !directory.symlink_metadata()?.is_dir() {
                    return Err(io::Error::new(io::ErrorKind::NotADirectory, "expected a directory"));
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[derive(Default)]
struct CreatedPaths {
    files: Vec<PathBuf>,
    directories: Vec<PathBuf>,
}

impl CreatedPaths {
    /// Best effort: a directory that has been filled concurrently stays.
    fn undo(&self, root: &Path) {
        for file in &self.files {
            drop(fs::remove_file(root.join(file)));
        }
        for directory in self.directories.iter().rev() {
            drop(fs::remove_dir(root.join(directory)));
        }
    }
}

/// A directory that is removed when this value is dropped.
struct StagingDirectory(PathBuf);

impl StagingDirectory {
    fn new(root: &Path) -> Result<Self> {
        for attempt in 0..1000_u32 {
            let path = root.join(format!(".remuda-init-{}-{attempt}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(&path, error)),
            }
        }
        Err(Error::new(
            Code::Unavailable,
            format!("{} has too many leftover .remuda-init-* directories", root.display()),
        ))
    }

    fn file(&self, index: usize) -> PathBuf {
        self.0.join(index.to_string())
    }
}

impl Drop for StagingDirectory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "removing the staging directory failed");
        }
    }
}

fn unusable(path: &Path, error: io::Error) -> Error {
    let message = format!("{} of the template cannot be read", path.display());
    Error::new(Code::Unavailable, message).at("template").with_source(error)
}

fn refused(path: &Path, message: &str) -> Error {
    Error::new(Code::PathNotAllowed, format!("{} {message}", path.display())).at("template")
}
