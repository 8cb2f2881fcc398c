//! Reading a whole workspace.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use remuda_domain::content::Content;

use crate::{
    agents::{self, Known, Merged},
    cache::Cache,
    definitions::Definitions,
    environment::EnvironmentAccess,
    files::{Budget, Files, Seen},
    parts::{actions, memory, models, prompts, settings, skills, tools},
    report::{Place, Report},
    settings::{Segment, Settings},
    source::Source,
    text::{Position, Text},
};

/// What is read of `AGENTS.md`.
const MAX_INSTRUCTIONS: u64 = 256 * 1024;

/// Where the operator keeps definitions for all workspaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlatformDirectories {
    /// With `*.yaml`.
    pub models: Option<PathBuf>,
    /// With `*.md`.
    pub agents: Option<PathBuf>,
    /// With `<name>/SKILL.md`.
    pub skills: Option<PathBuf>,
    /// With a `settings.yaml`.
    pub tools: Option<PathBuf>,
    /// With a directory per template.
    pub templates: Option<PathBuf>,
}

/// Reads workspaces. Cheap to clone; clones share what they have read.
///
/// Everything here blocks on the file system.
#[derive(Clone)]
pub struct Loader {
    platform: Arc<PlatformDirectories>,
    environment: EnvironmentAccess,
    cache: Arc<Cache>,
}

/// A workspace as it is now.
#[derive(Debug)]
pub struct Current {
    pub definitions: Definitions,
    /// The version that a run keeps: its text and its hash.
    pub content: Content,
}

impl Loader {
    pub fn new(platform: PlatformDirectories, environment: EnvironmentAccess) -> Self {
        Self { platform: Arc::new(platform), environment, cache: Arc::default() }
    }

    #[must_use]
    pub fn platform(&self) -> &PlatformDirectories {
        &self.platform
    }

    /// Reads a workspace. This never fails: what cannot be used is a problem in the result.
    #[must_use]
    pub fn load(&self, root: &Path) -> Definitions {
        self.read(root).0
    }

    /// The workspace as it is now, which is only read again if one of the files that were looked at has changed, or one
    /// appeared that was looked for.
    pub fn current(&self, root: &Path) -> Arc<Current> {
        self.cache.current(root, || {
            let (definitions, seen) = self.read(root);
            let content = definitions.to_content().unwrap_or_else(|error| {
                // Only maps with keys that are no text cannot be written, and there are none.
                tracing::error!(error = %error.chain(), "definitions cannot be written");
                Content::new(String::new())
            });
            (Current { definitions, content }, seen)
        })
    }

    fn read(&self, root: &Path) -> (Definitions, Seen) {
        let (report, budget) = (Report::default(), Budget::new());
        let reading = Reading { loader: self, report: &report, budget: &budget };
        let mut definitions = reading.definitions(root);
        definitions.problems = report.into_problems();
        (definitions, budget.seen.into_inner())
    }
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader")
            .field("platform", &self.platform)
            .field("environment", &self.environment)
            .finish()
    }
}

struct Reading<'a> {
    loader: &'a Loader,
    report: &'a Report,
    budget: &'a Budget,
}

