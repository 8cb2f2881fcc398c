//! Finds, reads and merges the sources.

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use config::{ConfigError, FileFormat};

use crate::{
    error::{Error, Origin, Problem},
    layer::origin_of,
    source_parser::SourceParser,
    tree::Config,
    validate,
};

/// The sources that [`Config::load`] reads.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The file set by `--config`. It must exist.
    pub file: Option<PathBuf>,
    /// The environment: `REMUDA_…`, `HOME` and `XDG_DATA_HOME` are used.
    pub env: Vec<(String, String)>,
    /// Keys and values set by flags, such as `("server.listen", "127.0.0.1:0")`.
    pub overrides: Vec<(String, String)>,
    /// Paths to try if no file is set. The first that exists is read.
    pub search: Vec<PathBuf>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            file: None,
            env: Vec::new(),
            overrides: Vec::new(),
            search: vec!["remuda.toml".into(), "/etc/remuda/remuda.toml".into()],
        }
    }
}

impl LoadOptions {
    /// Options with the environment of this process.
    #[must_use]
    pub fn from_process(file: Option<PathBuf>, overrides: Vec<(String, String)>) -> Self {
        let env = std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
            .filter(|(name, _)| name.starts_with("REMUDA_") || name == "HOME" || name == "XDG_DATA_HOME")
            .collect();
        Self { file, env, overrides, ..Self::default() }
    }

    fn variable(&self, name: &str) -> Option<&str> {
        let (_, value) = self.env.iter().find(|(known, _)| known == name)?;
        Some(value.as_str()).filter(|value| !value.is_empty())
    }

    /// The file that [`Config::load`] reads, if any. A file that is set explicitly may be missing.
    pub fn find_file(&self) -> Result<Option<PathBuf>, Error> {
        if let Some(file) = &self.file {
            return Ok(Some(file.clone()));
        }
        if let Some(file) = self.variable("REMUDA_CONFIG") {
            return Ok(Some(file.into()));
        }
        for candidate in &self.search {
            match candidate.try_exists() {
                Ok(true) => return Ok(Some(candidate.clone())),
                Ok(false) => {}
                Err(error) => return Err(unreadable(candidate, &error).into()),
            }
        }
        Ok(None)
    }

    /// `XDG_DATA_HOME` or its default, if the home directory is known.
    fn default_data_dir(&self) -> Option<PathBuf> {
        // The XDG specification says to ignore relative paths.
        let xdg = self.variable("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let home = || self.variable("HOME").map(|home| Path::new(home).join(".local/share"));
        xdg.or_else(home).map(|base| base.join("remuda"))
    }

    /// Makes a path independent of the working directory: it is stored, and must stay valid after a restart in another
    /// directory.
    fn absolute(&self, path: &Path) -> PathBuf {
        let expanded = match (path.strip_prefix("~"), self.variable("HOME")) {
            (Ok(rest), Some(home)) => Path::new(home).join(rest),
            _ => path.to_owned(),
        };
        std::path::absolute(&expanded).unwrap_or(expanded)
    }
}

/// A configuration with the origins of its values.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    pub config: Config,
    /// The file that was read.
    pub file: Option<PathBuf>,
    /// The origin of each key that is not at its default.
    pub origins: BTreeMap<String, Origin>,
}

impl LoadedConfig {
    /// The environment variables in effect.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        self.origins.values().filter_map(|origin| match origin {
            Origin::Variable(name) => Some(name.as_str()),
            _ => None,
        })
    }
}

impl Config {
    /// Reads all sources and checks the result.
    pub fn load(options: &LoadOptions) -> Result<Self, Error> {
        Self::load_with_origins(options).map(|loaded| loaded.config)
    }

    /// Like [`Config::load`], with the origins of the values.
    pub fn load_with_origins(options: &LoadOptions) -> Result<LoadedConfig, Error> {
        let file = options.find_file()?;
        let mut parser = SourceParser::new();
        let mut layers = config::Config::builder()
            .add_source(config::File::from_str(Self::default_file(), FileFormat::Toml));
        if let Some(path) = &file {
            match std::fs::read_to_string(path) {
                Ok(text) => layers = layers.add_source(parser.file(path, &text)),
                Err(error) => parser.problems.push(unreadable(path, &error)),
            }
        }
        layers = layers
            .add_source(parser.environment(&options.env))
            .add_source(parser.command_line(&options.overrides));
        // Checks across keys would be misleading if some of the keys are invalid.
        Error::unless_empty(std::mem::take(&mut parser.problems))?;

        // Every value has been checked, so a failure from here on is a bug.
        let unmerged = |error: ConfigError| Problem {
            key: String::new(),
            origin: Origin::Default,
            message: error.to_string(),
        };
        let merged = layers.build().map_err(unmerged)?;
        let origins: BTreeMap<String, Origin> = parser
            .keys()
            .map(|key| (key.to_owned(), origin_of(&merged, key, file.as_deref())))
            .filter(|(_, origin)| *origin != Origin::Default)
            .collect();
        let mut config: Self = merged.try_deserialize().map_err(unmerged)?;
        config.resolve_directories(options);
        let problems = validate::violations(&config).into_iter().map(|(key, message)| Problem {
            key: key.to_owned(),
            origin: origins.get(key).cloned().unwrap_or(Origin::Default),
            message,
        });
        Error::unless_empty(problems.collect())?;
        Ok(LoadedConfig { config, file, origins })
    }

    /// Checks ranges and constraints between keys. [`Config::load`] does this already; this is for configurations built in
    /// code.
    pub fn validate(&self) -> Result<(), Error> {
        let problems = validate::violations(self);
        let problem = |(key, message): (&str, String)| Problem {
            key: key.to_owned(),
            origin: Origin::Default,
            message,
        };
        Error::unless_empty(problems.into_iter().map(problem).collect())
    }

    fn resolve_directories(&mut self, options: &LoadOptions) {
        if self.data_dir.as_os_str().is_empty() {
            self.data_dir = options.default_data_dir().unwrap_or_default();
        } else {
            self.data_dir = options.absolute(&self.data_dir);
        }
        let platform = &mut self.platform;
        for directory in [
            &mut platform.models_dir,
            &mut platform.agents_dir,
            &mut platform.skills_dir,
            &mut platform.tools_dir,
            &mut platform.templates_dir,
        ] {
            if !directory.as_os_str().is_empty() {
                *directory = options.absolute(directory);
            }
        }
        if !self.workspaces.root.as_os_str().is_empty() {
            self.workspaces.root = options.absolute(&self.workspaces.root);
        } else if !self.data_dir.as_os_str().is_empty() {
            self.workspaces.root = self.data_dir.join("workspaces");
        }
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Problem {
    let message = match error.kind() {
        ErrorKind::NotFound => "the file does not exist".to_owned(),
        ErrorKind::InvalidData => "expected UTF-8 text".to_owned(),
        _ => format!("expected a readable file: {error}"),
    };
    Problem { key: String::new(), origin: Origin::File(path.to_owned()), message }
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
