//! Parses agents in the native format, which is that of Open Agent Harness: `agents/*.md`.

use std::{path::Path, time::Duration};

use remuda_domain::{
    agent::{
        AgentDefinition, AgentMode, AgentOrigin, AgentPolicy, AgentSource, ToolExclusion, ToolSelection,
    },
    limits::MAX_TIMEOUT,
    tool::ToolCatalog,
};

use super::{
    DelegationTargets, LoadOutcome, LoadedAgent, ModelNaming, NameReference, ReferenceKind, RequestedModel,
    UnresolvedAgent, permission,
};
use crate::{
    definition_dir::Source,
    environment::{Owner, VariableSyntax},
    parse::{
        Document, Fields, FrontmatterStyle, LocatedText, Node, Position, Value, is_name, split_frontmatter,
    },
    report::Reporter,
    sections::{modes, settings},
};

pub(crate) const WORKSPACE_AGENTS: &str = ".openharness/agents";
pub(crate) const PLATFORM_AGENTS: &str = "";

pub(super) const MODES: [(&str, AgentMode); 3] =
    [("primary", AgentMode::Primary), ("subagent", AgentMode::Subagent), ("all", AgentMode::All)];

/// The end of messages about invalid agent names.
pub(super) const NAME_EXPECTED: &str = "expected letters, digits, `.`, `_` and `-`, at most 64 characters";

pub(crate) fn read(source: Source<'_>, directory: &Path) -> Vec<LoadedAgent> {
    let origin = match source.owner() {
        Owner::Platform => AgentSource::Platform,
        Owner::Workspace => AgentSource::OpenHarness,
    };
    let read = |path: std::path::PathBuf| {
        let file = source.files.display_path(&path);
        let name = stem(&path);
        let reporter = Reporter::for_definition(source.report, &file, name.clone());
        let draft = source.read(&path, &reporter).and_then(|text| {
            let mut document =
                source.ok_or_report(split_frontmatter(&text, FrontmatterStyle::Strict), &reporter)?;
            if let Some(head) = &mut document.head {
                source.interpolate(head, VariableSyntax::Native, &reporter);
            }
            agent(&name, &document, origin, source.tools, &reporter)
        });
        let outcome = draft.map_or(LoadOutcome::Invalid, |draft| LoadOutcome::Usable(Box::new(draft)));
        LoadedAgent { name, file: file.clone(), outcome }
    };
    source.list(directory, ".md").into_iter().map(read).collect()
}

pub(super) fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// Parses one agent; `None` if it has an error.
pub(super) fn agent(
    name: &str,
    document: &Document,
    source: AgentSource,
    catalog: &ToolCatalog,
    reporter: &Reporter<'_>,
) -> Option<UnresolvedAgent> {
    if !is_name(name) {
        reporter.error(Position::FILE, format!("the file name is the agent's name: {NAME_EXPECTED}"));
    }
    let fields = match &document.head {
        Some(head) => Fields::from_node(head, "frontmatter", reporter)?,
        None => Fields::empty(reporter),
    };
    if let Some(other) = fields.text("name").filter(|other| other.text != name) {
        let message = format!("name: the agent is called `{name}` like its file, not {}", other.display());
        reporter.warn(other.at, message);
    }
    let mut references = ReferenceCollector::default();
    let (tools, undeclared) = declared(tools(&fields, &mut references));
    let mut definition = AgentDefinition {
        name: name.to_owned(),
        mode: fields.choice("mode", &MODES).unwrap_or_default(),
        description: fields.text("description").map(|text| text.text.trim().to_owned()).unwrap_or_default(),
        prompt: document.body.clone(),
        model: None,
        parameters: settings::parameters(&fields),
        system_reminder: fields.text("system_reminder").map(|text| text.text.trim().to_owned()),
        tools,
        disallowed: disallowed(&fields, &mut references),
        switch: references.record(ReferenceKind::Switch, fields.names("switch")).unwrap_or_default(),
        subagents: references.record(ReferenceKind::Subagent, fields.names("subagents")).unwrap_or_default(),
        policy: AgentPolicy::default(),
        hidden: fields.boolean("hidden").unwrap_or(false),
        background: fields.boolean("background").unwrap_or(false),
        color: color(&fields),
        permission: permission::parse(&fields, catalog),
        permission_mode: fields.choice("permission_mode", &modes()),
        origin: AgentOrigin { source, file: Some(reporter.file().to_owned()) },
    };
    if let Some(fields) = fields.map("policy") {
        let mode = fields.choice("permission_mode", &modes());
        definition.permission_mode = definition.permission_mode.or(mode);
        definition.policy = policy(&fields);
    }
    permission::remove_denied_tools(&mut definition, catalog);
    let model = fields.get("model").and_then(|node| settings::model(&fields, "model", node));
    fields.finish();
    if document.body.is_empty() {
        reporter.error(Position::FILE, "has no prompt: expected text after the frontmatter");
    }
    if reporter.failed() {
        return None;
    }
    Some(UnresolvedAgent {
        definition,
        file: reporter.file().to_owned(),
        model: model.map(|(name, parameters)| RequestedModel {
            name,
            file: reporter.file().to_owned(),
            parameters,
            naming: ModelNaming::Native,
        }),
        references: references.0,
        undeclared,
        delegation: DelegationTargets::Listed,
    })
}

