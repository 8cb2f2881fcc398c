//! The files of a template, and putting them in place.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use remuda_domain::error::{Code, Error, Result};

use super::failed;

const MAX_FILES: usize = 10_000;
const MAX_BYTES: u64 = 256 * 1024 * 1024;
const MAX_DEPTH: usize = 32;

/// A file that is to be made.
#[derive(Debug)]
pub(super) struct NewFile {
    /// As seen from the root.
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

/// All files of a directory. Links are followed as long as they stay within it.
pub(super) fn collect(template: &Path) -> Result<Vec<NewFile>> {
    let template = template.canonicalize().map_err(|error| unusable(template, error))?;
    let mut collected = Collected { template: &template, files: Vec::new(), bytes: 0 };
    collected.directory(&template, Path::new(""), 0)?;
    collected.files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(collected.files)
}

struct Collected<'a> {
    template: &'a Path,
    files: Vec<NewFile>,
    bytes: u64,
}

impl Collected<'_> {
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

/// Makes all files or none, and returns those that were made.
pub(super) fn place(root: &Path, files: &[NewFile]) -> Result<Vec<PathBuf>> {
    if files.is_empty() {
        return Ok(Vec::new());
    }
    // In the same file system, so that each file can appear in one go.
    let staging = Staging::new(root)?;
    for (index, file) in files.iter().enumerate() {
        file.write(&staging.file(index)).map_err(|error| failed(&file.path, error))?;
    }
    let mut made = Made::default();
    for (index, file) in files.iter().enumerate() {
        let directories = make_parents(root, &file.path, &mut made);
        let appeared = directories.and_then(|()| appear(&staging.file(index), &root.join(&file.path)));
        match appeared {
            Ok(true) => made.files.push(file.path.clone()),
            // Someone was faster.
            Ok(false) => {}
            Err(error) => {
                made.undo(root);
                return Err(failed(&file.path, error));
            }
        }
    }
    Ok(made.files)
}

/// Gives a file its name, unless something has it.
fn appear(staged: &Path, target: &Path) -> io::Result<bool> {
    match fs::hard_link(staged, target) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(error),
        // Not every file system has hard links.
        Err(_) if target.symlink_metadata().is_ok() => Ok(false),
        Err(_) => fs::rename(staged, target).map(|()| true),
    }
}

/// Makes the directories of a file, none of which may be a link: it could lead anywhere.
fn make_parents(root: &Path, path: &Path, made: &mut Made) -> io::Result<()> {
    let mut relative = PathBuf::new();
    for component in path.parent().into_iter().flat_map(Path::components) {
        relative.push(component);
        let directory = root.join(&relative);
        match fs::create_dir(&directory) {
            Ok(()) => made.directories.push(relative.clone()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if !directory.symlink_metadata()?.is_dir() {
                    return Err(io::Error::new(io::ErrorKind::NotADirectory, "a directory is needed there"));
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[derive(Default)]
struct Made {
    files: Vec<PathBuf>,
    directories: Vec<PathBuf>,
}

impl Made {
    /// As well as it goes: what was filled by others meanwhile stays.
    fn undo(&self, root: &Path) {
        for file in &self.files {
            drop(fs::remove_file(root.join(file)));
        }
        for directory in self.directories.iter().rev() {
            drop(fs::remove_dir(root.join(directory)));
        }
    }
}

/// A directory that goes away with this value.
struct Staging(PathBuf);

impl Staging {
    fn new(root: &Path) -> Result<Self> {
        for attempt in 0..1000_u32 {
            let path = root.join(format!(".remuda-init-{}-{attempt}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(&path, error)),
            }
        }
        Err(Error::new(Code::Unavailable, format!("{} is full of unfinished copies", root.display())))
    }

    fn file(&self, index: usize) -> PathBuf {
        self.0.join(index.to_string())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "a directory with copies cannot be removed");
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
