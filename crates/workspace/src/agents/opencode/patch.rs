//! The settings of one agent in one OpenCode file, all of them optional.

use std::path::Path;

use remuda_domain::{
    agent::{
        AgentDefinition, AgentMode, AgentOrigin, AgentPolicy, AgentSource, PermissionRule, ToolExclusion,
        ToolSelection,
    },
    model::ModelParameters,
};

use crate::{
    agents::{openharness, permission},
    definition_dir::Source,
    definition_files::is_descendant_path,
    parse::{Fields, LocatedText, Value},
};

/// OpenCode has no step limit by default.
const UNLIMITED_STEPS: u32 = 1000;

#[derive(Clone, Default)]
pub(super) struct Patch {
    description: Option<String>,
    mode: Option<AgentMode>,
    pub model: Option<LocatedText>,
    pub prompt: Option<String>,
    parameters: ModelParameters,
    steps: Option<u32>,
    rules: Vec<PermissionRule>,
    hidden: Option<bool>,
    pub disable: Option<bool>,
    color: Option<String>,
}

impl Patch {
    pub(super) fn parse(source: Source<'_>, fields: &Fields<'_>) -> Self {
        let mut rules = permission::parse_tools(fields);
        rules.extend(permission::parse(fields, source.tools));
        // Whether an agent is built in follows from where it is defined.
        let _ = (fields.get("name"), fields.get("native"));
        let patch = Self {
            description: fields.text("description").map(|text| text.text.trim().to_owned()),
            mode: fields.choice("mode", &openharness::MODES),
            model: model(fields),
            prompt: fields.text("prompt").and_then(|text| prompt(source, fields, &text)),
            parameters: ModelParameters {
                temperature: fields.number("temperature", 0.0, 2.0),
                top_p: fields.number("top_p", 0.0, 1.0).or(fields.number("topP", 0.0, 1.0)),
                max_tokens: None,
            },
            steps: steps(fields),
            rules,
            hidden: fields.boolean("hidden"),
            disable: fields.boolean("disable"),
            color: openharness::color(fields),
        };
        for key in ["variant", "options"] {
            if let Some(node) = fields.get(key) {
                fields.reporter.warn(node.at, format!("{key}: provider options are ignored"));
            }
        }
        fields.finish();
        patch
    }

    /// Merges two patches; `over` wins.
    pub(super) fn overlaid_with(self, over: Self) -> Self {
        let mut rules = self.rules;
        rules.extend(over.rules);
        Self {
            description: over.description.or(self.description),
            mode: over.mode.or(self.mode),
            model: over.model.or(self.model),
            prompt: over.prompt.or(self.prompt),
            parameters: over.parameters.or(self.parameters),
            steps: over.steps.or(self.steps),
            rules,
            hidden: over.hidden.or(self.hidden),
            disable: over.disable.or(self.disable),
            color: over.color.or(self.color),
        }
    }

    /// Applies the patch to `base`, or to a default agent. `general` are the rules for all agents.
    pub(super) fn apply(
        self,
        name: &str,
        file: &str,
        base: Option<&AgentDefinition>,
        general: &[PermissionRule],
    ) -> AgentDefinition {
        let mut agent = base.cloned().unwrap_or_else(|| AgentDefinition {
            name: name.to_owned(),
            mode: AgentMode::All,
            description: String::new(),
            prompt: String::new(),
            model: None,
            parameters: ModelParameters::default(),
            system_reminder: None,
            tools: ToolSelection::default(),
            disallowed: ToolExclusion::default(),
            switch: Vec::new(),
            subagents: Vec::new(),
            policy: AgentPolicy { max_steps: UNLIMITED_STEPS, ..AgentPolicy::default() },
            hidden: false,
            background: false,
            color: None,
            permission: Vec::new(),
            permission_mode: None,
            origin: AgentOrigin { source: AgentSource::OpenCode, file: None },
        });
        agent.origin = AgentOrigin { source: AgentSource::OpenCode, file: Some(file.to_owned()) };
        agent.mode = self.mode.unwrap_or(agent.mode);
        agent.description = self.description.unwrap_or(agent.description);
        agent.prompt = self.prompt.unwrap_or(agent.prompt);
        agent.parameters = self.parameters.or(agent.parameters);
        agent.policy.max_steps = self.steps.unwrap_or(agent.policy.max_steps);
        agent.permission.extend(general.iter().cloned());
        agent.permission.extend(self.rules);
        agent.hidden = self.hidden.unwrap_or(agent.hidden);
        agent.color = self.color.or(agent.color);
        agent
    }
}

/// The model as `provider/model`, or as an object with `providerID` and `modelID`.
pub(super) fn model(fields: &Fields<'_>) -> Option<LocatedText> {
    let node = fields.get("model")?;
    if !matches!(node.value, Value::Map(_)) {
        return fields.as_text("model", node).filter(|model| !model.text.is_empty());
    }
    let ids = fields.as_map("model", node)?;
    let (provider, model) = (ids.required_text("providerID"), ids.required_text("modelID"));
    ids.finish();
    let (provider, model) = (provider?, model?);
    let text = format!("{}/{}", provider.text, model.text);
    Some(LocatedText { text, at: node.at, from_env: provider.from_env || model.from_env })
}

/// `steps`, or its older name `maxSteps`.
fn steps(fields: &Fields<'_>) -> Option<u32> {
    let steps = fields.integer("steps", 1, AgentPolicy::MAX_MAX_STEPS);
    let steps = steps.or(fields.integer("maxSteps", 1, AgentPolicy::MAX_MAX_STEPS))?;
    Some(steps.max(AgentPolicy::MIN_MAX_STEPS))
}

/// The prompt: text, which may contain one `{file:…}` relative to the configuration.
fn prompt(source: Source<'_>, fields: &Fields<'_>, text: &LocatedText) -> Option<String> {
    let Some((before, rest)) = text.text.split_once("{file:") else { return Some(text.text.clone()) };
    let fail = |message: &str| {
        fields.reporter.error(text.at, format!("prompt: {message}"));
        None
    };
    let Some((path, after)) = rest.split_once('}') else { return fail("expected } after {file:") };
    if !is_descendant_path(path) {
        return fail("the file is not inside the workspace");
    }
    match source.files.read(Path::new(path)) {
        Ok(Some(contents)) => Some(format!("{before}{}{after}", contents.trim()).trim().to_owned()),
        Ok(None) => fail("the file does not exist"),
        Err(fault) => fail(&format!("the file {}", fault.message)),
    }
}
