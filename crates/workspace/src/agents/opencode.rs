//! Agents of OpenCode: `.opencode/agent/*.md`, `.opencode/agents/*.md` and the `agent` part of `opencode.json`.
//!
//! What OpenCode reads about one agent is laid over each other, the files over the configuration, and both over a built-in
//! agent of that name. So it is read into [`Patch`]es first.

mod patch;

use std::{collections::BTreeMap, path::Path};

use remuda_domain::agent::{PermissionAction, PermissionRule};

use self::patch::Patch;
use super::{
    Delegates, Draft, Found, Naming, Outcome, WantedModel,
    openharness::{NAME_EXPECTED, stem},
    permission,
};
use crate::{
    environment::Notation,
    report::Place,
    source::Source,
    text::{Entry, Fields, Node, Position, Style, Text, Value, is_name, parse_json, split},
};

/// What an OpenCode project declares.
#[derive(Default)]
pub(crate) struct Project {
    pub agents: Vec<Found>,
    /// With the file that says so.
    pub default_agent: Option<(String, Text)>,
    /// For all agents.
    pub rules: Vec<PermissionRule>,
}

/// The parts of the configuration that are about agents.
#[derive(Default)]
struct Configuration {
    file: String,
    default_agent: Option<Text>,
    model: Option<Text>,
    rules: Vec<PermissionRule>,
}

/// The patches of one agent.
#[derive(Default)]
struct Pile {
    configured: Option<Patch>,
    written: Option<Patch>,
    broken: bool,
    file: String,
}

/// Reads the project. `base` gives the agent of that name which would be there otherwise.
pub(crate) fn read<'b>(source: Source<'_>, base: impl Fn(&str) -> Option<&'b Draft>) -> Project {
    let mut piles: BTreeMap<String, Pile> = BTreeMap::new();
    let configuration = configuration(source, &mut piles);
    for directory in [".opencode/agent", ".opencode/agents"] {
        files(source, Path::new(directory), &mut piles);
    }
    let agents = piles
        .into_iter()
        .map(|(name, pile)| {
            let file = pile.file.clone();
            let outcome = assemble(&name, pile, &configuration, base(&name));
            Found { name, file, outcome }
        })
        .collect();
    let file = configuration.file;
    let default_agent = configuration.default_agent.map(|name| (file, name));
    Project { agents, default_agent, rules: configuration.rules }
}

fn configuration(source: Source<'_>, piles: &mut BTreeMap<String, Pile>) -> Configuration {
    let mut configuration = Configuration::default();
    for file in ["opencode.json", "opencode.jsonc"] {
        let place = Place::new(source.report, file);
        let Some(text) = source.read(Path::new(file), &place) else { continue };
        if !configuration.file.is_empty() {
            place.warn(Position::FILE, format!("is not read: there is {} already", configuration.file));
            continue;
        }
        file.clone_into(&mut configuration.file);
        let Some(mut root) = source.take(parse_json(&text), &place) else { continue };
        let Value::Map(entries) = &mut root.value else {
            place.error(root.at, format!("expected an object, found {}", root.kind_name()));
            continue;
        };
        // Most of the file is about other things, and may name variables that are none of ours.
        entries.retain(|entry| {
            ["agent", "default_agent", "model", "permission", "tools"].contains(&entry.key.as_str())
        });
        for entry in entries.iter_mut().filter(|entry| entry.key != "agent") {
            source.interpolate(&mut entry.value, Notation::OpenCode, &place);
        }
        if let Some(agents) = entries.iter_mut().find(|entry| entry.key == "agent") {
            configured_agents(source, &mut agents.value, &place, piles);
        }
        let Some(fields) = Fields::of(&root, "configuration", &place) else { continue };
        configuration.default_agent = fields.text("default_agent");
        configuration.model = fields.text("model");
        configuration.rules = rules(&root, source, file);
    }
    configuration
}

/// The rules for all agents. One that cannot be read might have forbidden something: then everything is.
fn rules(root: &Node, source: Source<'_>, file: &str) -> Vec<PermissionRule> {
    let place = Place::new(source.report, file);
    let Some(fields) = Fields::of(root, "configuration", &place) else { return Vec::new() };
    let mut rules = permission::take_tools(&fields);
    rules.extend(permission::take(&fields));
    let of_rules = |entry: &&Entry| ["permission", "tools"].contains(&entry.key.as_str());
    if place.failed() || fields.entries().iter().filter(of_rules).any(|entry| entry.value.is_unusable()) {
        rules.push(PermissionRule::new("*", "*", PermissionAction::Deny));
        place.warn(Position::FILE, "permission: agents may use no tools until this is mended");
    }
    rules
}

