//! Parses agent profiles of CodingCode: `.codingcode/agents/*.md`.

use std::path::Path;

use remuda_domain::{
    agent::{
        AgentDefinition, AgentMode, AgentOrigin, AgentPolicy, AgentSource, PermissionAction, PermissionRule,
        ToolExclusion, ToolSelection,
    },
    model::ModelParameters,
    tool::{ForeignFormat, ToolCatalog, ToolDescriptor, ToolOffer, ToolRole},
};

use super::{
    DelegationTargets, LoadOutcome, LoadedAgent, ModelNaming, NameReference, ReferenceKind, RequestedModel,
    UnresolvedAgent,
    openharness::{NAME_EXPECTED, stem},
};
use crate::{
    definition_dir::Source,
    environment::VariableSyntax,
    parse::{Document, Fields, FrontmatterStyle, Position, is_name, split_frontmatter},
    report::Reporter,
};

const DIRECTORY: &str = ".codingcode/agents";

/// CodingCode's own default.
const DEFAULT_MAX_STEPS: u32 = 180;

/// The prompt of a profile that has none.
const DEFAULT_PROMPT: &str = "You take on the task you are given and report what you found or did.";

pub(crate) fn read(source: Source<'_>) -> Vec<LoadedAgent> {
    let read = |path: std::path::PathBuf| {
        let file = source.files.display_path(&path);
        let reporter = Reporter::for_definition(source.report, &file, stem(&path));
        let document = source.read(&path, &reporter).and_then(|text| {
            let mut document =
                source.ok_or_report(split_frontmatter(&text, FrontmatterStyle::Lenient), &reporter)?;
            if let Some(head) = &mut document.head {
                source.interpolate(head, VariableSyntax::Native, &reporter);
            }
            Some(document)
        });
        let (name, outcome) = match document {
            Some(document) => profile(&document, source, &file, &stem(&path)),
            None => (stem(&path), LoadOutcome::Invalid),
        };
        LoadedAgent { name, file: file.clone(), outcome }
    };
    source.list(Path::new(DIRECTORY), ".md").into_iter().map(read).collect()
}

fn profile(document: &Document, source: Source<'_>, file: &str, stem: &str) -> (String, LoadOutcome) {
    let outer = Reporter::for_definition(source.report, file, stem);
    let Some(head) = &document.head else {
        outer.error(Position::line(1), "expected frontmatter with `name` and `description`");
        return (stem.to_owned(), LoadOutcome::Invalid);
    };
    let named =
        Fields::from_node(head, "frontmatter", &outer).and_then(|fields| fields.required_text("name"));
    let Some(named) = named else { return (stem.to_owned(), LoadOutcome::Invalid) };
    if !is_name(&named.text) {
        outer.error(named.at, format!("name: {NAME_EXPECTED}, found {}", named.display()));
        return (stem.to_owned(), LoadOutcome::Invalid);
    }
    let reporter = Reporter::for_definition(source.report, file, named.text.clone());
    let outcome = match Fields::from_node(head, "frontmatter", &reporter) {
        Some(fields) => agent(&named.text, document, &fields, source.tools),
        None => LoadOutcome::Invalid,
    };
    (named.text, outcome)
}

