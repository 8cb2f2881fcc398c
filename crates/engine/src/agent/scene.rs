//! Who acts in a run, and with what.

use std::{path::PathBuf, sync::Arc, time::Duration};

use remuda_domain::{
    Code, Error,
    agent::AgentDefinition,
    content::{Content, ContentHash},
    error::Result,
    execution::ExecutionChoice,
    model::{ModelDefinition, ModelParameters, ModelRef},
    permission::{PermissionMode, Unattended},
    run::MessageInput,
    step::{ModelRequest, Step, StepWork},
};
use remuda_models::ToolSpec;
use remuda_permissions::{Layer, Ruleset};
use remuda_sandbox::LazySandbox;
use remuda_store::Grant;
use remuda_tools::Registry;
use remuda_workspace::{Audience, Current, Definitions, WorkspaceKind};
use tokio_util::sync::CancellationToken;

use super::{context::tokens, skill, toolset};
use crate::{Engine, patiently};

/// What stays the same during a run, whoever acts.
#[derive(Debug)]
pub(super) struct Stage {
    /// The version of the workspace's definitions that the run keeps.
    pub(super) content: Content,
    /// That version, unless it is the current one.
    kept: Option<Box<Definitions>>,
    /// The definitions as they are now. Keys are not part of any version: models come from here.
    current: Arc<Current>,
    /// Missing in a session that only talks.
    pub(super) sandbox: Option<Arc<LazySandbox>>,
    /// Of everyone but the agent and the session.
    rules: Ruleset,
    /// How long the agent that began lets a run take.
    run_timeout: Option<Duration>,
}

impl Stage {
    pub(super) fn definitions(&self) -> &Definitions {
        self.kept.as_deref().unwrap_or(&self.current.definitions)
    }

    /// A model as it can be asked: its key is not part of any version.
    pub(super) fn model(&self, reference: &ModelRef) -> Result<&ModelDefinition> {
        self.current.definitions.model(&reference.to_string())
    }

    /// How long the run may take in all.
    pub(super) fn limit(&self, grant: &Grant) -> Duration {
        self.run_timeout.unwrap_or(Duration::MAX).min(grant.run.timeout)
    }

    /// How long the run may go on, given what is left of its own time.
    pub(super) fn time(&self, grant: &Grant) -> Duration {
        // Pauses are not part of it: what is left of a run's time grows by them.
        let gone = grant.run.timeout.saturating_sub(grant.time_left);
        let allowed = self.run_timeout.map(|timeout| timeout.saturating_sub(gone));
        allowed.unwrap_or(Duration::MAX).min(grant.time_left)
    }
}

/// Who acts, from one question to the next.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) agent: AgentDefinition,
    pub(super) model: ModelDefinition,
    pub(super) parameters: ModelParameters,
    pub(super) tools: Registry,
    pub(super) specs: Arc<[ToolSpec]>,
    pub(super) system: Content,
    pub(super) offered: Content,
    /// Tokens of what goes with every question, as estimated.
    pub(super) fixed: u64,
    pub(super) rules: Ruleset,
    pub(super) mode: PermissionMode,
    pub(super) unattended: Unattended,
}

/// The newest question among some steps.
pub(super) fn last_request(steps: &[Step]) -> Option<&ModelRequest> {
    steps.iter().rev().find_map(request_of)
}

fn request_of(step: &Step) -> Option<&ModelRequest> {
    match &step.work {
        StepWork::ModelCall { request, .. } if request.purpose.is_answer() => Some(request),
        StepWork::ModelCall { .. } | StepWork::ToolCall { .. } => None,
    }
}

impl Engine {
    /// Reads the workspace and decides who acts. A run that another worker began keeps the version, the agent and the model
    /// that it stands at.
    pub(super) async fn stage(
        &self,
        input: &MessageInput,
        grant: &Grant,
        abandon: &CancellationToken,
    ) -> Result<(Stage, Scene)> {
        let current = self.current_definitions(grant).await?;
        let begun = last_request(&grant.steps);
        let (kept, content) = match begun {
            Some(request) if request.definitions != current.content.hash => {
                let (kept, content) = self.stored_definitions(grant, request.definitions, abandon).await?;
                (Some(Box::new(kept)), content)
            }
            _ => (None, current.content.clone()),
        };
        let definitions = kept.as_deref().unwrap_or(&current.definitions);
        let first = grant.steps.iter().find_map(request_of).map(|request| request.agent.as_str());
        let named = first.or(input.agent.as_deref()).or(grant.agent.as_deref());
        // A session below another one may be led by whoever works for others.
        let first = match named {
            Some(name) if grant.depth > 0 => definitions.agent(name)?,
            Some(name) => definitions.leading_agent(name)?,
            None => definitions.default_agent()?,
        };
        let (first, run_timeout) = (first.name.clone(), first.policy.run_timeout);
        let settings = &self.agents.settings.permissions;
        let rules = Ruleset::new()
            .with(Layer::Platform, settings.rules.iter().cloned())
            .with(Layer::Tenant, self.tenant_rules(grant, abandon).await?)
            .with(Layer::Workspace, definitions.settings.permission.iter().cloned());
        let sandbox = self.place_agent(grant, definitions).await?;
        let stage = Stage { content, kept, current, sandbox, rules, run_timeout };
        let acting = begun.map_or(first, |request| request.agent.clone());
        let scene = self.scene(&stage, grant, &acting, begun)?;
        Ok((stage, scene))
    }

