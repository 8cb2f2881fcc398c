//! Whom a call is about that hands work to another agent: rules judge that, however the call says it.

use std::{borrow::Cow, collections::HashMap};

use remuda_domain::{Code, error::Result, session::SessionRef, tool::ToolCall};
use remuda_models::ToolRequest;
use serde_json::Value;

use super::{
    AgentRun,
    control::{self, DELEGATE, DelegateArguments, SWITCH, SwitchArguments},
    delegation::task_session,
};
use crate::patiently;

/// Agents by the tasks that they were given.
pub(super) type Tasks = HashMap<String, String>;

impl AgentRun<'_> {
    /// Who works on the tasks that calls want to be gone on with. Tasks that are not this session's have nobody: such a call fails.
    pub(super) async fn agents_of_tasks(&self, requests: &[ToolRequest]) -> Result<Tasks> {
        let mut tasks = Tasks::new();
        let (store, fence) = (&self.stand.engine.store, self.stand.grant.fence);
        for request in requests.iter().filter(|request| request.name == DELEGATE) {
            let arguments = request.arguments.as_ref().ok();
            let Some(task) = arguments.and_then(|it| it.get("task_id")).and_then(Value::as_str) else {
                continue;
            };
            let Ok(session) = task_session(task) else { continue };
            let reference = SessionRef::Id(session);
            let look = || store.get_session(fence.tenant, &reference);
            match patiently(&self.stand.control.abandon, look).await {
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

    /// The call as it would be if it named whom it is about by the name of the argument that rules look at.
    pub(super) fn with_target<'c>(&self, call: &'c ToolCall, tasks: &Tasks) -> Cow<'c, ToolCall> {
        let (name, target) = match call.tool.as_str() {
            SWITCH => {
                let arguments = control::parse::<SwitchArguments>(&call.arguments).ok();
                ("agent", arguments.map(|arguments| arguments.agent))
            }
            DELEGATE => {
                let arguments = control::parse::<DelegateArguments>(&call.arguments).ok();
                ("subagent_type", arguments.and_then(|arguments| self.target_of(arguments, tasks)))
            }
            _ => return Cow::Borrowed(call),
        };
        let Some(target) = target else { return Cow::Borrowed(call) };
        Cow::Owned(naming(call, name, target))
    }

    fn target_of(&self, arguments: DelegateArguments, tasks: &Tasks) -> Option<String> {
        // A task is its agent's, whoever is named besides.
        let task = arguments.task_id.as_ref().and_then(|task| tasks.get(task)).cloned();
        let only = match self.scene.agent.subagents.as_slice() {
            [only] => Some(only.clone()),
            _ => None,
        };
        task.or(arguments.subagent_type).or(only.filter(|_| arguments.task_id.is_none()))
    }
}

/// The same call with one argument more, or another one.
pub(super) fn naming(call: &ToolCall, argument: &str, value: String) -> ToolCall {
    let mut call = call.clone();
    if let Some(arguments) = call.arguments.as_object_mut() {
        arguments.insert(argument.to_owned(), Value::String(value));
    }
    call
}
