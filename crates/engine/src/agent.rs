//! Executes a `message` run: the agent loop.
//!
//! A run is a sequence of steps: call the model, execute the tool calls that it requests, call the model again. Each
//! state is committed before anything depends on it. A model call is committed together with the messages that it
//! sends, a response before its tool calls start, and each tool call as in a `tools` run. So a new owner knows from
//! the steps alone where the run is ([`resume`]), and repeats no finished model call and no finished tool call.

mod agent_tools;
mod call_targets;
mod compaction;
mod context;
mod delegation;
mod ending;
mod model_call;
mod model_request;
mod preview;
mod render;
mod repeated_calls;
mod response;
mod response_stream;
mod resume;
mod run_setup;
mod runtime;
mod settings;
mod skill;
mod spending;
mod tool_calls;
mod toolset;
mod transcript;

use std::borrow::Cow;

use remuda_domain::{
    EventBody, MessageId, RunId, ToolCallId,
    budget::Spent,
    error::Result,
    message::{Part, Role},
    run::{Failure, MessageInput, ParkReason},
    step::Step,
    tool::{ToolCall, ToolOutcome},
};
use remuda_permissions::{ProposedCall, Verdict};
use remuda_store::{Grant, NewMessage, ParkRequest};

pub(crate) use self::context::{OversizedResult, oversized};
use self::{
    compaction::CompactionState,
    delegation::BackgroundChild,
    model_call::ModelCallIds,
    repeated_calls::RepeatedCalls,
    run_setup::{ActiveAgent, RunSetup},
    transcript::TranscriptMessage,
};
pub use self::{
    preview::{FirstModelCall, preview_first_model_call, tools_of_agent},
    runtime::AgentRuntime,
    settings::{AgentSettings, ContextSettings, DelegationSettings, OnExpiry, PermissionSettings},
    toolset::tool_catalog,
};
use crate::{
    Engine, Execution, RunControl,
    approvals::decision_note,
    call_plan::{self, PlannedCall},
    run_context::{RunContext, RunProgress},
};

/// A `message` run in progress.
struct AgentRun<'a> {
    ctx: RunContext<'a>,
    setup: RunSetup,
    active: ActiveAgent,
    /// The session's messages as models see them, with the pending ones.
    transcript: Vec<TranscriptMessage>,
    /// Steps of lost runs of the session, which complete the transcript.
    repair_steps: Vec<Step>,
    /// Messages that enter the transcript with the next commit.
    pending_messages: Vec<NewMessage>,
    /// The model call that an earlier owner committed and got no response to.
    unanswered: Option<ModelCallIds>,
    /// How far the context was compacted.
    compaction: CompactionState,
    /// Responses that the active agent got since it became active.
    steps_taken: u32,
    /// The last response had neither text nor tool calls.
    last_response_empty: bool,
    next_index: u32,
    /// The tool calls of the last response, and the positions of those that an earlier owner left unfinished.
    plan: Vec<PlannedCall>,
    interrupted: Vec<usize>,
    repeated_calls: RepeatedCalls,
    switches: u32,
    /// The agent that takes over, and the call that named it.
    successor: Option<(String, ToolCallId)>,
    /// Number of delegations of this run.
    delegations: u32,
    /// Background children whose end was not reported to the model yet.
    background: Vec<BackgroundChild>,
    /// Children that the next model call reports.
    reported: Vec<RunId>,
    /// The messages that report them.
    notices: Vec<MessageId>,
    /// Events to commit with the next model call. Without it they do not happen.
    next_call_events: Vec<EventBody>,
    /// Outcomes of the tool calls of earlier responses.
    outcomes: Vec<ToolOutcome>,
    /// Steps and costs for the next commit.
    pending_steps: Vec<Step>,
    spent: Vec<Spent>,
    /// The agent is done, unless a background child has something to report.
    concluded: bool,
    failure: Option<Failure>,
}

impl Engine {
    /// Fails only if the journal cannot be written: the session is lost, or the store rejects the commit.
    pub(crate) async fn agent_run(
        &self,
        input: &MessageInput,
        grant: &Grant,
        control: &RunControl,
    ) -> Result<Execution> {
        let (setup, active) = match self.set_up_run(input, grant, &control.abandon).await {
            Ok(setup) => setup,
            Err(error) => return Ok(self.refuse(input, grant, control, &error).await),
        };
        let mut ctx = RunContext::new(self, grant, control, setup.sandbox.clone(), setup.time(grant));
        ctx.calls.tools = active.tools.clone();
        ctx.calls.shortens_results = true;
        ctx.limit = setup.limit(grant);
        let mut run = match AgentRun::resume(ctx, setup, active, input).await {
            Ok(run) => run,
            Err(error) => return Ok(self.refuse(input, grant, control, &error).await),
        };
        let progress = run.run_loop().await;
        // However the run continues, none of its background processes stay on this worker.
        run.ctx.calls.background.shutdown().await;
        match progress? {
            RunProgress::Abandoned => Ok(Execution::Abandoned),
            RunProgress::HandOver => Ok(Execution::HandedOver(Box::new(run.hand_over()))),
            RunProgress::Park(park) => Ok(Execution::Parked(Box::new(run.hand_over()), park)),
            RunProgress::Finished => {
                let reason = run.ctx.cancel_reason().await;
                Ok(Execution::Ended(Box::new(run.end(&reason))))
            }
        }
    }
}