impl Reading<'_> {
    fn definitions(&self, root: &Path) -> Definitions {
        let mut definitions = Definitions::default();
        let mut merged = Merged::default();
        merged.lay(agents::read_built_in(self.report), self.report);
        self.platform(&mut definitions, &mut merged);
        let mut file = settings::SettingsFile::default();
        let mut opencode = agents::Project::default();
        match Files::workspace(root, self.budget) {
            Err(fault) => {
                let shown = root.display().to_string();
                Place::new(self.report, &shown).fault(fault);
            }
            Ok(files) => {
                let source = self.source(&files);
                file = settings::read(source);
                opencode = self.workspace(source, &file, &mut definitions, &mut merged);
                file.settings.prompt = prompts::read(source, file.settings.prompt);
                definitions.instructions = self.instructions(source);
                definitions.memory = memory::read(source, &file.settings.memory);
            }
        }
        definitions.settings = file.settings;
        // Ours stand behind those of OpenCode: they count more.
        definitions.settings.permission.splice(0..0, opencode.rules);
        self.check_models(&definitions, &file.aliased, file.summarizer.as_ref());
        self.check_memory(&definitions, file.memory);
        let known = Known {
            settings: &definitions.settings,
            models: &definitions.models,
            actions: &definitions.actions,
            skills: &definitions.skills,
            servers: &definitions.tool_servers,
        };
        definitions.absent = merged.absent();
        definitions.agents = agents::link(merged.into_drafts(), known, self.report);
        let ours = file.default_agent.map(|name| (settings::FILE.to_owned(), name));
        self.choose_default(&mut definitions, ours.or(opencode.default_agent));
        definitions
    }

    fn source<'b>(&'b self, files: &'b Files<'b>) -> Source<'b> {
        Source { files, environment: &self.loader.environment, report: self.report }
    }

    /// The operator's definitions, which the workspace's may replace.
    fn platform(&self, definitions: &mut Definitions, merged: &mut Merged) {
        let directories = &*self.loader.platform;
        let read = |directory: &Option<PathBuf>, read: &mut dyn FnMut(Source<'_>)| {
            if let Some(directory) = directory {
                let files = Files::platform(directory, self.budget);
                read(self.source(&files));
            }
        };
        let here = Path::new("");
        read(&directories.models, &mut |source| models::read(source, here, &mut definitions.models));
        read(&directories.tools, &mut |source| {
            tools::read(source, Path::new("settings.yaml"), &mut definitions.tool_servers);
        });
        read(&directories.agents, &mut |source| {
            merged.lay(agents::read_openharness(source, Path::new(agents::PLATFORM_AGENTS)), self.report);
        });
    }

    /// The workspace's own, in the formats of all systems. Returns what OpenCode has besides agents.
    fn workspace(
        &self,
        source: Source<'_>,
        file: &settings::SettingsFile,
        definitions: &mut Definitions,
        merged: &mut Merged,
    ) -> agents::Project {
        models::read(source, Path::new(".openharness/models"), &mut definitions.models);
        tools::read(source, Path::new(".openharness/tools/settings.yaml"), &mut definitions.tool_servers);
        actions::read(source, Path::new(".openharness/actions"), &mut definitions.actions);
        skills::read(source, &skills::own_directory(), &mut definitions.skills);
        skills::read_named(source, settings::FILE, &file.skill_directories, &mut definitions.skills);
        if let Some(directory) = &self.loader.platform.skills {
            let files = Files::platform(directory, self.budget);
            skills::read(self.source(&files), Path::new(""), &mut definitions.skills);
        }
        let mut opencode = agents::read_opencode(source, |name| merged.get(name));
        merged.lay(agents::read_codingcode(source), self.report);
        merged.lay(std::mem::take(&mut opencode.agents), self.report);
        merged.lay(agents::read_openharness(source, Path::new(agents::WORKSPACE_AGENTS)), self.report);
        opencode
    }

    fn instructions(&self, source: Source<'_>) -> Option<String> {
        const FILE: &str = "AGENTS.md";
        let place = Place::new(self.report, FILE);
        let contents = source.take(source.files.read_some(Path::new(FILE), MAX_INSTRUCTIONS), &place)??;
        if contents.cut {
            let limit = MAX_INSTRUCTIONS / 1024;
            place.warn(Position::FILE, format!("is larger than {limit} KiB: the rest is left off"));
        }
        let text = contents.text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    fn check_models(&self, definitions: &Definitions, aliased: &[Text], summarizer: Option<&Text>) {
        let place = Place::new(self.report, settings::FILE);
        for reference in aliased {
            if definitions.model(&reference.text).is_err() {
                place.warn(reference.at, format!("models: there is no model {}", reference.shown()));
            }
        }
        if let Some(model) = summarizer.filter(|model| definitions.named_model(model.text.trim()).is_err()) {
            place.warn(model.at, format!("context.model: there is no model {}", model.shown()));
        }
    }

    fn check_memory(&self, definitions: &Definitions, at: Option<Position>) {
        let told = definitions.settings.prompt.order.contains(&Segment::Memory);
        if let Some(at) = at.filter(|_| definitions.memory.is_some() && !told) {
            let message =
                "memory: is not told to anyone, because `memory` is not in the order of the system prompt";
            Place::new(self.report, settings::FILE).warn(at, message);
        }
    }

    /// A default agent that cannot be used stays named: sessions that name none get an error, not another agent.
    fn choose_default(&self, definitions: &mut Definitions, chosen: Option<(String, Text)>) {
        let Some((file, name)) = chosen else { return };
        let place = Place::new(self.report, &file);
        match definitions.agents.get(&name.text) {
            None => place.error(name.at, format!("default_agent: there is no agent {}", name.shown())),
            Some(agent) if !agent.mode.may_lead() => {
                let message = "only works for other agents (mode: subagent)";
                place.error(name.at, format!("default_agent: the agent {} {message}", name.shown()));
            }
            Some(_) => {}
        }
        let Settings { default_agent, .. } = &mut definitions.settings;
        *default_agent = Some(name.text);
    }
}
