//! Runs: submitting and reading.

use std::{sync::Arc, time::Duration};

use remuda_domain::{
    Cursor, Error, Run, RunId, RunInput, RunState,
    error::Result,
    execution::ExecutionChoice,
    identity::Principal,
    limits,
    page::{Page, PageRequest},
    run::IfBusy,
    step::Step,
    worker::Signal,
};
use remuda_store::{Idempotency, NewRun, RunFilter};
use sha2::{Digest as _, Sha256};

use super::App;

/// What a caller submits.
#[derive(Clone, Debug)]
pub struct Submission {
    /// Id or name of the session.
    pub session: String,
    pub create_session: bool,
    /// Where a session that is created executes.
    pub execution: ExecutionChoice,
    pub input: RunInput,
    /// Size of the input as it came.
    pub input_bytes: usize,
    pub timeout: Option<Duration>,
    pub if_busy: IfBusy,
    pub idempotency_key: Option<String>,
    pub traceparent: Option<String>,
}

#[derive(Clone, Debug)]
pub struct SubmitReceipt {
    pub run: Run,
    pub deduplicated: bool,
    pub interrupted: Vec<RunId>,
    /// Cursor of the run's first event; 0 when an earlier request created it.
    pub first_cursor: Cursor,
}

impl Submission {
    /// What makes two requests with one idempotency key the same request. Ids of calls are left out: the server makes
    /// them up where the caller gave none.
    fn fingerprint(&self) -> [u8; 32] {
        let RunInput::Tools(tools) = &self.input;
        let calls: Vec<_> = tools
            .calls
            .iter()
            .map(|call| {
                (&call.tool, &call.arguments, call.parallel, call.timeout.map(|timeout| timeout.as_millis()))
            })
            .collect();
        let timeout = self.timeout.map(|timeout| timeout.as_millis());
        let options = (self.if_busy, tools.continue_on_error, tools.record, &self.execution);
        let parts = (&self.session, timeout, calls, options);
        let text = serde_json::to_vec(&parts).unwrap_or_default();
        Sha256::digest(text).into()
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
        limits::check_input(&submission.input, |tool| self.tools.contains(tool))?;
        self.check_arguments(&submission.input)?;
        let timeout = submission.timeout.unwrap_or(limits::DEFAULT_RUN_TIMEOUT);
        limits::check_timeout("timeout", timeout)?;
        let session = if submission.create_session {
            self.ensure_session(caller, &submission.session, &submission.execution).await?
        } else {
            self.session_like(caller, &submission.session, &submission.execution).await?
        };
        let run = NewRun {
            id: RunId::new(),
            tenant: caller.tenant,
            session,
            input: submission.input,
            timeout,
            if_busy: submission.if_busy,
            idempotency,
            traceparent: submission.traceparent,
        };
        let kib = u32::try_from(submission.input_bytes / 1024 + 1).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.input_room).acquire_many_owned(kib).await;
        let app = self.clone();
        self.to_the_end(async move {
            let _room = room.map_err(|_| Error::unavailable("the server shuts down"))?;
            app.commit_submission(run).await
        })
        .await
    }

    fn check_arguments(&self, input: &RunInput) -> Result<()> {
        let RunInput::Tools(tools) = input;
        for (index, call) in tools.calls.iter().enumerate() {
            (self.check_call)(call).map_err(|error| {
                let field = error.field().unwrap_or("arguments").to_owned();
                error.at(format!("tools.calls[{index}].{field}"))
            })?;
        }
        Ok(())
    }

    async fn commit_submission(&self, run: NewRun) -> Result<SubmitReceipt> {
        let (tenant, session) = (run.tenant, run.session);
        let submitted = self.store.submit(run).await?;
        let wake = submitted.wake.then_some(submitted.pool);
        let first_cursor = submitted.events.last().map_or(0, |event| event.cursor);
        self.waker.announce(tenant, session, wake, submitted.events);
        if let Some((worker, run)) = submitted.signal {
            self.signal(worker, Signal::Cancel { session, run }).await;
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

    /// Newest first. `session` is an id, a name, or empty for all.
    pub async fn list_runs(
        &self,
        caller: &Principal,
        session: &str,
        states: Vec<RunState>,
        page: &PageRequest,
    ) -> Result<Page<Run>> {
        let session = match session {
            "" => None,
            session => Some(self.get_session(caller, session).await?.id),
        };
        self.store.list_runs(caller.tenant, &RunFilter { session, states }, page).await
    }

    pub async fn list_steps(&self, caller: &Principal, run: RunId) -> Result<Vec<Step>> {
        self.store.list_steps(caller.tenant, run).await
    }
}
