//! Resolves the names in agent definitions: models, other agents, tools.

use std::collections::BTreeMap;

use remuda_domain::{
    agent::{AgentDefinition, AgentMode, AgentModel, AgentSource},
    model::{ModelDefinition, ModelRef, ProviderKind, Registry},
    tool::{ToolCatalog, ToolOffer},
};

use super::{
    DelegationTargets, ModelNaming, NameReference, ReferenceKind, RequestedModel, UnresolvedAgent, permission,
};
use crate::{
    parse::Position,
    report::{Report, Reporter},
    sections::{actions::Actions, models::Models, skills::Skills, tools::ToolServers},
    settings::{Settings, WorkspaceKind},
};

/// Limit of the list of an agent that may delegate to all agents: the list is part of its prompt.
const MAX_SUBAGENTS: usize = 100;

/// Everything that an agent can reference by name.
#[derive(Clone, Copy)]
pub(crate) struct Catalog<'a> {
    pub settings: &'a Settings,
    pub models: &'a Models,
    pub actions: &'a Actions,
    pub skills: &'a Skills,
    pub servers: &'a ToolServers,
    pub tools: &'a ToolCatalog,
}

/// Resolves the references of all agents and reports names that do not exist.
pub(crate) fn resolve_agents(
    drafts: BTreeMap<String, UnresolvedAgent>,
    catalog: Catalog<'_>,
    report: &Report,
) -> BTreeMap<String, AgentDefinition> {
    let modes: BTreeMap<String, AgentMode> =
        drafts.iter().map(|(name, draft)| (name.clone(), draft.definition.mode)).collect();
    let resolve = |(name, draft): (String, UnresolvedAgent)| {
        let UnresolvedAgent { mut definition, file, model, references, undeclared, delegation } = draft;
        let reporter = Reporter::for_definition(report, &file, name.clone());
        if definition.origin.source == AgentSource::BuiltIn {
            // A workspace may remove or replace agents that a built-in agent names: that is no mistake.
            let mode = |target: &String| modes.get(target).copied();
            definition.switch.retain(|target| mode(target).is_some_and(AgentMode::may_lead));
            definition.subagents.retain(|target| mode(target).is_some_and(|mode| mode != AgentMode::Primary));
        } else {
            references
                .iter()
                .for_each(|reference| check_reference(&name, reference, &modes, catalog, &reporter));
            undeclared.iter().for_each(|kind| warn_of_undeclared(*kind, catalog, &reporter));
        }
        if let Some(model) = model {
            let reporter = Reporter::for_definition(report, &model.file, name.clone());
            definition.model = resolve_model(&model, catalog, &reporter).or(definition.model);
        }
        // Parameters of the agent override those of its model or alias.
        if let Some(model) = &mut definition.model {
            model.parameters = definition.parameters.or(model.parameters);
        }
        if delegation == DelegationTargets::AllowedByPermission {
            let targets =
                modes.iter().filter(|(target, mode)| **mode != AgentMode::Primary && **target != name);
            let allowed = targets.filter(|(target, _)| {
                permission::may_delegate(&definition.permission, catalog.tools, target)
            });
            definition.subagents = allowed.take(MAX_SUBAGENTS).map(|(target, _)| target.clone()).collect();
        }
        (name, definition)
    };
    drafts.into_iter().map(resolve).collect()
}

fn check_reference(
    agent: &str,
    reference: &NameReference,
    modes: &BTreeMap<String, AgentMode>,
    catalog: Catalog<'_>,
    reporter: &Reporter<'_>,
) {
    let name = reference.name.text.as_str();
    let warn = |message: &str| reporter.warn(reference.name.at, message);
    let missing = |what: &str, names: Vec<&str>| {
        let hint = reporter.suggestion(name, names);
        warn(&format!("there is no {what} {}{hint}", reference.name.display()));
    };
    // A pattern may match nothing.
    if name.contains('*') {
        return;
    }
    match reference.kind {
        ReferenceKind::Switch | ReferenceKind::Subagent => {
            let (field, wrong, why) = match reference.kind {
                ReferenceKind::Switch => {
                    ("switch", AgentMode::Subagent, "only works for other agents (mode: subagent)")
                }
                _ => ("subagents", AgentMode::Primary, "only leads sessions (mode: primary)"),
            };
            if name == agent {
                warn(&format!("{field}: the agent names itself"));
            } else if let Some(mode) = modes.get(name) {
                if *mode == wrong {
                    warn(&format!("{field}: the agent {} {why}", reference.name.display()));
                }
            } else {
                missing("agent", modes.keys().map(String::as_str).collect());
            }
        }
        ReferenceKind::NativeTool
            if catalog.tools.get(name).is_none_or(|tool| tool.offer == ToolOffer::Never) =>
        {
            let listed = catalog.tools.iter().filter(|tool| tool.offer == ToolOffer::Listed);
            missing("native tool", listed.map(|tool| &*tool.name).collect());
        }
        ReferenceKind::Action if !catalog.actions.contains_key(name) => {
            missing("action", catalog.actions.keys().map(String::as_str).collect());
        }
        ReferenceKind::Skill if !catalog.skills.contains_key(name) => {
            missing("skill", catalog.skills.keys().map(String::as_str).collect());
        }
        ReferenceKind::ToolServer if !catalog.servers.contains_key(name) => {
            missing("tool server", catalog.servers.keys().map(String::as_str).collect());
        }
        _ => {}
    }
}

