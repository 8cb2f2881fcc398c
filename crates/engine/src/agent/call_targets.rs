//! Resolves the target agent of switch and delegation calls, so that permission rules see it however the call names
//! it.

use std::{borrow::Cow, collections::HashMap};

use remuda_domain::{Code, error::Result, session::SessionRef, tool::ToolCall};
use remuda_models::ToolRequest;
use serde_json::Value;

use super::{
    AgentRun,
    agent_tools::{self, DELEGATE, DelegateArguments, SWITCH, SwitchArguments},
    delegation::task_session,
};
use remuda_dispatch::retry_until_abandoned;

/// Agents by task id.
pub(super) type TaskAgents = HashMap<String, String>;

impl AgentRun<'_> {
    /// The agents of the tasks that calls want to continue. Tasks of other sessions are left out: such calls fail.
    pub(super) async fn task_agents(&self, requests: &[ToolRequest]) -> Result<TaskAgents> {
        let mut tasks = TaskAgents::new();
        let (store, fence) = (&self.ctx.engine.store, self.ctx.grant.fence);
        for request in requests.iter().filter(|request| request.name == DELEGATE) {
            let arguments = request.arguments.as_ref().ok();
            let Some(task) = arguments.and_then(|it| it.get("task_id")).and_then(Value::as_str) else {
                continue;
            };
            let Ok(session) = task_session(task) else { continue };
            let reference = SessionRef::Id(session);
            let read = || store.get_session(fence.tenant, &reference);
            match retry_until_abandoned(&self.ctx.control.abandon, read).await {
                Ok(found) if found.parent == Some(fence.session) => {
                    tasks.extend(found.agent.map(|agent| (task.to_owned(), agent)));
                }
                Ok(_) => {}
                Err(error) if error.code() == Code::SessionNotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(tasks)
    }

    /// The call with its target in the argument that permission rules match.
    pub(super) fn with_target<'c>(&self, call: &'c ToolCall, tasks: &TaskAgents) -> Cow<'c, ToolCall> {
        let (name, target) = match call.tool.as_str() {
            SWITCH => {
                let arguments = agent_tools::parse::<SwitchArguments>(&call.arguments).ok();
                ("agent", arguments.map(|arguments| arguments.agent))
            }
            DELEGATE => {
                let arguments = agent_tools::parse::<DelegateArguments>(&call.arguments).ok();
                ("subagent_type", arguments.and_then(|arguments| self.target_of(arguments, tasks)))
            }
            _ => return Cow::Borrowed(call),
        };
        let Some(target) = target else { return Cow::Borrowed(call) };
        Cow::Owned(with_argument(call, name, target))
    }

    fn target_of(&self, arguments: DelegateArguments, tasks: &TaskAgents) -> Option<String> {
        // A task belongs to its agent, whatever else the call names.
        let task = arguments.task_id.as_ref().and_then(|task| tasks.get(task)).cloned();
        let only = match self.active.agent.subagents.as_slice() {
            [only] => Some(only.clone()),
            _ => None,
        };
        task.or(arguments.subagent_type).or(only.filter(|_| arguments.task_id.is_none()))
    }
}

/// The call with one argument added or replaced.
pub(super) fn with_argument(call: &ToolCall, argument: &str, value: String) -> ToolCall {
    let mut call = call.clone();
    if let Some(arguments) = call.arguments.as_object_mut() {
        arguments.insert(argument.to_owned(), Value::String(value));
    }
    call
}
