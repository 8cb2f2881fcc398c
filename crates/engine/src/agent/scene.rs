//! What stays the same during a run: the agent, its model, its tools and its prompt.

use std::{path::PathBuf, sync::Arc, time::Duration};

use remuda_domain::{
    Code, Error,
    agent::AgentDefinition,
    content::{Content, ContentHash},
    error::Result,
    execution::ExecutionChoice,
    model::{ModelDefinition, ModelParameters},
    run::MessageInput,
    step::{ModelRequest, Step, StepWork},
};
use remuda_models::ToolSpec;
use remuda_sandbox::LazySandbox;
use remuda_store::Grant;
use remuda_tools::Registry;
use remuda_workspace::{Audience, Current, Definitions, WorkspaceKind};
use tokio_util::sync::CancellationToken;

use super::{skill, toolset};
use crate::{Engine, patiently};

/// Who acts in a run, and with what.
#[derive(Debug)]
pub(super) struct Scene {
    /// The version of the workspace's definitions that the run keeps.
    pub(super) definitions: Content,
    pub(super) agent: AgentDefinition,
    pub(super) model: ModelDefinition,
    pub(super) parameters: ModelParameters,
    pub(super) tools: Registry,
    pub(super) specs: Vec<ToolSpec>,
    pub(super) system: Content,
    pub(super) offered: Content,
    pub(super) sandbox: Option<Arc<LazySandbox>>,
}

impl Scene {
    /// How long the run may take in all.
    pub(super) fn limit(&self, grant: &Grant) -> Duration {
        self.agent.policy.run_timeout.unwrap_or(Duration::MAX).min(grant.run.timeout)
    }

    /// How long the run may go on, given what is left of its own time.
    pub(super) fn time(&self, grant: &Grant) -> Duration {
        let gone = (grant.run.timeout + grant.run.paused).saturating_sub(grant.time_left);
        let allowed = self.agent.policy.run_timeout.map(|timeout| timeout.saturating_sub(gone));
        allowed.unwrap_or(Duration::MAX).min(grant.time_left)
    }
}

/// The newest model call among some steps.
pub(super) fn last_request(steps: &[Step]) -> Option<&ModelRequest> {
    steps.iter().rev().find_map(|step| match &step.work {
        StepWork::ModelCall { request, .. } => Some(request.as_ref()),
        StepWork::ToolCall { .. } => None,
    })
}

impl Engine {
    /// Reads the workspace and decides who acts. A run that another worker began keeps the version, the agent and the model
    /// that it began with.
    pub(super) async fn scene(
        &self,
        input: &MessageInput,
        grant: &Grant,
        abandon: &CancellationToken,
    ) -> Result<Scene> {
        let current = self.current_definitions(grant).await?;
        let begun = last_request(&grant.steps);
        let kept = match begun {
            Some(request) if request.definitions != current.content.hash => {
                Some(self.stored_definitions(grant, request.definitions, abandon).await?)
            }
            _ => None,
        };
        let (definitions, content) = match &kept {
            Some((definitions, content)) => (definitions, content),
            None => (&current.definitions, &current.content),
        };
        let named = begun.map(|request| request.agent.as_str());
        let named = named.or(input.agent.as_deref()).or(grant.agent.as_deref());
        let agent = match named {
            Some(name) => definitions.leading_agent(name)?,
            None => definitions.default_agent()?,
        };
        let (reference, parameters) = match begun {
            Some(request) => (request.model.clone(), request.parameters),
            None => {
                let chosen =
                    definitions.choose_model(agent, grant.model.as_deref(), self.agents.default_model())?;
                (chosen.model.reference.clone(), chosen.parameters)
            }
        };
        // Keys are not part of any version: the model comes from the registry as it is now.
        let model = current.definitions.model(&reference.to_string())?.clone();
        let sandbox = self.place_agent(grant, definitions).await?;
        let all = if sandbox.is_some() { self.tools.clone() } else { Registry::default() };
        let tools = toolset::of_agent(&all, agent, definitions, sandbox.is_some())?;
        let specs = toolset::specs(&tools);
        let reads_skills = tools.is_known(skill::NAME);
        let audience = Audience { agent, model: &model, reads_skills, today: grant.run.created_at };
        let system = definitions.system_prompt(&audience);
        Ok(Scene {
            definitions: content.clone(),
            agent: agent.clone(),
            parameters: parameters.or(model.parameters),
            model,
            tools,
            offered: Content::new(serde_json::to_string(&specs).unwrap_or_default()),
            specs,
            system: Content::new(system),
            sandbox,
        })
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