impl AgentRun<'_> {
    async fn run_loop(&mut self) -> Result<RunProgress> {
        self.ctx.report_interrupted(&mut self.plan, &self.interrupted).await?;
        loop {
            if self.failure.is_some() {
                return Ok(self.ctx.progress());
            }
            for group in call_plan::groups(&self.plan) {
                if let Some(progress) = self.advance(group).await? {
                    return Ok(progress);
                }
            }
            if self.ctx.killed.is_some() {
                return Ok(self.ctx.progress());
            }
            let results = self.collect_results();
            if !results.is_empty() {
                self.append_message(MessageId::new(), Role::Tool, results);
            }
            self.switch_agent();
            self.collect_background_results().await?;
            if self.failure.is_some() || (self.concluded && self.reported.is_empty()) {
                return Ok(self.finish_or_wait());
            }
            if self.ctx.control.drain.is_cancelled() {
                return Ok(RunProgress::HandOver);
            }
            if let Some(park) = self.call_model().await? {
                return Ok(RunProgress::Park(park));
            }
        }
    }

    /// The progress of a run that needs no more model calls: it waits for its background children first.
    fn finish_or_wait(&self) -> RunProgress {
        if self.failure.is_some() || self.background.is_empty() {
            return self.ctx.progress();
        }
        let children: Vec<RunId> = self.background.iter().map(|child| child.child.run).collect();
        // An agent without steps left gets all reports in one model call.
        let exhausted = self.steps_taken >= self.active.agent.policy.max_steps;
        let needed = if exhausted { u32::try_from(children.len()).unwrap_or(u32::MAX) } else { 1 };
        RunProgress::Park(ParkRequest { children, needed, ..ParkRequest::on(ParkReason::Children) })
    }

    /// Takes the results of the last response's tool calls, which completes them.
    fn collect_results(&mut self) -> Vec<Part> {
        let switched =
            |planned: &PlannedCall| Some((tool_calls::switched_to(planned)?.to_owned(), planned.call.id));
        // Results that were appended before have left the plan, but their switch is still pending.
        self.successor = self.plan.iter().find_map(switched).or_else(|| self.successor.take());
        let mut parts = Vec::with_capacity(self.plan.len());
        let mut notes = Vec::new();
        for planned in std::mem::take(&mut self.plan) {
            notes.extend(decision_note(&planned));
            let Some(outcome) = planned.outcome else { continue };
            self.repeated_calls.record(&planned.call, &outcome);
            self.outcomes.push(outcome.clone());
            parts.push(Part::ToolResult { outcome });
        }
        parts.extend(notes.into_iter().map(Part::text));
        parts
    }

    /// Makes the agent active that a call named.
    fn switch_agent(&mut self) {
        let Some((agent, call)) = self.successor.take() else { return };
        let from = self.active.agent.name.clone();
        match self.ctx.engine.activate_agent(&self.setup, self.ctx.grant, &agent, None) {
            Ok(active) => {
                self.ctx.calls.tools = active.tools.clone();
                self.active = active;
                self.steps_taken = 0;
                self.concluded = false;
                self.next_call_events.push(EventBody::AgentSwitched { call, from, to: agent });
            }
            Err(error) => {
                let message = format!("{agent} cannot go on: {error}");
                self.failure = Some(Failure::new(error.code(), message));
            }
        }
    }

    /// The verdict of the permission rules on a call.
    fn permission_verdict(&self, call: &ToolCall) -> Verdict {
        // Once the sandbox exists, agents name files by their paths inside it.
        let sandbox = self.setup.sandbox.as_ref().and_then(|sandbox| sandbox.acquired());
        let root = sandbox.and_then(|sandbox| sandbox.workspace_path());
        let root = root.unwrap_or(&self.ctx.grant.workspace_root);
        // A tool that the agent lost since it made the call is judged, too.
        let tool = match self.ctx.tools().get(&call.tool) {
            Some(tool) => Cow::Borrowed(tool.descriptor()),
            None => self.ctx.engine.agents.tools().describe(&call.tool),
        };
        let asked = ProposedCall { tool: &tool, arguments: &call.arguments };
        self.active.rules.judge(self.active.mode, root, &asked)
    }

    /// Appends a message to the transcript, for the next commit.
    fn append_message(&mut self, id: MessageId, role: Role, parts: Vec<Part>) {
        let message = NewMessage { id, role, agent: Some(self.active.agent.name.clone()), parts };
        self.transcript.push(TranscriptMessage::new(&message, self.ctx.grant.run.id));
        self.pending_messages.push(message);
    }

    /// Takes the pending messages and adds their events.
    fn take_pending_messages(&mut self) -> Vec<NewMessage> {
        let pending_messages = std::mem::take(&mut self.pending_messages);
        for message in &pending_messages {
            self.ctx.journal.add_event(EventBody::MessageCompleted {
                message: message.id,
                role: message.role,
                agent: message.agent.clone(),
                parts: message.parts.clone(),
            });
        }
        pending_messages
    }
}
