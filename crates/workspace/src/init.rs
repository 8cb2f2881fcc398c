//! Initializes a workspace from a template.
//!
//! A template is only read once, here. Existing files are never changed. All files are written to a staging directory
//! first, and then appear one by one with their full contents. On failure, the files that have appeared are removed.

mod copy;
mod templates;

use std::{
    fs,
    path::{Path, PathBuf},
};

use remuda_domain::error::{Code, Error, Result};

use self::copy::{NewFile, collect};

const SETTINGS: &str = ".openharness/settings.yaml";

/// The initial files of a workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Template {
    /// One of [`Template::BUILT_IN`].
    BuiltIn(&'static str),
    Directory {
        name: String,
        path: PathBuf,
    },
}

impl Template {
    /// The names of the built-in templates.
    pub const BUILT_IN: [&'static str; 2] = templates::NAMES;

    /// The template of this name: a directory of the operator, or a built-in one.
    pub fn named(name: &str, directory: Option<&Path>) -> Result<Self> {
        let plain = crate::parse::is_name(name);
        if let Some(path) = directory.filter(|_| plain).map(|directory| directory.join(name))
            && path.is_dir()
        {
            return Ok(Self::Directory { name: name.to_owned(), path });
        }
        let built_in = templates::NAMES.into_iter().find(|known| *known == name);
        built_in.map(Self::BuiltIn).ok_or_else(|| {
            let message =
                format!("expected {}, or a template of the operator's", templates::NAMES.join(", "));
            Error::invalid("template", message)
        })
    }

    /// A template from any directory.
    pub fn directory(path: &Path) -> Result<Self> {
        let path = path.canonicalize().map_err(|error| {
            Error::new(Code::FileNotFound, format!("{} does not exist", path.display()))
                .at("template")
                .with_source(error)
        })?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self::Directory { name, path })
    }

    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::BuiltIn(name) => name,
            Self::Directory { name, .. } => name,
        }
    }
}

/// The result of [`init`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitReport {
    pub template: String,
    /// New files, relative to the root.
    pub created: Vec<PathBuf>,
    /// Files that existed and were left unchanged.
    pub kept: Vec<PathBuf>,
}

/// Copies the files of a template into a directory. The directory and some of the files may exist already.
pub fn init(root: &Path, template: &Template) -> Result<InitReport> {
    let mut files = match template {
        Template::BuiltIn(name) => templates::files(name),
        Template::Directory { path, .. } => collect(path)?,
    };
    record(&mut files, template.name())?;
    fs::create_dir_all(root).map_err(|error| failed(root, error))?;
    let root = root.canonicalize().map_err(|error| failed(root, error))?;

    let mut report = InitReport { template: template.name().to_owned(), ..InitReport::default() };
    let mut missing = Vec::new();
    for file in files {
        // Keep anything that exists, including dangling links.
        match root.join(&file.path).symlink_metadata() {
            Ok(_) => report.kept.push(file.path),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => missing.push(file),
            Err(error) => return Err(failed(&file.path, error)),
        }
    }
    report.created = copy::create_files(&root, &missing)?;
    report.kept.sort();
    report.created.sort();
    Ok(report)
}

/// Records the template's name in the settings file, which is created if the template has none.
fn record(files: &mut Vec<NewFile>, template: &str) -> Result<()> {
    let line = format!("template: {}\n", serde_json::Value::from(template));
    match files.iter_mut().find(|file| file.path == Path::new(SETTINGS)) {
        None => files.push(NewFile::text(SETTINGS, &line)),
        Some(file) => {
            let text = file.read_text()?;
            if text.lines().any(|existing| existing.starts_with("template:")) {
                return Ok(());
            }
            let separator = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
            *file = NewFile::text(SETTINGS, &format!("{text}{separator}{line}"));
        }
    }
    Ok(())
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    let code = match error.kind() {
        std::io::ErrorKind::PermissionDenied => Code::PermissionDenied,
        _ => Code::Unavailable,
    };
    Error::new(code, format!("{} cannot be created", path.display())).with_source(error)
}
