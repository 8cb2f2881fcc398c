//! Sets up a run: its workspace definitions, permission rules, sandbox and active agent.

use std::{sync::Arc, time::Duration};

use remuda_dispatch::retry_until_abandoned;
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
    tool::ToolRole,
};
use remuda_models::ToolSpec;
use remuda_permissions::{Layer, Ruleset};
use remuda_sandbox::LazySandbox;
use remuda_store::Grant;
use remuda_tools::Registry;
use remuda_workspace::{Definitions, LoadedWorkspace, PromptContext, WorkspaceKind};
use tokio_util::sync::CancellationToken;

use super::{context::tokens, toolset};
use crate::Engine;

/// What stays the same during a run, whichever agent is active.
#[derive(Debug)]
pub(super) struct RunSetup {
    /// The version of the workspace's definitions that the run uses.
    pub(super) content: Content,
    /// That version, unless it is the current one.
    stored: Option<Box<Definitions>>,
    /// The current definitions. Keys are not part of any stored version, so models come from here.
    current: Arc<LoadedWorkspace>,
    /// Missing in a chat-only session.
    pub(super) sandbox: Option<Arc<LazySandbox>>,
    /// The rules of the platform, the tenant and the workspace.
    rules: Ruleset,
    /// The run timeout of the first agent.
    run_timeout: Option<Duration>,
}

impl RunSetup {
    pub(super) fn definitions(&self) -> &Definitions {
        self.stored.as_deref().unwrap_or(&self.current.definitions)
    }

    /// A model with its key, which is not part of any stored version.
    pub(super) fn model(&self, reference: &ModelRef) -> Result<&ModelDefinition> {
        self.current.definitions.model(&reference.to_string())
    }

    /// The run's total time limit.
    pub(super) fn limit(&self, grant: &Grant) -> Duration {
        self.run_timeout.unwrap_or(Duration::MAX).min(grant.run.timeout)
    }

    /// How long the run may still take.
    pub(super) fn time(&self, grant: &Grant) -> Duration {
        // Parked time does not count: it extends the time left.
        let elapsed = grant.run.timeout.saturating_sub(grant.time_left);
        let allowed = self.run_timeout.map(|timeout| timeout.saturating_sub(elapsed));
        allowed.unwrap_or(Duration::MAX).min(grant.time_left)
    }
}

/// The active agent with its model, tools and permissions.
#[derive(Debug)]
pub(super) struct ActiveAgent {
    pub(super) agent: AgentDefinition,
    pub(super) model: ModelDefinition,
    pub(super) parameters: ModelParameters,
    pub(super) tools: Registry,
    pub(super) specs: Arc<[ToolSpec]>,
    pub(super) system: Content,
    pub(super) specs_content: Content,
    /// Estimated tokens of the system prompt and tool definitions, which every request carries.
    pub(super) fixed: u64,
    pub(super) rules: Ruleset,
    pub(super) mode: PermissionMode,
    pub(super) unattended: Unattended,
}

