//! Submitting and reading runs.

use std::{sync::Arc, time::Duration};

use chrono::Utc;
use remuda_domain::{
    Code, Cursor, Error, Labels, Run, RunId, RunInput,
    budget::{Limit, Total},
    content::ContentHash,
    error::Result,
    identity::Principal,
    limits,
    page::{Page, PageRequest},
    run::IfBusy,
    step::Step,
    trace::TraceContext,
};
use remuda_store::{CancelSignal, Idempotency, NewRun, RunFilter};
use remuda_telemetry::spans::emit;
use remuda_trace::{RunTrace, live};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::{App, sessions::SessionRequirements};

/// A run as a caller submits it.
#[derive(Clone, Debug)]
pub struct Submission {
    /// Id or name of the session.
    pub session: String,
    pub create_session: bool,
    /// Settings for a session that is created; an existing session must have the same.
    pub requirements: SessionRequirements,
    pub input: RunInput,
    /// Size of the input in the request.
    pub input_bytes: usize,
    pub timeout: Option<Duration>,
    pub if_busy: IfBusy,
    pub idempotency_key: Option<String>,
    /// The span that the run's trace hangs below.
    pub cause: Option<TraceContext>,
    /// Spending limit of the run and the runs below it.
    pub budget: Option<Limit>,
    pub labels: Labels,
    /// How long to wait for the run's end before responding.
    pub wait: Option<Duration>,
}

#[derive(Clone, Debug)]
pub struct SubmitReceipt {
    pub run: Run,
    pub deduplicated: bool,
    pub interrupted: Vec<RunId>,
    /// Cursor of the run's first event; 0 if an earlier request created the run.
    pub first_cursor: Cursor,
}

impl Submission {
    /// A hash by which two requests with the same idempotency key count as the same request. Ids of calls and messages
    /// are left out: the server generates missing ones.
    fn fingerprint(&self) -> [u8; 32] {
        // Every field is named, so that a new one cannot be forgotten here.
        let Self {
            session,
            requirements: SessionRequirements { execution, workspace, model, permissions },
            input,
            timeout,
            if_busy,
            budget,
            labels,
            // A retry may find the session that the first request created.
            create_session: _,
            input_bytes: _,
            idempotency_key: _,
            cause: _,
            wait: _,
        } = self;
        let timeout = timeout.map(|timeout| timeout.as_millis());
        let text = match input {
            RunInput::Tools(tools) => {
                let calls = tools.calls.iter().map(|call| {
                    let timeout = call.timeout.map(|timeout| timeout.as_millis());
                    (&call.tool, &call.arguments, call.parallel, timeout)
                });
                let calls: Vec<_> = calls.collect();
                let options = (if_busy, tools.continue_on_error, tools.record, execution);
                serde_json::to_vec(&(session, timeout, calls, options))
            }
            RunInput::Message(message) => {
                let options = (if_busy, &message.agent, execution);
                serde_json::to_vec(&("message", session, timeout, &message.parts, options))
            }
        };
        let mut hash = Sha256::new_with_prefix(text.unwrap_or_default());
        // Only fields that are set count, so that keys stored by versions without these fields still match.
        for (name, value) in [("workspace", workspace), ("model", model)] {
            if !value.is_empty() {
                hash.update(serde_json::to_vec(&(name, value)).unwrap_or_default());
            }
        }
        if let Some(permissions) = permissions {
            hash.update(serde_json::to_vec(&("permissions", permissions)).unwrap_or_default());
        }
        if let Some(budget) = budget {
            hash.update(serde_json::to_vec(&("budget", budget)).unwrap_or_default());
        }
        if !labels.is_empty() {
            hash.update(serde_json::to_vec(&("labels", labels)).unwrap_or_default());
        }
        hash.finalize().into()
    }
}