#[derive(Default)]
struct ReferenceCollector(Vec<NameReference>);

impl ReferenceCollector {
    /// Records names, to be checked when all definitions are loaded.
    fn record(&mut self, kind: ReferenceKind, names: Option<Vec<LocatedText>>) -> Option<Vec<String>> {
        let names = names?;
        self.0.extend(names.iter().map(|name| NameReference { kind, name: name.clone() }));
        Some(names.into_iter().map(|name| name.text).collect())
    }
}

/// `tools` is a list of native tools, or a map of lists. `actions` and `skills` may also be top-level keys.
fn tools(fields: &Fields<'_>, references: &mut ReferenceCollector) -> ToolSelection {
    let mut selection = ToolSelection {
        actions: references.record(ReferenceKind::Action, fields.texts("actions")),
        skills: references.record(ReferenceKind::Skill, fields.texts("skills")),
        ..ToolSelection::default()
    };
    match fields.get("tools") {
        None => {}
        Some(node @ Node { value: Value::List(_), .. }) => {
            selection.native = references.record(ReferenceKind::NativeTool, fields.as_texts("tools", node));
        }
        Some(node) => {
            let Some(tools) = fields.as_map("tools", node) else { return selection };
            selection.native = references.record(ReferenceKind::NativeTool, tools.texts("native"));
            selection.external = references.record(ReferenceKind::ToolServer, tools.texts("external"));
            let actions = references.record(ReferenceKind::Action, tools.texts("actions"));
            let skills = references.record(ReferenceKind::Skill, tools.texts("skills"));
            selection.actions = actions.or(selection.actions);
            selection.skills = skills.or(selection.skills);
            tools.finish();
        }
    }
    selection
}

/// An agent has only what it lists. Returns the kinds that it does not mention.
fn declared(selection: ToolSelection) -> (ToolSelection, Vec<ReferenceKind>) {
    let mut undeclared = Vec::new();
    let mut list = |kind, names: Option<Vec<String>>| {
        if names.is_none() {
            undeclared.push(kind);
        }
        Some(names.unwrap_or_default())
    };
    let selection = ToolSelection {
        native: list(ReferenceKind::NativeTool, selection.native),
        actions: list(ReferenceKind::Action, selection.actions),
        skills: list(ReferenceKind::Skill, selection.skills),
        external: list(ReferenceKind::ToolServer, selection.external),
    };
    (selection, undeclared)
}

/// The same for `disallowed`, where Open Agent Harness nests native and external tools in `tools`.
fn disallowed(fields: &Fields<'_>, references: &mut ReferenceCollector) -> ToolExclusion {
    let mut exclusion = ToolExclusion::default();
    let Some(node) = fields.get("disallowed") else { return exclusion };
    let mut take = |kind, texts: Option<Vec<LocatedText>>, into: &mut Vec<String>| {
        into.extend(references.record(kind, texts).unwrap_or_default());
    };
    if matches!(node.value, Value::List(_)) {
        take(ReferenceKind::NativeTool, fields.as_texts("disallowed", node), &mut exclusion.native);
        return exclusion;
    }
    let Some(given) = fields.as_map("disallowed", node) else { return exclusion };
    take(ReferenceKind::NativeTool, given.texts("native"), &mut exclusion.native);
    take(ReferenceKind::ToolServer, given.texts("external"), &mut exclusion.external);
    take(ReferenceKind::Action, given.texts("actions"), &mut exclusion.actions);
    take(ReferenceKind::Skill, given.texts("skills"), &mut exclusion.skills);
    if let Some(tools) = given.map("tools") {
        take(ReferenceKind::NativeTool, tools.texts("native"), &mut exclusion.native);
        take(ReferenceKind::ToolServer, tools.texts("external"), &mut exclusion.external);
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
    // Timeouts have a resolution of one millisecond.
    let seconds = fields.number(key, 0.001, MAX_TIMEOUT.as_secs_f64())?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// The color: a word, or `#` with six hexadecimal digits.
pub(super) fn color(fields: &Fields<'_>) -> Option<String> {
    let color = fields.text("color")?;
    let hexadecimal = |digits: &str| digits.len() == 6 && digits.chars().all(|c| c.is_ascii_hexdigit());
    let word = |text: &str| {
        (1..=32).contains(&text.len()) && text.chars().all(|c| c.is_ascii_alphabetic() || c == '-')
    };
    let fits = color.text.strip_prefix('#').map_or_else(|| word(&color.text), hexadecimal);
    if !fits {
        let message = format!("color: expected a word or #rrggbb, found {}", color.display());
        fields.reporter.error(color.at, message);
        return None;
    }
    Some(color.text)
}