    /// What an agent has when it is its turn. `begun` is the question that it goes on with, if there was one.
    pub(super) fn scene(
        &self,
        stage: &Stage,
        grant: &Grant,
        agent: &str,
        begun: Option<&ModelRequest>,
    ) -> Result<Scene> {
        let definitions = stage.definitions();
        let agent = definitions.agent(agent)?;
        let (reference, parameters) = match begun {
            Some(request) => (request.model.clone(), request.parameters),
            None => {
                let chosen =
                    definitions.choose_model(agent, grant.model.as_deref(), self.agents.default_model())?;
                (chosen.model.reference.clone(), chosen.parameters)
            }
        };
        let model = stage.model(&reference)?.clone();
        let rules = stage
            .rules
            .clone()
            .with(Layer::Agent, agent.permission.iter().cloned())
            .with(Layer::Session, grant.permissions.rules.iter().cloned());
        let may_execute = stage.sandbox.is_some();
        let all = if may_execute { self.tools.clone() } else { Registry::default() };
        let deepest = grant.depth >= self.agents.settings.delegation.max_depth;
        let tools = toolset::of_agent(&all, agent, definitions, may_execute, !deepest)?;
        let tools = tools.only(|name| !rules.hides(name));
        let specs: Arc<[ToolSpec]> = toolset::specs(&tools).into();
        let reads_skills = tools.is_known(skill::NAME);
        let audience = Audience { agent, model: &model, reads_skills, today: grant.run.created_at };
        let system = definitions.system_prompt(&audience);
        let settings = &self.agents.settings.permissions;
        Ok(Scene {
            agent: agent.clone(),
            parameters: parameters.or(model.parameters),
            model,
            tools,
            offered: Content::new(serde_json::to_string(&*specs).unwrap_or_default()),
            fixed: tokens::fixed(&system, &specs),
            specs,
            system: Content::new(system),
            rules,
            mode: self.mode(grant, agent, definitions),
            unattended: grant
                .permissions
                .unattended
                .or(definitions.settings.unattended)
                .unwrap_or(settings.unattended),
        })
    }

    /// How far an agent goes without asking. Whoever says that nothing is to be changed is obeyed.
    fn mode(&self, grant: &Grant, agent: &AgentDefinition, definitions: &Definitions) -> PermissionMode {
        let said = [grant.permissions.mode, agent.permission_mode, definitions.settings.permission_mode];
        if said.contains(&Some(PermissionMode::Plan)) {
            return PermissionMode::Plan;
        }
        said.into_iter().flatten().next().unwrap_or(self.agents.settings.permissions.mode)
    }

    async fn tenant_rules(
        &self,
        grant: &Grant,
        abandon: &CancellationToken,
    ) -> Result<Vec<remuda_domain::permission::PermissionRule>> {
        let tenants = &self.agents.settings.permissions.tenants;
        if tenants.is_empty() {
            return Ok(Vec::new());
        }
        let tenant = grant.fence.tenant;
        let name = patiently(abandon, || self.placement.name(&*self.store, tenant)).await?;
        Ok(tenants.get(&*name).cloned().unwrap_or_default())
    }

    async fn current_definitions(&self, grant: &Grant) -> Result<Arc<Current>> {
        let (loader, root) = (self.agents.workspaces.clone(), PathBuf::from(&grant.workspace_root));
        let loaded = tokio::task::spawn_blocking(move || loader.current(&root)).await;
        loaded.map_err(|error| Error::internal("a workspace could not be read").with_source(error))
    }

    async fn stored_definitions(
        &self,
        grant: &Grant,
        hash: ContentHash,
        abandon: &CancellationToken,
    ) -> Result<(Definitions, Content)> {
        let text = patiently(abandon, || self.store.get_content(grant.fence.tenant, hash)).await?;
        let text = text.ok_or_else(|| Error::internal("the definitions that a run began with are gone"))?;
        Ok((Definitions::from_content(&text)?, Content { hash, text }))
    }

    /// Where the agent's tools execute; nowhere in a session that only talks.
    async fn place_agent(
        &self,
        grant: &Grant,
        definitions: &Definitions,
    ) -> Result<Option<Arc<LazySandbox>>> {
        if definitions.settings.kind == WorkspaceKind::Chat {
            return Ok(None);
        }
        let choice: &ExecutionChoice =
            if grant.execution.is_default() { &definitions.settings.execution } else { &grant.execution };
        match self.place(grant, choice, true).await {
            Ok(sandbox) => Ok(Some(sandbox)),
            Err(error) if error.code() == Code::ToolsDisabled => Ok(None),
            Err(error) => Err(error),
        }
    }
}