impl App {
    /// Accepts a run. When this returns, the run is committed.
    pub async fn submit(&self, caller: &Principal, submission: Submission) -> Result<SubmitReceipt> {
        let idempotency = match &submission.idempotency_key {
            Some(key) => {
                limits::check_idempotency_key(key)?;
                Some(Idempotency { key: key.clone(), request_hash: submission.fingerprint() })
            }
            None => None,
        };
        limits::check_input(&submission.input, &self.tools)?;
        self.check_arguments(&submission.input)?;
        let timeout = submission.timeout.unwrap_or(limits::DEFAULT_RUN_TIMEOUT);
        limits::check_timeout("timeout", timeout)?;
        submission.budget.map_or(Ok(()), |budget| budget.check("budget"))?;
        let session = if submission.create_session {
            self.ensure_session(caller, &submission.session, &submission.requirements).await?
        } else {
            self.matching_session(caller, &submission.session, &submission.requirements).await?
        };
        let id = RunId::new();
        // Registered before the submit, so that the end is not missed.
        let waiting =
            submission.wait.map(|wait| (self.register_new_wait(caller, session, id), Instant::now() + wait));
        let run = Run {
            traceparent: submission.cause.map(|cause| cause.to_string()),
            awaited_by: waiting.as_ref().and_then(|(pending, _)| pending.plane()),
            labels: submission.labels,
            ..Run::queued(id, (caller.tenant, session), submission.input, timeout)
        };
        let budget = submission.budget.filter(|limit| !limit.is_none());
        let run = NewRun { run, if_busy: submission.if_busy, idempotency, budget };
        let kib = u32::try_from(submission.input_bytes / 1024 + 1).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.input_permits).acquire_many_owned(kib).await;
        let app = self.clone();
        let receipt = self.run_to_completion(async move {
            let _permit = permit.map_err(|_| Error::unavailable("the server shuts down"))?;
            app.commit_submission(run, submission.cause).await
        });
        let receipt = receipt.await?;
        match waiting {
            // An earlier request created the run: its id is not the one that was registered, and it may have ended.
            Some((_, deadline)) if receipt.deduplicated => {
                let left = deadline.saturating_duration_since(Instant::now());
                let run = Box::pin(self.wait_run(caller, receipt.run.id, left)).await?;
                Ok(SubmitReceipt { run, ..receipt })
            }
            Some((pending, deadline)) => {
                let run = self.wait_for_end(caller, pending, Some(&receipt.run), deadline).await?;
                Ok(SubmitReceipt { run, ..receipt })
            }
            None => Ok(receipt),
        }
    }

    fn check_arguments(&self, input: &RunInput) -> Result<()> {
        let RunInput::Tools(tools) = input else { return Ok(()) };
        for (index, call) in tools.calls.iter().enumerate() {
            (self.check_call)(call).map_err(|error| {
                let field = error.field().unwrap_or("arguments").to_owned();
                error.at(format!("tools.calls[{index}].{field}"))
            })?;
        }
        Ok(())
    }

    async fn commit_submission(&self, run: NewRun, cause: Option<TraceContext>) -> Result<SubmitReceipt> {
        let (session, begun) = (run.run.session, Utc::now());
        let submitted = self.store.submit(run).await?;
        if let Some(cause) = cause {
            emit(live(cause, "commit run", (begun, Utc::now())));
        }
        // A repeated request has a trace of its own; the run has the trace of the first request.
        let trace = RunTrace::of(&submitted.run);
        let first_cursor = submitted.change.events.last().map_or(0, |event| event.cursor);
        self.announcer.announce(submitted.change, trace.is_collected().then(|| trace.run()));
        // Rare paths are boxed to keep the future of every submit small.
        if let Some((worker, run)) = submitted.signal {
            Box::pin(self.dispatcher.signal_cancel(CancelSignal { worker, session, run })).await;
        }
        if !submitted.interrupted.is_empty() {
            Box::pin(self.announce_cancelled(&submitted.descendants)).await;
        }
        Ok(SubmitReceipt {
            run: submitted.run,
            deduplicated: submitted.deduplicated,
            interrupted: submitted.interrupted,
            first_cursor,
        })
    }

    pub async fn get_run(&self, caller: &Principal, run: RunId) -> Result<Run> {
        self.store.get_run(caller.tenant, run).await
    }

    /// What a run has spent alone, and together with the runs below it.
    pub async fn run_totals(&self, caller: &Principal, run: RunId) -> Result<(Total, Total)> {
        self.store.run_totals(caller.tenant, run).await
    }

    /// Newest first. `session` is an id, a name, or empty for all sessions.
    pub async fn list_runs(
        &self,
        caller: &Principal,
        session: &str,
        filter: RunFilter,
        page: &PageRequest,
    ) -> Result<Page<Run>> {
        let session = match session {
            "" => None,
            session => Some(self.get_session(caller, session).await?.id),
        };
        self.store.list_runs(caller.tenant, &RunFilter { session, ..filter }, page).await
    }

    pub async fn list_steps(&self, caller: &Principal, run: RunId) -> Result<Vec<Step>> {
        self.store.list_steps(caller.tenant, run).await
    }

    /// A text that a step references by its hash.
    pub async fn get_content(&self, caller: &Principal, hash: ContentHash) -> Result<String> {
        let missing = || Error::new(Code::ContentNotFound, "nothing is stored under this hash").at("hash");
        self.store.get_content(caller.tenant, hash).await?.ok_or_else(missing)
    }
}

