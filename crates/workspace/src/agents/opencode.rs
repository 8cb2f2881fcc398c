//! Parses agents of OpenCode: `.opencode/agent/*.md`, `.opencode/agents/*.md` and the key `agent` of `opencode.json`.
//!
//! OpenCode merges everything it finds about one agent: files override the configuration, and both override a built-in
//! agent of that name. So each source is parsed into a [`Patch`] first.

mod patch;

use std::{collections::BTreeMap, path::Path};

use remuda_domain::{
    agent::{PermissionAction, PermissionRule},
    tool::ToolCatalog,
};

use self::patch::Patch;
use super::{
    DelegationTargets, LoadOutcome, LoadedAgent, ModelNaming, RequestedModel, UnresolvedAgent,
    openharness::{NAME_EXPECTED, stem},
    permission,
};
use crate::{
    definition_dir::Source,
    environment::VariableSyntax,
    parse::{
        Entry, Fields, FrontmatterStyle, LocatedText, Node, Position, Value, is_name, parse_json,
        split_frontmatter,
    },
    report::Reporter,
};

/// What an OpenCode project declares.
#[derive(Default)]
pub(crate) struct OpenCodeProject {
    pub agents: Vec<LoadedAgent>,
    /// With the file that sets it.
    pub default_agent: Option<(String, LocatedText)>,
    /// Rules for all agents.
    pub rules: Vec<PermissionRule>,
}

/// The keys of `opencode.json` that concern agents.
#[derive(Default)]
struct Configuration {
    file: String,
    default_agent: Option<LocatedText>,
    model: Option<LocatedText>,
    rules: Vec<PermissionRule>,
}

/// The patches of one agent.
#[derive(Default)]
struct AgentPatches {
    from_configuration: Option<Patch>,
    from_file: Option<Patch>,
    invalid: bool,
    file: String,
}

/// Reads the project. `base` returns the agent that an OpenCode agent of this name overrides.
pub(crate) fn read<'b>(
    source: Source<'_>,
    base: impl Fn(&str) -> Option<&'b UnresolvedAgent>,
) -> OpenCodeProject {
    let mut patches: BTreeMap<String, AgentPatches> = BTreeMap::new();
    let configuration = configuration(source, &mut patches);
    for directory in [".opencode/agent", ".opencode/agents"] {
        files(source, Path::new(directory), &mut patches);
    }
    let agents = patches
        .into_iter()
        .map(|(name, patches)| {
            let file = patches.file.clone();
            let outcome = assemble(&name, patches, &configuration, base(&name), source.tools);
            LoadedAgent { name, file, outcome }
        })
        .collect();
    let file = configuration.file;
    let default_agent = configuration.default_agent.map(|name| (file, name));
    OpenCodeProject { agents, default_agent, rules: configuration.rules }
}

fn configuration(source: Source<'_>, patches: &mut BTreeMap<String, AgentPatches>) -> Configuration {
    let mut configuration = Configuration::default();
    for file in ["opencode.json", "opencode.jsonc"] {
        let reporter = Reporter::for_file(source.report, file);
        let Some(text) = source.read(Path::new(file), &reporter) else { continue };
        if !configuration.file.is_empty() {
            reporter.warn(Position::FILE, format!("is not read: there is {} already", configuration.file));
            continue;
        }
        file.clone_into(&mut configuration.file);
        let Some(mut root) = source.ok_or_report(parse_json(&text), &reporter) else { continue };
        let Value::Map(entries) = &mut root.value else {
            reporter.error(root.at, format!("expected an object, found {}", root.kind_name()));
            continue;
        };
        // Drop all other keys before interpolation: they may name variables that we must not require.
        entries.retain(|entry| {
            ["agent", "default_agent", "model", "permission", "tools"].contains(&entry.key.as_str())
        });
        for entry in entries.iter_mut().filter(|entry| entry.key != "agent") {
            source.interpolate(&mut entry.value, VariableSyntax::OpenCode, &reporter);
        }
        if let Some(agents) = entries.iter_mut().find(|entry| entry.key == "agent") {
            configured_agents(source, &mut agents.value, &reporter, patches);
        }
        let Some(fields) = Fields::from_node(&root, "configuration", &reporter) else { continue };
        configuration.default_agent = fields.text("default_agent");
        configuration.model = patch::model(&fields);
        configuration.rules = rules(&root, source, file);
    }
    configuration
}

/// The rules for all agents. An invalid rule might have denied something, so all tools are denied then.
fn rules(root: &Node, source: Source<'_>, file: &str) -> Vec<PermissionRule> {
    let reporter = Reporter::for_file(source.report, file);
    let Some(fields) = Fields::from_node(root, "configuration", &reporter) else { return Vec::new() };
    let mut rules = permission::parse_tools(&fields);
    rules.extend(permission::parse(&fields, source.tools));
    let of_rules = |entry: &&Entry| ["permission", "tools"].contains(&entry.key.as_str());
    if reporter.failed() || fields.entries().iter().filter(of_rules).any(|entry| entry.value.is_unusable()) {
        rules.push(PermissionRule::new("*", "*", PermissionAction::Deny));
        reporter.warn(Position::FILE, "permission: agents may use no tools until this is fixed");
    }
    rules
}

