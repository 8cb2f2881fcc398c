//! Agents in our own format, which is that of Open Agent Harness: `agents/*.md`.

use std::{path::Path, time::Duration};

use remuda_domain::agent::{
    AgentDefinition, AgentMode, AgentOrigin, AgentPolicy, AgentSource, ToolExclusion, ToolSelection,
};
use remuda_domain::limits::MAX_TIMEOUT;

use super::{Delegates, Draft, Found, Mention, MentionKind, Naming, Outcome, WantedModel, permission};
use crate::{
    environment::{Notation, Owner},
    parts::{modes, settings},
    report::Place,
    source::Source,
    text::{Document, Fields, Node, Position, Style, Text, Value, is_name, split},
};

pub(crate) const WORKSPACE_AGENTS: &str = ".openharness/agents";
pub(crate) const PLATFORM_AGENTS: &str = "";

pub(super) const MODES: [(&str, AgentMode); 3] =
    [("primary", AgentMode::Primary), ("subagent", AgentMode::Subagent), ("all", AgentMode::All)];

/// What names of agents look like.
pub(super) const NAME_EXPECTED: &str = "expected letters, digits, `.`, `_` and `-`, at most 64 characters";

pub(crate) fn read(source: Source<'_>, directory: &Path) -> Vec<Found> {
    let origin = match source.owner() {
        Owner::Platform => AgentSource::Platform,
        Owner::Workspace => AgentSource::OpenHarness,
    };
    let read = |path: std::path::PathBuf| {
        let file = source.files.shown(&path);
        let name = stem(&path);
        let place = Place::of(source.report, &file, name.clone());
        let draft = source.read(&path, &place).and_then(|text| {
            let mut document = source.take(split(&text, Style::Yaml), &place)?;
            if let Some(head) = &mut document.head {
                source.interpolate(head, Notation::Ours, &place);
            }
            agent(&name, &document, origin, &place)
        });
        let outcome = draft.map_or(Outcome::Broken, |draft| Outcome::Usable(Box::new(draft)));
        Found { name, file: file.clone(), outcome }
    };
    source.list(directory, ".md").into_iter().map(read).collect()
}

pub(super) fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// One agent, or nothing if it has an error.
pub(super) fn agent(
    name: &str,
    document: &Document,
    source: AgentSource,
    place: &Place<'_>,
) -> Option<Draft> {
    if !is_name(name) {
        place.error(Position::FILE, format!("the name of the file is that of the agent: {NAME_EXPECTED}"));
    }
    let fields = match &document.head {
        Some(head) => Fields::of(head, "frontmatter", place)?,
        None => Fields::none(place),
    };
    if let Some(other) = fields.text("name").filter(|other| other.text != name) {
        let message = format!("name: the agent is called `{name}` like its file, not {}", other.shown());
        place.warn(other.at, message);
    }
    let mut mentions = Mentions::default();
    let mut definition = AgentDefinition {
        name: name.to_owned(),
        mode: fields.choice("mode", &MODES).unwrap_or_default(),
        description: fields.text("description").map(|text| text.text.trim().to_owned()).unwrap_or_default(),
        prompt: document.body.clone(),
        model: None,
        parameters: settings::parameters(&fields),
        system_reminder: fields.text("system_reminder").map(|text| text.text.trim().to_owned()),
        tools: tools(&fields, &mut mentions),
        disallowed: disallowed(&fields, &mut mentions),
        switch: mentions.take(MentionKind::Switch, fields.names("switch")).unwrap_or_default(),
        subagents: mentions.take(MentionKind::Subagent, fields.names("subagents")).unwrap_or_default(),
        policy: AgentPolicy::default(),
        hidden: fields.boolean("hidden").unwrap_or(false),
        background: fields.boolean("background").unwrap_or(false),
        color: color(&fields),
        permission: permission::take(&fields),
        permission_mode: fields.choice("permission_mode", &modes()),
        origin: AgentOrigin { source, file: Some(place.file().to_owned()) },
    };
    if let Some(fields) = fields.map("policy") {
        let mode = fields.choice("permission_mode", &modes());
        definition.permission_mode = definition.permission_mode.or(mode);
        definition.policy = policy(&fields);
    }
    permission::remove_denied_tools(&mut definition);
    let model = fields.get("model").and_then(|node| settings::model(&fields, "model", node));
    fields.finish();
    if document.body.is_empty() {
        place.error(Position::FILE, "says nothing: expected a prompt after the frontmatter");
    }
    if place.failed() {
        return None;
    }
    Some(Draft {
        definition,
        file: place.file().to_owned(),
        model: model.map(|(name, parameters)| WantedModel {
            name,
            file: place.file().to_owned(),
            parameters,
            naming: Naming::Ours,
        }),
        mentions: mentions.0,
        delegates: Delegates::Listed,
    })
}

#[derive(Default)]
struct Mentions(Vec<Mention>);