#[cfg(test)]
mod tests {
    use remuda_domain::{
        MessageId, ToolCallId,
        message::Part,
        permission::{PermissionMode, SessionPermissions},
        run::{MessageInput, ToolsInput},
        tool::ToolCall,
    };

    use super::*;

    fn submission(input: RunInput) -> Submission {
        Submission {
            session: "s1".to_owned(),
            create_session: true,
            requirements: SessionRequirements::default(),
            input,
            input_bytes: 2,
            timeout: None,
            if_busy: IfBusy::Enqueue,
            idempotency_key: None,
            cause: None,
            budget: None,
            labels: Labels::default(),
            wait: None,
        }
    }

    fn message(text: &str) -> Submission {
        let parts = vec![Part::text(text)];
        submission(RunInput::Message(MessageInput { id: MessageId::new(), parts, agent: None }))
    }

    fn tools() -> Submission {
        let call = ToolCall {
            id: ToolCallId::new(),
            tool: "noop".to_owned(),
            arguments: serde_json::json!({}),
            parallel: false,
            timeout: None,
        };
        let calls = vec![call];
        submission(RunInput::Tools(ToolsInput { calls, continue_on_error: false, record: false }))
    }

    #[test]
    fn generated_ids_do_not_change_the_fingerprint() {
        assert_eq!(message("hello").fingerprint(), message("hello").fingerprint());
        assert_eq!(tools().fingerprint(), tools().fingerprint());
    }

    /// Idempotency keys outlive an upgrade: a repeated request must have the same fingerprint.
    #[test]
    fn requests_of_earlier_versions_keep_their_fingerprint() {
        let text = r#"["s1",null,[["noop",{},false,null]],["enqueue",false,false,{}]]"#;
        assert_eq!(tools().fingerprint(), <[u8; 32]>::from(Sha256::digest(text)));
    }

    #[test]
    fn every_other_field_changes_the_fingerprint() {
        let base = message("hello");
        let with = |change: fn(&mut Submission)| {
            let mut other = message("hello");
            change(&mut other);
            other.fingerprint()
        };
        let mut all = vec![
            base.fingerprint(),
            message("hello!").fingerprint(),
            tools().fingerprint(),
            with(|it| it.session = "s2".to_owned()),
            with(|it| it.timeout = Some(Duration::from_secs(1))),
            with(|it| it.if_busy = IfBusy::Reject),
            with(|it| it.requirements.workspace = "docs".to_owned()),
            with(|it| it.requirements.model = "docs".to_owned()),
            with(|it| it.requirements.execution.image = Some("docs".to_owned())),
            with(|it| it.requirements.permissions = Some(SessionPermissions::default())),
            with(|it| {
                let mode = Some(PermissionMode::Plan);
                it.requirements.permissions =
                    Some(SessionPermissions { mode, ..SessionPermissions::default() });
            }),
            with(|it| it.budget = Some(Limit { tokens: Some(7), micros: None })),
            with(|it| it.budget = Some(Limit { tokens: None, micros: Some(7) })),
            with(|it| it.labels = Labels::parse(["team=core"]).unwrap()),
            with(|it| it.labels = Labels::parse(["team=docs"]).unwrap()),
            with(|it| {
                let RunInput::Message(message) = &mut it.input else { return };
                message.agent = Some("plan".to_owned());
            }),
        ];
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