fn configured_agents(
    source: Source<'_>,
    agents: &mut Node,
    reporter: &Reporter<'_>,
    patches: &mut BTreeMap<String, AgentPatches>,
) {
    let Value::Map(entries) = &mut agents.value else {
        reporter.error(agents.at, format!("agent: expected an object, found {}", agents.kind_name()));
        return;
    };
    for entry in entries {
        let reporter = Reporter::for_definition(source.report, reporter.file(), entry.key.clone());
        if !is_name(&entry.key) {
            reporter.error(entry.at, format!("agent: the name: {NAME_EXPECTED}"));
            continue;
        }
        source.interpolate(&mut entry.value, VariableSyntax::OpenCode, &reporter);
        let patch = Fields::from_node(&entry.value, &entry.key, &reporter)
            .map(|fields| Patch::parse(source, &fields));
        let patches = patches.entry(entry.key.clone()).or_default();
        reporter.file().clone_into(&mut patches.file);
        patches.invalid |= reporter.failed();
        patches.from_configuration = patch;
    }
}

fn files(source: Source<'_>, directory: &Path, patches: &mut BTreeMap<String, AgentPatches>) {
    warn_of_subdirectories(source, directory);
    for path in source.list(directory, ".md") {
        let file = source.files.display_path(&path);
        let reporter = Reporter::for_definition(source.report, &file, stem(&path));
        let patch = source.read(&path, &reporter).and_then(|text| {
            let mut document =
                source.ok_or_report(split_frontmatter(&text, FrontmatterStyle::Lenient), &reporter)?;
            if let Some(head) = &mut document.head {
                source.interpolate(head, VariableSyntax::Native, &reporter);
            }
            let fields = match &document.head {
                Some(head) => Fields::from_node(head, "frontmatter", &reporter)?,
                None => Fields::empty(&reporter),
            };
            let name = fields.text("name");
            let mut patch = Patch::parse(source, &fields);
            patch.prompt = Some(document.body).filter(|body| !body.is_empty()).or(patch.prompt);
            Some((name, patch))
        });
        let (named, patch) = patch.map_or((None, None), |(name, patch)| (name, Some(patch)));
        let at = named.as_ref().map_or(Position::FILE, |name| name.at);
        let name = named.map_or_else(|| stem(&path), |name| name.text);
        if !is_name(&name) {
            reporter.error(at, format!("name: {NAME_EXPECTED}"));
            continue;
        }
        let twin = patches.iter().find(|(other, patches)| {
            other.eq_ignore_ascii_case(&name) && (patches.from_file.is_some() || **other != name)
        });
        if let Some((other, patches)) = twin {
            let message = format!("the agent `{name}` is defined already, as `{other}` in {}", patches.file);
            reporter.error(Position::FILE, message);
            continue;
        }
        let patches = patches.entry(name).or_default();
        patches.file.clone_from(&file);
        patches.invalid |= reporter.failed();
        patches.from_file = patch;
    }
}

/// OpenCode also reads agents in subdirectories and puts the path into their name, which is not a valid name here.
fn warn_of_subdirectories(source: Source<'_>, directory: &Path) {
    const MAX_SUBDIRECTORIES: usize = 16;
    let names = source.files.list(directory).ok().flatten().unwrap_or_default();
    for name in names.iter().filter(|name| !name.contains('.')).take(MAX_SUBDIRECTORIES) {
        let folder = directory.join(name);
        let inside = source.files.list(&folder).ok().flatten().unwrap_or_default();
        if inside.iter().any(|name| name.ends_with(".md")) {
            let shown = source.files.display_path(&folder);
            let message = "agents in subdirectories are not read: move them up";
            Reporter::for_file(source.report, &shown).warn(Position::FILE, message);
        }
    }
}

fn assemble(
    name: &str,
    patches: AgentPatches,
    configuration: &Configuration,
    base: Option<&UnresolvedAgent>,
    tools: &ToolCatalog,
) -> LoadOutcome {
    if patches.invalid {
        return LoadOutcome::Invalid;
    }
    let patch =
        patches.from_configuration.unwrap_or_default().overlaid_with(patches.from_file.unwrap_or_default());
    if patch.disable == Some(true) {
        return LoadOutcome::Disabled;
    }
    let model = patch.model.clone();
    let mut definition =
        patch.apply(name, &patches.file, base.map(|base| &base.definition), &configuration.rules);
    permission::remove_denied_tools(&mut definition, tools);
    let requested = |name, file: &str| RequestedModel {
        name,
        file: file.to_owned(),
        parameters: definition.parameters,
        naming: ModelNaming::Foreign,
    };
    let own = model.map(|model| requested(model, &patches.file));
    let own = own.or_else(|| base.and_then(|base| base.model.clone()));
    // A sub-agent uses the model of the agent that delegates to it.
    let general = configuration.model.clone().filter(|_| definition.mode.may_lead());
    let model = own.or_else(|| general.map(|model| requested(model, &configuration.file)));
    let lead = definition.mode.may_lead();
    LoadOutcome::Usable(Box::new(UnresolvedAgent {
        definition,
        file: patches.file,
        model,
        references: Vec::new(),
        undeclared: Vec::new(),
        delegation: if lead { DelegationTargets::AllowedByPermission } else { DelegationTargets::Listed },
    }))
}