/// The last model request among some steps.
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
    /// Reads the workspace and selects the active agent. A resumed run keeps its version, agent and model.
    pub(super) async fn set_up_run(
        &self,
        input: &MessageInput,
        grant: &Grant,
        abandon: &CancellationToken,
    ) -> Result<(RunSetup, ActiveAgent)> {
        let tenant = self.tenant_name(grant, abandon).await?;
        let current = self.current_definitions(grant, &tenant).await?;
        let last = last_request(&grant.steps);
        let (stored, content) = match last {
            Some(request) if request.definitions != current.content.hash => {
                let (stored, content) = self.stored_definitions(grant, request.definitions, abandon).await?;
                (Some(Box::new(stored)), content)
            }
            _ => (None, current.content.clone()),
        };
        let definitions = stored.as_deref().unwrap_or(&current.definitions);
        let first_agent = grant.steps.iter().find_map(request_of).map(|request| request.agent.as_str());
        let named = first_agent.or(input.agent.as_deref()).or(grant.agent.as_deref());
        // Below the top level, a session may be led by a sub-agent.
        let first_agent = match named {
            Some(name) if grant.depth > 0 => definitions.agent(name)?,
            Some(name) => definitions.leading_agent(name)?,
            None => definitions.default_agent()?,
        };
        let (first_agent, run_timeout) = (first_agent.name.clone(), first_agent.policy.run_timeout);
        let settings = &self.agents.settings.permissions;
        let rules = Ruleset::new()
            .with(Layer::Platform, settings.rules.iter().cloned())
            .with(Layer::Tenant, self.tenant_rules(&tenant))
            .with(Layer::Workspace, definitions.settings.permission.iter().cloned());
        let sandbox = self.agent_sandbox(grant, &tenant, definitions).await?;
        let setup = RunSetup { content, stored, current, sandbox, rules, run_timeout };
        let active_agent = last.map_or(first_agent, |request| request.agent.clone());
        let active = self.activate_agent(&setup, grant, &active_agent, last)?;
        Ok((setup, active))
    }

    /// Prepares an agent to become active. `last` is the last model request, if the run resumes with this agent.
    pub(super) fn activate_agent(
        &self,
        setup: &RunSetup,
        grant: &Grant,
        agent: &str,
        last: Option<&ModelRequest>,
    ) -> Result<ActiveAgent> {
        let definitions = setup.definitions();
        let agent = definitions.agent(agent)?;
        let (reference, parameters) = match last {
            Some(request) => (request.model.clone(), request.parameters),
            None => {
                let chosen =
                    definitions.choose_model(agent, grant.model.as_deref(), self.agents.default_model())?;
                (chosen.model.reference.clone(), chosen.parameters)
            }
        };
        let model = setup.model(&reference)?.clone();
        let rules = setup
            .rules
            .clone()
            .with(Layer::Agent, agent.permission.iter().cloned())
            .with(Layer::Session, grant.permissions.rules.iter().cloned());
        let may_execute = setup.sandbox.is_some();
        let all = if may_execute { self.tools.clone() } else { Registry::default() };
        let deepest = grant.depth >= self.agents.settings.delegation.max_depth;
        let tools = toolset::of_agent(&all, agent, definitions, may_execute, !deepest)?;
        let tools = tools.only(|tool| !rules.hides(tool));
        let specs: Arc<[ToolSpec]> = toolset::specs(&tools).into();
        let reads_skills = tools.catalog().with_role(ToolRole::ReadSkills).is_some();
        let audience = PromptContext {
            agent,
            model: &model,
            tools: self.agents.tools(),
            reads_skills,
            today: grant.run.created_at,
        };
        let system = definitions.system_prompt(&audience);
        let settings = &self.agents.settings.permissions;
        Ok(ActiveAgent {
            agent: agent.clone(),
            parameters: parameters.or(model.parameters),
            model,
            tools,
            specs_content: Content::new(serde_json::to_string(&*specs).unwrap_or_default()),
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

    /// The permission mode. `plan` wins wherever it is set.
    fn mode(&self, grant: &Grant, agent: &AgentDefinition, definitions: &Definitions) -> PermissionMode {
        let modes = [grant.permissions.mode, agent.permission_mode, definitions.settings.permission_mode];
        if modes.contains(&Some(PermissionMode::Plan)) {
            return PermissionMode::Plan;
        }
        modes.into_iter().flatten().next().unwrap_or(self.agents.settings.permissions.mode)
    }

    fn tenant_rules(&self, tenant: &str) -> Vec<remuda_domain::permission::PermissionRule> {
        self.agents.settings.permissions.tenants.get(tenant).cloned().unwrap_or_default()
    }

    async fn current_definitions(&self, grant: &Grant, tenant: &Arc<str>) -> Result<Arc<LoadedWorkspace>> {
        let root = self.placement.workspace(Arc::clone(tenant), grant).await?;
        let loader = self.agents.workspaces.clone();
        let loaded = tokio::task::spawn_blocking(move || loader.current(&root)).await;
        loaded.map_err(|error| Error::internal("a workspace could not be read").with_source(error))
    }

    async fn stored_definitions(
        &self,
        grant: &Grant,
        hash: ContentHash,
        abandon: &CancellationToken,
    ) -> Result<(Definitions, Content)> {
        let text =
            retry_until_abandoned(abandon, || self.store.get_content(grant.fence.tenant, hash)).await?;
        let text = text.ok_or_else(|| Error::internal("the definitions that a run began with are gone"))?;
        Ok((Definitions::from_content(&text)?, Content { hash, text }))
    }

    /// The sandbox of the agent's tools; none in a chat-only session.
    async fn agent_sandbox(
        &self,
        grant: &Grant,
        tenant: &Arc<str>,
        definitions: &Definitions,
    ) -> Result<Option<Arc<LazySandbox>>> {
        if definitions.settings.kind == WorkspaceKind::Chat {
            return Ok(None);
        }
        let choice: &ExecutionChoice =
            if grant.execution.is_default() { &definitions.settings.execution } else { &grant.execution };
        match self.sandbox_for(grant, tenant, choice, true).await {
            Ok(sandbox) => Ok(Some(sandbox)),
            Err(error) if error.code() == Code::ToolsDisabled => Ok(None),
            Err(error) => Err(error),
        }
    }
}
