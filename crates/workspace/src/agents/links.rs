//! What agents name: models, each other, tools.

use std::collections::BTreeMap;

use remuda_domain::{
    agent::{AgentDefinition, AgentMode, AgentModel, AgentSource},
    model::{ModelDefinition, ModelRef, ProviderKind, Registry},
};

use super::{
    Delegates, Draft, Mention, MentionKind, Naming, WantedModel, permission,
    tools::{CONTROL, NATIVE},
};
use crate::{
    parts::{actions::Actions, models::Models, skills::Skills, tools::ToolServers},
    report::{Place, Report},
    settings::Settings,
};

/// Those who may delegate to everyone get no longer list than anyone reads.
const MAX_SUBAGENTS: usize = 100;

/// Everything that an agent can name.
#[derive(Clone, Copy)]
pub(crate) struct Known<'a> {
    pub settings: &'a Settings,
    pub models: &'a Models,
    pub actions: &'a Actions,
    pub skills: &'a Skills,
    pub servers: &'a ToolServers,
}

/// Completes the agents with what they name, and says what does not exist.
pub(crate) fn link(
    drafts: BTreeMap<String, Draft>,
    known: Known<'_>,
    report: &Report,
) -> BTreeMap<String, AgentDefinition> {
    let modes: BTreeMap<String, AgentMode> =
        drafts.iter().map(|(name, draft)| (name.clone(), draft.definition.mode)).collect();
    let link = |(name, draft): (String, Draft)| {
        let Draft { mut definition, file, model, mentions, delegates } = draft;
        let place = Place::of(report, &file, name.clone());
        if definition.origin.source == AgentSource::BuiltIn {
            // Which agents there are is the workspace's decision, and no mistake of anyone.
            let mode = |target: &String| modes.get(target).copied();
            definition.switch.retain(|target| mode(target).is_some_and(AgentMode::may_lead));
            definition.subagents.retain(|target| mode(target).is_some_and(|mode| mode != AgentMode::Primary));
        } else {
            mentions.iter().for_each(|mention| check(&name, mention, &modes, known, &place));
        }
        if let Some(model) = model {
            let place = Place::of(report, &model.file, name.clone());
            definition.model = resolve(&model, known, &place).or(definition.model);
        }
        // What an agent says itself beats what its model or alias says.
        if let Some(model) = &mut definition.model {
            model.parameters = definition.parameters.or(model.parameters);
        }
        if delegates == Delegates::AllowedByPermission {
            let targets =
                modes.iter().filter(|(target, mode)| **mode != AgentMode::Primary && **target != name);
            let allowed =
                targets.filter(|(target, _)| permission::may_delegate(&definition.permission, target));
            definition.subagents = allowed.take(MAX_SUBAGENTS).map(|(target, _)| target.clone()).collect();
        }
        (name, definition)
    };
    drafts.into_iter().map(link).collect()
}

fn check(
    agent: &str,
    mention: &Mention,
    modes: &BTreeMap<String, AgentMode>,
    known: Known<'_>,
    place: &Place<'_>,
) {
    let name = mention.name.text.as_str();
    let warn = |message: &str| place.warn(mention.name.at, message);
    let missing = |what: &str, names: Vec<&str>| {
        let hint = place.hint(name, names);
        warn(&format!("there is no {what} {}{hint}", mention.name.shown()));
    };
    // Patterns may match nothing.
    if name.contains('*') {
        return;
    }
    match mention.kind {
        MentionKind::Switch | MentionKind::Subagent => {
            let (field, wrong, why) = match mention.kind {
                MentionKind::Switch => {
                    ("switch", AgentMode::Subagent, "only works for other agents (mode: subagent)")
                }
                _ => ("subagents", AgentMode::Primary, "only leads sessions (mode: primary)"),
            };
            if name == agent {
                warn(&format!("{field}: the agent names itself"));
            } else if let Some(mode) = modes.get(name) {
                if *mode == wrong {
                    warn(&format!("{field}: the agent {} {why}", mention.name.shown()));
                }
            } else {
                missing("agent", modes.keys().map(String::as_str).collect());
            }
        }
        MentionKind::NativeTool if !NATIVE.contains(&name) && !CONTROL.contains(&name) => {
            missing("native tool", NATIVE.to_vec())
        }
        MentionKind::Action if !known.actions.contains_key(name) => {
            missing("action", known.actions.keys().map(String::as_str).collect());
        }
        MentionKind::Skill if !known.skills.contains_key(name) => {
            missing("skill", known.skills.keys().map(String::as_str).collect());
        }
        MentionKind::ToolServer if !known.servers.contains_key(name) => {
            missing("tool server", known.servers.keys().map(String::as_str).collect());
        }
        _ => {}
    }
}

/// The model an agent means.
fn resolve(wanted: &WantedModel, known: Known<'_>, place: &Place<'_>) -> Option<AgentModel> {
    let name = wanted.name.text.trim();
    if let Some(alias) = known.settings.models.get(name) {
        let parameters = wanted.parameters.or(alias.parameters);
        return Some(AgentModel { reference: alias.reference.clone(), parameters });
    }
    let found = find(name, known.models).or_else(|| match wanted.naming {
        Naming::Ours => None,
        Naming::Foreign => find_foreign(name, known.models),
    });
    if let Some(model) = found {
        // A bare name stays one: it means whatever has that name.
        let reference = match wanted.naming {
            Naming::Ours => name.to_owned(),
            Naming::Foreign => model.reference.to_string(),
        };
        return Some(AgentModel { reference, parameters: wanted.parameters });
    }
    let shown = wanted.name.shown();
    match wanted.naming {
        Naming::Ours => {
            place.warn(wanted.name.at, format!("model: there is no model {shown}"));
            Some(AgentModel { reference: name.to_owned(), parameters: wanted.parameters })
        }
        Naming::Foreign => {
            let message = format!("model: there is no model {shown}: the agent takes the one it is given");
            place.warn(wanted.name.at, message);
            None
        }
    }
}

/// A reference, or a bare name, which is looked for in the workspace first.
pub(crate) fn find<'a>(name: &str, models: &'a Models) -> Option<&'a ModelDefinition> {
    if let Ok(reference) = name.parse::<ModelRef>() {
        return models.get(&reference);
    }
    [Registry::Workspace, Registry::Platform]
        .into_iter()
        .find_map(|registry| models.get(&ModelRef::new(registry, name)))
}

/// `provider/model` of OpenCode: a model of that provider that is called so, or one that is named so here.
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
    by_id(Registry::Workspace).or_else(|| by_id(Registry::Platform)).or_else(|| find(id, models))
}