fn agent(name: &str, document: &Document, fields: &Fields<'_>, catalog: &ToolCatalog) -> LoadOutcome {
    let reporter = fields.reporter;
    let _ = fields.get("name");
    let description = fields.required_text("description").map(|text| text.text).unwrap_or_default();
    let disabled = fields.boolean("disabled").unwrap_or(false);
    let readonly = fields.boolean("readonly").unwrap_or(false);
    let (selection, dispatches, mut references) = tools(fields, catalog, readonly);
    let servers = fields.texts("mcpServers").unwrap_or_default();
    let external = servers.iter().map(|server| server.text.clone()).collect();
    let server = |name| NameReference { kind: ReferenceKind::ToolServer, name };
    references.extend(servers.into_iter().map(server));
    let model = fields.text("model").filter(|model| !model.text.is_empty());
    let steps = fields.integer("maxSteps", 1, AgentPolicy::MAX_MAX_STEPS);
    let permission = permission_mode(fields);
    let own_prompt = fields.text("systemPrompt").map(|text| text.text.trim().to_owned());
    if let Some(hooks) = fields.get("hooks") {
        reporter.warn(hooks.at, "hooks: hooks of a profile are ignored");
    }
    fields.finish();
    if reporter.failed() {
        return LoadOutcome::Invalid;
    }
    if disabled {
        return LoadOutcome::Disabled;
    }
    let body = Some(document.body.clone()).filter(|body| !body.is_empty());
    let definition = AgentDefinition {
        name: name.to_owned(),
        mode: AgentMode::All,
        description,
        prompt: own_prompt.or(body).unwrap_or_else(|| DEFAULT_PROMPT.to_owned()),
        model: None,
        parameters: ModelParameters::default(),
        system_reminder: None,
        tools: ToolSelection { external: Some(external), ..selection },
        disallowed: ToolExclusion::default(),
        switch: Vec::new(),
        subagents: Vec::new(),
        policy: AgentPolicy {
            max_steps: steps.unwrap_or(DEFAULT_MAX_STEPS).max(AgentPolicy::MIN_MAX_STEPS),
            ..AgentPolicy::default()
        },
        hidden: false,
        background: false,
        color: None,
        permission,
        permission_mode: None,
        origin: AgentOrigin { source: AgentSource::CodingCode, file: Some(reporter.file().to_owned()) },
    };
    let requested = |name| RequestedModel {
        name,
        file: reporter.file().to_owned(),
        parameters: ModelParameters::default(),
        naming: ModelNaming::Foreign,
    };
    LoadOutcome::Usable(Box::new(UnresolvedAgent {
        definition,
        file: reporter.file().to_owned(),
        model: model.map(requested),
        references,
        undeclared: Vec::new(),
        delegation: if dispatches {
            DelegationTargets::AllowedByPermission
        } else {
            DelegationTargets::Listed
        },
    }))
}

/// The tools of the agent, and whether it may delegate. A read-only agent may not delegate, since the other agent could
/// write.
fn tools(
    fields: &Fields<'_>,
    catalog: &ToolCatalog,
    readonly: bool,
) -> (ToolSelection, bool, Vec<NameReference>) {
    let usable = |tool: &&ToolDescriptor| {
        tool.offer == ToolOffer::Listed && (!readonly || (tool.changes_no_files() && !tool.is_follow_up))
    };
    let name_of = |tool: &ToolDescriptor| tool.name.clone().into_owned();
    let mut references = Vec::new();
    let Some(names) = fields.texts("tools") else {
        let native = readonly.then(|| catalog.iter().filter(usable).map(name_of).collect());
        let actions = readonly.then(Vec::new);
        return (ToolSelection { native, actions, ..ToolSelection::default() }, !readonly, references);
    };
    let (mut native, mut dispatches) = (Vec::new(), false);
    for name in names {
        let equivalents: Vec<_> = catalog.equivalents(ForeignFormat::CodingCode, &name.text).collect();
        dispatches |= equivalents.iter().any(|tool| tool.role == Some(ToolRole::Delegate));
        native.extend(equivalents.iter().copied().filter(usable).map(name_of));
        match name.text.as_str() {
            _ if !equivalents.is_empty() => {}
            // Not needed: all tools are available from the start.
            "tool_search" => {}
            "submit_plan" => {
                fields.reporter.warn(name.at, format!("tools: {} has no counterpart here", name.display()));
            }
            // `server:tool`; only the server is checked, as a `ToolServer`.
            _ if name.text.contains(':') => {}
            _ => references.push(NameReference { kind: ReferenceKind::NativeTool, name }),
        }
    }
    let selection =
        ToolSelection { native: Some(native), actions: Some(Vec::new()), ..ToolSelection::default() };
    (selection, dispatches && !readonly, references)
}

/// Translates CodingCode's permission modes to permission rules.
fn permission_mode(fields: &Fields<'_>) -> Vec<PermissionRule> {
    #[derive(Clone, Copy)]
    enum Mode {
        Default,
        AcceptEdits,
        Bypass,
    }
    let modes = [("default", Mode::Default), ("acceptEdits", Mode::AcceptEdits), ("bypass", Mode::Bypass)];
    let rule = |permission: &str, action| PermissionRule::new(permission, "*", action);
    match fields.choice("permissionMode", &modes) {
        None => Vec::new(),
        Some(Mode::Default) => {
            vec![rule("edit", PermissionAction::Ask), rule("bash", PermissionAction::Ask)]
        }
        Some(Mode::AcceptEdits) => {
            vec![rule("*", PermissionAction::Allow), rule("bash", PermissionAction::Ask)]
        }
        Some(Mode::Bypass) => vec![rule("*", PermissionAction::Allow)],
    }
}
