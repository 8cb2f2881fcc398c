//! Loads all definitions of a workspace.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use remuda_domain::{content::Content, tool::ToolCatalog};

use crate::{
    agents::{self, Catalog, MergedAgents},
    cache::Cache,
    definition_dir::Source,
    definition_files::{FileStamps, Files, LoadState},
    definitions::Definitions,
    environment::EnvironmentAccess,
    parse::{LocatedText, Position},
    report::{Report, Reporter},
    sections::{actions, memory, models, prompts, settings, skills, tools},
    settings::{Segment, Settings},
};

/// Bytes of `AGENTS.md` that are read.
const MAX_INSTRUCTIONS: u64 = 256 * 1024;

/// The operator's directories with definitions for all workspaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlatformDirectories {
    /// Contains `*.yaml`.
    pub models: Option<PathBuf>,
    /// Contains `*.md`.
    pub agents: Option<PathBuf>,
    /// Contains `<name>/SKILL.md`.
    pub skills: Option<PathBuf>,
    /// Contains a `settings.yaml`.
    pub tools: Option<PathBuf>,
    /// Contains a directory per template.
    pub templates: Option<PathBuf>,
}

/// Loads workspaces. Cheap to clone; clones share a cache.
///
/// All methods block on the file system.
#[derive(Clone)]
pub struct Loader {
    platform: Arc<PlatformDirectories>,
    environment: EnvironmentAccess,
    tools: ToolCatalog,
    cache: Arc<Cache>,
}

/// The current definitions of a workspace, with their version.
#[derive(Debug)]
pub struct LoadedWorkspace {
    pub definitions: Definitions,
    /// The version that a run keeps: the serialized definitions and their hash.
    pub content: Content,
}

impl Loader {
    /// `tools` are those that agents may have, apart from actions and tools of servers.
    pub fn new(platform: PlatformDirectories, environment: EnvironmentAccess, tools: ToolCatalog) -> Self {
        Self { platform: Arc::new(platform), environment, tools, cache: Arc::default() }
    }

    #[must_use]
    pub fn tools(&self) -> &ToolCatalog {
        &self.tools
    }

    #[must_use]
    pub fn platform(&self) -> &PlatformDirectories {
        &self.platform
    }

    /// Loads a workspace. This never fails: invalid definitions become problems in the result.
    #[must_use]
    pub fn load(&self, root: &Path) -> Definitions {
        self.read(root).0
    }

    /// The current definitions, from the cache unless a file that was read has changed or a missing one has appeared.
    pub fn current(&self, root: &Path) -> Arc<LoadedWorkspace> {
        self.cache.current(root, || {
            let (definitions, stamps) = self.read(root);
            let content = definitions.to_content().unwrap_or_else(|error| {
                // Serialization only fails for maps with keys that are not strings, and there are none.
                tracing::error!(error = %error.chain(), "serializing definitions failed");
                Content::new(String::new())
            });
            (LoadedWorkspace { definitions, content }, stamps)
        })
    }

    fn read(&self, root: &Path) -> (Definitions, FileStamps) {
        let (report, state) = (Report::default(), LoadState::new());
        let load = Load { loader: self, report: &report, state: &state };
        let mut definitions = load.definitions(root);
        definitions.problems = report.into_problems();
        (definitions, state.stamps.into_inner())
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

/// One load of a workspace.
struct Load<'a> {
    loader: &'a Loader,
    report: &'a Report,
    state: &'a LoadState,
}

impl Load<'_> {
    fn definitions(&self, root: &Path) -> Definitions {
        let mut definitions = Definitions::default();
        let mut merged = MergedAgents::default();
        merged.add_layer(agents::read_built_in(self.report, &self.loader.tools), self.report);
        self.platform(&mut definitions, &mut merged);
        let mut file = settings::SettingsFile::default();
        let mut opencode = agents::OpenCodeProject::default();
        match Files::workspace(root, self.state) {
            Err(fault) => {
                let shown = root.display().to_string();
                Reporter::for_file(self.report, &shown).fault(fault);
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
        // Native rules come after those of OpenCode, and the last matching rule wins.
        definitions.settings.permission.splice(0..0, opencode.rules);
        self.check_models(&definitions, &file.aliased, file.summary_model.as_ref());
        self.check_memory(&definitions, file.memory_position);
        let catalog = Catalog {
            settings: &definitions.settings,
            models: &definitions.models,
            actions: &definitions.actions,
            skills: &definitions.skills,
            servers: &definitions.tool_servers,
            tools: &self.loader.tools,
        };
        definitions.absent = merged.absent();
        definitions.agents = agents::resolve_agents(merged.into_unresolved(), catalog, self.report);
        let ours = file.default_agent.map(|name| (settings::FILE.to_owned(), name));
        self.choose_default(&mut definitions, ours.or(opencode.default_agent));
        definitions
    }

    fn source<'b>(&'b self, files: &'b Files<'b>) -> Source<'b> {
        let Loader { environment, tools, .. } = self.loader;
        Source { files, environment, tools, report: self.report }
    }