/// Warns of a list that an agent leaves out although there is something to list: in version 0.1.0 that meant all. In a
/// chat workspace no agent has tools.
fn warn_of_undeclared(kind: ReferenceKind, catalog: Catalog<'_>, reporter: &Reporter<'_>) {
    if catalog.settings.kind == WorkspaceKind::Chat {
        return;
    }
    let (field, what, any) = match kind {
        ReferenceKind::NativeTool => ("tools.native", "native tools", true),
        ReferenceKind::Action => ("tools.actions", "actions", !catalog.actions.is_empty()),
        ReferenceKind::Skill => ("tools.skills", "skills", !catalog.skills.is_empty()),
        ReferenceKind::ToolServer => ("tools.external", "tool servers", !catalog.servers.is_empty()),
        ReferenceKind::Switch | ReferenceKind::Subagent => return,
    };
    if any {
        let hint = "list them, `[\"*\"]` for all, or `[]`";
        reporter.warn(Position::FILE, format!("{field}: is missing, so the agent has no {what}: {hint}"));
    }
}

/// The model that an agent names.
fn resolve_model(
    requested: &RequestedModel,
    catalog: Catalog<'_>,
    reporter: &Reporter<'_>,
) -> Option<AgentModel> {
    let name = requested.name.text.trim();
    if let Some(alias) = catalog.settings.models.get(name) {
        let parameters = requested.parameters.or(alias.parameters);
        return Some(AgentModel { reference: alias.reference.clone(), parameters });
    }
    let found = find_model(name, catalog.models).or_else(|| match requested.naming {
        ModelNaming::Native => None,
        ModelNaming::Foreign => find_foreign(name, catalog.models),
    });
    if let Some(model) = found {
        // Keep a bare name, so that it is looked up again when the registries change.
        let reference = match requested.naming {
            ModelNaming::Native => name.to_owned(),
            ModelNaming::Foreign => model.reference.to_string(),
        };
        return Some(AgentModel { reference, parameters: requested.parameters });
    }
    let shown = requested.name.display();
    match requested.naming {
        ModelNaming::Native => {
            reporter.warn(requested.name.at, format!("model: there is no model {shown}"));
            Some(AgentModel { reference: name.to_owned(), parameters: requested.parameters })
        }
        ModelNaming::Foreign => {
            let message = format!("model: there is no model {shown}: the agent uses the default model");
            reporter.warn(requested.name.at, message);
            None
        }
    }
}

/// Finds a model by reference, or by bare name: first in the workspace's registry, then in the platform's.
pub(crate) fn find_model<'a>(name: &str, models: &'a Models) -> Option<&'a ModelDefinition> {
    if let Ok(reference) = name.parse::<ModelRef>() {
        return models.get(&reference);
    }
    [Registry::Workspace, Registry::Platform]
        .into_iter()
        .find_map(|registry| models.get(&ModelRef::new(registry, name)))
}

/// Finds `provider/model` of OpenCode: a model of that provider with this provider-side name, or one registered under
/// this name.
fn find_foreign<'a>(name: &str, models: &'a Models) -> Option<&'a ModelDefinition> {
    let (provider, id) = name.split_once('/').map_or((None, name), |(provider, id)| (Some(provider), id));
    let fits = |model: &ModelDefinition| match (provider, model.provider) {
        (None, _) => true,
        (Some("anthropic"), kind) => kind == ProviderKind::Anthropic,
        (Some("openai"), kind) => matches!(kind, ProviderKind::OpenAi | ProviderKind::OpenAiCompatible),
        (Some(_), kind) => kind == ProviderKind::OpenAiCompatible,
    };
    let by_id = |registry: Registry| {
        models.values().find(|model| model.reference.registry == registry && model.name == id && fits(model))
    };
    by_id(Registry::Workspace).or_else(|| by_id(Registry::Platform)).or_else(|| find_model(id, models))
}