impl Mentions {
    /// Remembers names to be checked later.
    fn take(&mut self, kind: MentionKind, names: Option<Vec<Text>>) -> Option<Vec<String>> {
        let names = names?;
        self.0.extend(names.iter().map(|name| Mention { kind, name: name.clone() }));
        Some(names.into_iter().map(|name| name.text).collect())
    }
}

/// A list of native tools, or a map of lists. Actions and skills may also stand beside it.
fn tools(fields: &Fields<'_>, mentions: &mut Mentions) -> ToolSelection {
    let mut selection = ToolSelection {
        actions: mentions.take(MentionKind::Action, fields.texts("actions")),
        skills: mentions.take(MentionKind::Skill, fields.texts("skills")),
        ..ToolSelection::default()
    };
    match fields.get("tools") {
        None => {}
        Some(node @ Node { value: Value::List(_), .. }) => {
            selection.native = mentions.take(MentionKind::NativeTool, fields.as_texts("tools", node));
        }
        Some(node) => {
            let Some(tools) = fields.as_map("tools", node) else { return selection };
            selection.native = mentions.take(MentionKind::NativeTool, tools.texts("native"));
            selection.external = mentions.take(MentionKind::ToolServer, tools.texts("external"));
            let actions = mentions.take(MentionKind::Action, tools.texts("actions"));
            let skills = mentions.take(MentionKind::Skill, tools.texts("skills"));
            selection.actions = actions.or(selection.actions);
            selection.skills = skills.or(selection.skills);
            tools.finish();
        }
    }
    selection
}

/// The same for what it is not given. Open Agent Harness puts native and external tools into `tools`.
fn disallowed(fields: &Fields<'_>, mentions: &mut Mentions) -> ToolExclusion {
    let mut exclusion = ToolExclusion::default();
    let Some(node) = fields.get("disallowed") else { return exclusion };
    let mut take = |kind, texts: Option<Vec<Text>>, into: &mut Vec<String>| {
        into.extend(mentions.take(kind, texts).unwrap_or_default());
    };
    if matches!(node.value, Value::List(_)) {
        take(MentionKind::NativeTool, fields.as_texts("disallowed", node), &mut exclusion.native);
        return exclusion;
    }
    let Some(given) = fields.as_map("disallowed", node) else { return exclusion };
    take(MentionKind::NativeTool, given.texts("native"), &mut exclusion.native);
    take(MentionKind::ToolServer, given.texts("external"), &mut exclusion.external);
    take(MentionKind::Action, given.texts("actions"), &mut exclusion.actions);
    take(MentionKind::Skill, given.texts("skills"), &mut exclusion.skills);
    if let Some(tools) = given.map("tools") {
        take(MentionKind::NativeTool, tools.texts("native"), &mut exclusion.native);
        take(MentionKind::ToolServer, tools.texts("external"), &mut exclusion.external);
        tools.finish();
    }
    given.finish();
    exclusion
}

fn policy(fields: &Fields<'_>) -> AgentPolicy {
    let default = AgentPolicy::default();
    let steps = fields.integer("max_steps", AgentPolicy::MIN_MAX_STEPS, AgentPolicy::MAX_MAX_STEPS);
    let policy = AgentPolicy {
        max_steps: steps.unwrap_or(default.max_steps),
        run_timeout: seconds(fields, "run_timeout_seconds"),
        tool_timeout: seconds(fields, "tool_timeout_seconds"),
        parallel_tool_calls: fields.boolean("parallel_tool_calls").unwrap_or(default.parallel_tool_calls),
        max_concurrent_subagents: fields
            .integer("max_concurrent_subagents", 1, 100)
            .unwrap_or(default.max_concurrent_subagents),
        max_subagents: fields.integer("max_subagents", 1, 1000).unwrap_or(default.max_subagents),
        max_switches: fields.integer("max_switches", 0, 100).unwrap_or(default.max_switches),
    };
    fields.finish();
    policy
}

fn seconds(fields: &Fields<'_>, key: &'static str) -> Option<Duration> {
    // A thousandth of a second is the least that means something.
    let seconds = fields.number(key, 0.001, MAX_TIMEOUT.as_secs_f64())?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// A word, or `#` with six hexadecimal digits.
pub(super) fn color(fields: &Fields<'_>) -> Option<String> {
    let color = fields.text("color")?;
    let hexadecimal = |digits: &str| digits.len() == 6 && digits.chars().all(|c| c.is_ascii_hexdigit());
    let word = |text: &str| {
        (1..=32).contains(&text.len()) && text.chars().all(|c| c.is_ascii_alphabetic() || c == '-')
    };
    let fits = color.text.strip_prefix('#').map_or_else(|| word(&color.text), hexadecimal);
    if !fits {
        let message = format!("color: expected a word or #rrggbb, found {}", color.shown());
        fields.place.error(color.at, message);
        return None;
    }
    Some(color.text)
}