    /// Reads the operator's definitions, which those of the workspace may replace.
    fn platform(&self, definitions: &mut Definitions, merged: &mut MergedAgents) {
        let directories = &*self.loader.platform;
        let read = |directory: &Option<PathBuf>, read: &mut dyn FnMut(Source<'_>)| {
            if let Some(directory) = directory {
                let files = Files::platform(directory, self.state);
                read(self.source(&files));
            }
        };
        let here = Path::new("");
        read(&directories.models, &mut |source| models::read(source, here, &mut definitions.models));
        read(&directories.tools, &mut |source| {
            tools::read(source, Path::new("settings.yaml"), &mut definitions.tool_servers);
        });
        read(&directories.agents, &mut |source| {
            merged
                .add_layer(agents::read_openharness(source, Path::new(agents::PLATFORM_AGENTS)), self.report);
        });
    }

    /// Reads the workspace's definitions in all formats. Returns the OpenCode project for its settings besides agents.
    fn workspace(
        &self,
        source: Source<'_>,
        file: &settings::SettingsFile,
        definitions: &mut Definitions,
        merged: &mut MergedAgents,
    ) -> agents::OpenCodeProject {
        models::read(source, Path::new(".openharness/models"), &mut definitions.models);
        tools::read(source, Path::new(".openharness/tools/settings.yaml"), &mut definitions.tool_servers);
        actions::read(source, Path::new(".openharness/actions"), &mut definitions.actions);
        skills::read(source, &skills::own_directory(), &mut definitions.skills);
        skills::read_configured(source, settings::FILE, &file.skill_directories, &mut definitions.skills);
        if let Some(directory) = &self.loader.platform.skills {
            let files = Files::platform(directory, self.state);
            skills::read(self.source(&files), Path::new(""), &mut definitions.skills);
        }
        let mut opencode = agents::read_opencode(source, |name| merged.get(name));
        merged.add_layer(agents::read_codingcode(source), self.report);
        merged.add_layer(std::mem::take(&mut opencode.agents), self.report);
        merged.add_layer(agents::read_openharness(source, Path::new(agents::WORKSPACE_AGENTS)), self.report);
        opencode
    }

    fn instructions(&self, source: Source<'_>) -> Option<String> {
        const FILE: &str = "AGENTS.md";
        let reporter = Reporter::for_file(self.report, FILE);
        let contents =
            source.ok_or_report(source.files.read_some(Path::new(FILE), MAX_INSTRUCTIONS), &reporter)??;
        if contents.truncated {
            let limit = MAX_INSTRUCTIONS / 1024;
            reporter.warn(Position::FILE, format!("is larger than {limit} KiB: the rest is left off"));
        }
        let text = contents.text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    fn check_models(
        &self,
        definitions: &Definitions,
        aliased: &[LocatedText],
        summary_model: Option<&LocatedText>,
    ) {
        let reporter = Reporter::for_file(self.report, settings::FILE);
        for reference in aliased {
            if definitions.model(&reference.text).is_err() {
                reporter.warn(reference.at, format!("models: there is no model {}", reference.display()));
            }
        }
        if let Some(model) = summary_model.filter(|model| definitions.named_model(model.text.trim()).is_err())
        {
            reporter.warn(model.at, format!("context.model: there is no model {}", model.display()));
        }
    }

    fn check_memory(&self, definitions: &Definitions, at: Option<Position>) {
        let in_prompt = definitions.settings.prompt.order.contains(&Segment::Memory);
        if let Some(at) = at.filter(|_| definitions.memory.is_some() && !in_prompt) {
            let message =
                "memory: is not sent to agents, because `memory` is not in the order of the system prompt";
            Reporter::for_file(self.report, settings::FILE).warn(at, message);
        }
    }

    /// Checks and sets the default agent. An unusable one stays set: sessions without an agent then get an error instead of
    /// another agent.
    fn choose_default(&self, definitions: &mut Definitions, chosen: Option<(String, LocatedText)>) {
        let Some((file, name)) = chosen else { return };
        let reporter = Reporter::for_file(self.report, &file);
        match definitions.agents.get(&name.text) {
            None => reporter.error(name.at, format!("default_agent: there is no agent {}", name.display())),
            Some(agent) if !agent.mode.may_lead() => {
                let message = "only works for other agents (mode: subagent)";
                reporter.error(name.at, format!("default_agent: the agent {} {message}", name.display()));
            }
            Some(_) => {}
        }
        let Settings { default_agent, .. } = &mut definitions.settings;
        *default_agent = Some(name.text);
    }
}
