//! Finding, reading and merging the sources.

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use config::{ConfigError, FileFormat};

use crate::{
    entries::Entries,
    error::{Error, Origin, Problem},
    layer::origin_of,
    tree::Config,
    validate,
};

/// What [`Config::load`] reads.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The file named with `--config`. It must exist.
    pub file: Option<PathBuf>,
    /// The environment. Besides `REMUDA_…` it is asked for `HOME` and `XDG_DATA_HOME`.
    pub env: Vec<(String, String)>,
    /// Keys and values that flags set, such as `("server.listen", "127.0.0.1:0")`.
    pub overrides: Vec<(String, String)>,
    /// Where to look for a file when none is named. The first that exists is read.
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

    /// The file that [`Config::load`] reads, if there is one. A named file need not exist.
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

    /// `XDG_DATA_HOME` or its default, as far as a home is known.
    fn default_data_dir(&self) -> Option<PathBuf> {
        // The XDG specification has relative paths ignored.
        let xdg = self.variable("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let home = || self.variable("HOME").map(|home| Path::new(home).join(".local/share"));
        xdg.or_else(home).map(|base| base.join("remuda"))
    }

    /// Makes a path independent of the working directory: it is recorded in the store and must mean the same
    /// after a restart elsewhere.
    fn absolute(&self, path: &Path) -> PathBuf {
        let expanded = match (path.strip_prefix("~"), self.variable("HOME")) {
            (Ok(rest), Some(home)) => Path::new(home).join(rest),
            _ => path.to_owned(),
        };
        std::path::absolute(&expanded).unwrap_or(expanded)
    }
}

/// A configuration and how it came to be.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub config: Config,
    /// The file that was read.
    pub file: Option<PathBuf>,
    /// Where each key that is not at its default was set last.
    pub origins: BTreeMap<String, Origin>,
}

impl Loaded {
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

    /// Like [`Config::load`], and says where values came from.
    pub fn load_with_origins(options: &LoadOptions) -> Result<Loaded, Error> {
        let file = options.find_file()?;
        let mut entries = Entries::new();
        let mut layers = config::Config::builder()
            .add_source(config::File::from_str(Self::default_file(), FileFormat::Toml));
        if let Some(path) = &file {
            match std::fs::read_to_string(path) {
                Ok(text) => layers = layers.add_source(entries.file(path, &text)),
                Err(error) => entries.problems.push(unreadable(path, &error)),
            }
        }
        layers = layers
            .add_source(entries.environment(&options.env))
            .add_source(entries.command_line(&options.overrides));
        // Rules about several keys would only mislead while some of them could not be read.
        Error::check(std::mem::take(&mut entries.problems))?;

        // Every value was checked before, so a failure from here on is a mistake of ours.
        let unmerged = |error: ConfigError| Problem {
            key: String::new(),
            origin: Origin::Default,
            message: error.to_string(),
        };
        let merged = layers.build().map_err(unmerged)?;
        let origins: BTreeMap<String, Origin> = entries
            .keys()
            .map(|key| (key.to_owned(), origin_of(&merged, key, file.as_deref())))
            .filter(|(_, origin)| *origin != Origin::Default)
            .collect();
        let mut config: Self = merged.try_deserialize().map_err(unmerged)?;
        config.resolve_directories(options);
        let problems = validate::rules(&config).into_iter().map(|(key, message)| Problem {
            key: key.to_owned(),
            origin: origins.get(key).cloned().unwrap_or(Origin::Default),
            message,
        });
        Error::check(problems.collect())?;
        Ok(Loaded { config, file, origins })
    }

    /// Checks the rules that no single value can break alone. [`Config::load`] does it already; this is for
    /// configurations made by a program.
    pub fn validate(&self) -> Result<(), Error> {
        let problems = validate::rules(self);
        let problem = |(key, message): (&str, String)| Problem {
            key: key.to_owned(),
            origin: Origin::Default,
            message,
        };
        Error::check(problems.into_iter().map(problem).collect())
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
        ErrorKind::NotFound => "expected a file, there is none".to_owned(),
        ErrorKind::InvalidData => "expected UTF-8 text".to_owned(),
        _ => format!("expected a readable file: {error}"),
    };
    Problem { key: String::new(), origin: Origin::File(path.to_owned()), message }
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