fn configured_agents(
    source: Source<'_>,
    agents: &mut Node,
    place: &Place<'_>,
    piles: &mut BTreeMap<String, Pile>,
) {
    let Value::Map(entries) = &mut agents.value else {
        place.error(agents.at, format!("agent: expected an object, found {}", agents.kind_name()));
        return;
    };
    for entry in entries {
        let place = Place::of(source.report, place.file(), entry.key.clone());
        if !is_name(&entry.key) {
            place.error(entry.at, format!("agent: the name: {NAME_EXPECTED}"));
            continue;
        }
        source.interpolate(&mut entry.value, Notation::OpenCode, &place);
        let patch = Fields::of(&entry.value, &entry.key, &place).map(|fields| Patch::take(source, &fields));
        let pile = piles.entry(entry.key.clone()).or_default();
        place.file().clone_into(&mut pile.file);
        pile.broken |= place.failed();
        pile.configured = patch;
    }
}

fn files(source: Source<'_>, directory: &Path, piles: &mut BTreeMap<String, Pile>) {
    warn_of_folders(source, directory);
    for path in source.list(directory, ".md") {
        let file = source.files.shown(&path);
        let place = Place::of(source.report, &file, stem(&path));
        let patch = source.read(&path, &place).and_then(|text| {
            let mut document = source.take(split(&text, Style::Lenient), &place)?;
            if let Some(head) = &mut document.head {
                source.interpolate(head, Notation::Ours, &place);
            }
            let fields = match &document.head {
                Some(head) => Fields::of(head, "frontmatter", &place)?,
                None => Fields::none(&place),
            };
            let name = fields.text("name");
            let mut patch = Patch::take(source, &fields);
            patch.prompt = Some(document.body).filter(|body| !body.is_empty()).or(patch.prompt);
            Some((name, patch))
        });
        let (named, patch) = patch.map_or((None, None), |(name, patch)| (name, Some(patch)));
        let at = named.as_ref().map_or(Position::FILE, |name| name.at);
        let name = named.map_or_else(|| stem(&path), |name| name.text);
        if !is_name(&name) {
            place.error(at, format!("name: {NAME_EXPECTED}"));
            continue;
        }
        let twin = piles.iter().find(|(other, pile)| {
            other.eq_ignore_ascii_case(&name) && (pile.written.is_some() || **other != name)
        });
        if let Some((other, pile)) = twin {
            let message = format!("the agent `{name}` is defined already, as `{other}` in {}", pile.file);
            place.error(Position::FILE, message);
            continue;
        }
        let pile = piles.entry(name).or_default();
        pile.file.clone_from(&file);
        pile.broken |= place.failed();
        pile.written = patch;
    }
}

/// OpenCode also reads agents in folders and names them after those, which is no name here.
fn warn_of_folders(source: Source<'_>, directory: &Path) {
    const LOOKED_AT: usize = 16;
    let names = source.files.list(directory).ok().flatten().unwrap_or_default();
    for name in names.iter().filter(|name| !name.contains('.')).take(LOOKED_AT) {
        let folder = directory.join(name);
        let inside = source.files.list(&folder).ok().flatten().unwrap_or_default();
        if inside.iter().any(|name| name.ends_with(".md")) {
            let shown = source.files.shown(&folder);
            let message = "agents in folders are not read: move them up";
            Place::new(source.report, &shown).warn(Position::FILE, message);
        }
    }
}

fn assemble(name: &str, pile: Pile, configuration: &Configuration, base: Option<&Draft>) -> Outcome {
    if pile.broken {
        return Outcome::Broken;
    }
    let patch = pile.configured.unwrap_or_default().under(pile.written.unwrap_or_default());
    if patch.disable == Some(true) {
        return Outcome::Disabled;
    }
    let model = patch.model.clone();
    let mut definition =
        patch.apply(name, &pile.file, base.map(|base| &base.definition), &configuration.rules);
    permission::remove_denied_tools(&mut definition);
    let wanted = |name, file: &str| WantedModel {
        name,
        file: file.to_owned(),
        parameters: definition.parameters,
        naming: Naming::Foreign,
    };
    let own = model.map(|model| wanted(model, &pile.file));
    let own = own.or_else(|| base.and_then(|base| base.model.clone()));
    // An agent that only works for others takes their model.
    let general = configuration.model.clone().filter(|_| definition.mode.may_lead());
    let model = own.or_else(|| general.map(|model| wanted(model, &configuration.file)));
    let lead = definition.mode.may_lead();
    Outcome::Usable(Box::new(Draft {
        definition,
        file: pile.file,
        model,
        mentions: Vec::new(),
        delegates: if lead { Delegates::AllowedByPermission } else { Delegates::Listed },
    }))
}
