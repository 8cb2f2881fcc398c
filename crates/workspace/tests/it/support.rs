//! A workspace in a temporary directory.

use std::{
    fs,
    path::{Path, PathBuf},
};

use remuda_domain::tool::ToolCatalog;
use remuda_tools::{Registry, ToolOptions};
use remuda_workspace::{Definitions, EnvironmentAccess, Loader, PlatformDirectories, Problem, Severity};

pub(crate) struct Workspace {
    directory: tempfile::TempDir,
}

/// A valid agent.
pub(crate) const GOOD: &str = "---\nmode: primary\ndescription: works\ntools: {native: ['*'], actions: ['*'], skills: ['*'], external: ['*']}\n---\n\nYou work.\n";

/// All tools that agents have.
pub(crate) fn tools() -> ToolCatalog {
    remuda_engine::tool_catalog(&Registry::native(&ToolOptions::default()))
}

impl Workspace {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["workspace", "platform"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        Self { directory }
    }

    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        let workspace = Self::new();
        for (path, text) in files {
            workspace.write(path, text);
        }
        workspace
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.directory.path().join("workspace")
    }

    /// The parent of the operator's directories.
    pub(crate) fn platform(&self) -> PathBuf {
        self.directory.path().join("platform")
    }

    /// Writes a file of the workspace, or of the platform if it begins with `platform:`.
    pub(crate) fn write(&self, path: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = match path.strip_prefix("platform:") {
            Some(path) => self.platform().join(path),
            None => self.root().join(path),
        };
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn loader(&self) -> Loader {
        let platform = |name: &str| Some(self.platform().join(name));
        let directories = PlatformDirectories {
            models: platform("models"),
            agents: platform("agents"),
            skills: platform("skills"),
            tools: platform("tools"),
            templates: platform("templates"),
        };
        let variables =
            [("TEAM_KEY", "sk-team-hidden"), ("TEAM_NUMBER", "0.25"), ("SECRET", "sk-secret-hidden")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Loader::new(directories, EnvironmentAccess::new(variables, ["TEAM_*".to_owned()]), tools())
    }

    pub(crate) fn load(&self) -> Definitions {
        self.loader().load(&self.root())
    }
}

/// All problems, one per line.
pub(crate) fn listed(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("{:?} {problem}\n", problem.severity)).collect()
}

pub(crate) fn errors(definitions: &Definitions) -> Vec<&Problem> {
    definitions.problems.iter().filter(|problem| problem.severity == Severity::Error).collect()
}

pub(crate) fn assert_no_problems(definitions: &Definitions) {
    assert!(definitions.problems.is_empty(), "{}", listed(&definitions.problems));
}

/// The path of a fixture.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}
