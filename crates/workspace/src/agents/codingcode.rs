//! Profiles of CodingCode: `.codingcode/agents/*.md`.

use std::path::Path;

use remuda_domain::{
    agent::{
        AgentDefinition, AgentMode, AgentOrigin, AgentPolicy, AgentSource, PermissionAction, PermissionRule,
        ToolExclusion, ToolSelection,
    },
    model::ModelParameters,
};

use super::{
    Delegates, Draft, Found, Mention, MentionKind, Naming, Outcome, WantedModel,
    openharness::{NAME_EXPECTED, stem},
    tools::{CodingCodeTool, READ_ONLY, codingcode_tool},
};
use crate::{
    environment::Notation,
    report::Place,
    source::Source,
    text::{Document, Fields, Position, Style, is_name, split},
};

const DIRECTORY: &str = ".codingcode/agents";

/// What its own profiles are given.
const DEFAULT_MAX_STEPS: u32 = 180;

/// What it tells a profile that says nothing.
const DEFAULT_PROMPT: &str = "You take on the task you are given and report what you found or did.";

pub(crate) fn read(source: Source<'_>) -> Vec<Found> {
    let read = |path: std::path::PathBuf| {
        let file = source.files.shown(&path);
        let place = Place::of(source.report, &file, stem(&path));
        let document = source.read(&path, &place).and_then(|text| {
            let mut document = source.take(split(&text, Style::Lenient), &place)?;
            if let Some(head) = &mut document.head {
                source.interpolate(head, Notation::Ours, &place);
            }
            Some(document)
        });
        let (name, outcome) = match document {
            Some(document) => profile(&document, source, &file, &stem(&path)),
            None => (stem(&path), Outcome::Broken),
        };
        Found { name, file: file.clone(), outcome }
    };
    source.list(Path::new(DIRECTORY), ".md").into_iter().map(read).collect()
}

fn profile(document: &Document, source: Source<'_>, file: &str, stem: &str) -> (String, Outcome) {
    let outer = Place::of(source.report, file, stem);
    let Some(head) = &document.head else {
        outer.error(Position::line(1), "expected frontmatter with `name` and `description`");
        return (stem.to_owned(), Outcome::Broken);
    };
    let named = Fields::of(head, "frontmatter", &outer).and_then(|fields| fields.required("name"));
    let Some(named) = named else { return (stem.to_owned(), Outcome::Broken) };
    if !is_name(&named.text) {
        outer.error(named.at, format!("name: {NAME_EXPECTED}, found {}", named.shown()));
        return (stem.to_owned(), Outcome::Broken);
    }
    let place = Place::of(source.report, file, named.text.clone());
    let outcome = match Fields::of(head, "frontmatter", &place) {
        Some(fields) => agent(&named.text, document, &fields),
        None => Outcome::Broken,
    };
    (named.text, outcome)
}

fn agent(name: &str, document: &Document, fields: &Fields<'_>) -> Outcome {
    let place = fields.place;
    let _ = fields.get("name");
    let description = fields.required("description").map(|text| text.text).unwrap_or_default();
    let disabled = fields.boolean("disabled").unwrap_or(false);
    let readonly = fields.boolean("readonly").unwrap_or(false);
    let (selection, dispatches, mut mentions) = tools(fields, readonly);
    let servers = fields.texts("mcpServers").unwrap_or_default();
    let external = servers.iter().map(|server| server.text.clone()).collect();
    let server = |name| Mention { kind: MentionKind::ToolServer, name };
    mentions.extend(servers.into_iter().map(server));
    let model = fields.text("model").filter(|model| !model.text.is_empty());
    let steps = fields.integer("maxSteps", 1, AgentPolicy::MAX_MAX_STEPS);
    let permission = permission_mode(fields);
    let own_prompt = fields.text("systemPrompt").map(|text| text.text.trim().to_owned());
    if let Some(hooks) = fields.get("hooks") {
        place.warn(hooks.at, "hooks: those of a profile are not used");
    }
    fields.finish();
    if place.failed() {
        return Outcome::Broken;
    }
    if disabled {
        return Outcome::Disabled;
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
        origin: AgentOrigin { source: AgentSource::CodingCode, file: Some(place.file().to_owned()) },
    };
    let wanted = |name| WantedModel {
        name,
        file: place.file().to_owned(),
        parameters: ModelParameters::default(),
        naming: Naming::Foreign,
    };
    Outcome::Usable(Box::new(Draft {
        definition,
        file: place.file().to_owned(),
        model: model.map(wanted),
        mentions,
        delegates: if dispatches { Delegates::AllowedByPermission } else { Delegates::Listed },
    }))
}

/// What it may use, and whether it may delegate. Whoever may only read must not have others write.
fn tools(fields: &Fields<'_>, readonly: bool) -> (ToolSelection, bool, Vec<Mention>) {
    let mut mentions = Vec::new();
    let Some(names) = fields.texts("tools") else {
        let native = readonly.then(|| READ_ONLY.map(str::to_owned).to_vec());
        let actions = readonly.then(Vec::new);
        return (ToolSelection { native, actions, ..ToolSelection::default() }, !readonly, mentions);
    };
    let (mut native, mut dispatches) = (Vec::new(), false);
    for name in names {
        match codingcode_tool(&name.text) {
            CodingCodeTool::Native(tools) => {
                let usable = tools.iter().filter(|tool| !readonly || READ_ONLY.contains(tool));
                native.extend(usable.map(|tool| (*tool).to_owned()));
            }
            CodingCodeTool::Dispatch => dispatches = true,
            CodingCodeTool::NotNeeded => {}
            CodingCodeTool::Missing => {
                fields.place.warn(name.at, format!("tools: {} has no counterpart here", name.shown()));
            }
            // `server:tool`; the server is what counts.
            CodingCodeTool::Unknown if name.text.contains(':') => {}
            CodingCodeTool::Unknown => mentions.push(Mention { kind: MentionKind::NativeTool, name }),
        }
    }
    let selection =
        ToolSelection { native: Some(native), actions: Some(Vec::new()), ..ToolSelection::default() };
    (selection, dispatches && !readonly, mentions)
}

/// Its modes in terms of permissions.
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
