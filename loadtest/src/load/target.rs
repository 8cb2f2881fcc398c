//! The target of the load: servers, connections to them, and sessions on them.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use remuda_domain::{limits, trace::TraceContext};
use remuda_proto::{
    convert,
    v1::{self, run_service_client::RunServiceClient, session_service_client::SessionServiceClient},
};
use tonic::{
    Request,
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};

use super::{ObservedRun, Sessions, StageTimings};
use crate::{observed_history::Micros, workload::Addresses};

/// Connections that clients share: one HTTP/2 connection carries many concurrent calls, but not all of them.
const CONNECTIONS: usize = 8;
/// Sessions that are created concurrently.
const CALLS_AT_ONCE: usize = 64;
/// How long one call waits for a run. The client repeats the call for a longer run.
const RUN_WAIT: Duration = Duration::from_secs(60);

/// Servers and sessions that receive the load.
#[derive(Debug)]
pub(crate) struct LoadTarget {
    pub(crate) addresses: Addresses,
    pub(crate) sessions: Sessions,
    /// Collects the stage timings of traced runs.
    pub(super) stages: Option<StageTimings>,
    channels: Vec<Channel>,
    authorization: Option<MetadataValue<Ascii>>,
}

impl LoadTarget {
    /// Connects and creates this many sessions.
    pub(crate) async fn new(addresses: Addresses, sessions: usize) -> anyhow::Result<Self> {
        Self::with_session_template(addresses, sessions, v1::CreateSessionRequest::default()).await
    }

    /// Connects and creates sessions from a template.
    pub(crate) async fn with_session_template(
        addresses: Addresses,
        sessions: usize,
        template: v1::CreateSessionRequest,
    ) -> anyhow::Result<Self> {
        let mut target = Self::connect(addresses)?;
        let created = stream::iter(0..sessions).map(|number| {
            let (mut service, request) =
                (SessionServiceClient::new(target.channel(number)), target.request(template.clone()));
            async move {
                let answer = service.create_session(request).await?.into_inner();
                anyhow::Ok(Arc::from(answer.session.context("no session in the answer")?.id))
            }
        });
        target.sessions = Sessions::Listed(created.buffered(CALLS_AT_ONCE).try_collect().await?);
        Ok(target)
    }

    /// Connects and creates sessions in a pool.
    pub(crate) async fn in_pool(addresses: Addresses, sessions: usize, pool: &str) -> anyhow::Result<Self> {
        let template =
            v1::CreateSessionRequest { pool: pool.to_owned(), ..v1::CreateSessionRequest::default() };
        Self::with_session_template(addresses, sessions, template).await
    }

    /// Connects and uses existing sessions.
    pub(crate) fn with_existing_sessions(addresses: Addresses, sessions: Sessions) -> anyhow::Result<Self> {
        Ok(Self { sessions, ..Self::connect(addresses)? })
    }

    /// Traces a sample of the runs.
    pub(crate) fn with_stages(self, stages: Option<StageTimings>) -> Self {
        Self { stages, ..self }
    }

    /// Clears the stage timings collected so far.
    pub(crate) fn clear_stages(&self) {
        if let Some(stages) = &self.stages {
            stages.clear();
        }
    }

    fn connect(addresses: Addresses) -> anyhow::Result<Self> {
        let endpoint = addresses.control_planes.first().context("no control plane")?;
        let connect = |_| Ok(Endpoint::from_shared(endpoint.clone())?.tcp_nodelay(true).connect_lazy());
        let channels = (0..CONNECTIONS).map(connect).collect::<anyhow::Result<_>>()?;
        let header =
            |key: &String| format!("Bearer {key}").parse().context("the API key is not a valid header value");
        let authorization = addresses.api_key.as_ref().map(header).transpose()?;
        let sessions = Sessions::Listed(Vec::new());
        Ok(Self { addresses, sessions, stages: None, channels, authorization })
    }

    fn channel(&self, client: usize) -> Channel {
        self.channels[client % self.channels.len()].clone()
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(value) = &self.authorization {
            request.metadata_mut().insert("authorization", value.clone());
        }
        request
    }

    /// Submits a run without waiting and returns its id.
    pub(crate) async fn submit(&self, request: v1::SubmitRunRequest) -> anyhow::Result<String> {
        let answer = RunServiceClient::new(self.channel(0)).submit_run(self.request(request)).await?;
        Ok(answer.into_inner().run.context("no run in the answer")?.id)
    }

    /// All runs of a session.
    pub(crate) async fn runs_of(&self, session: &str) -> anyhow::Result<Vec<v1::Run>> {
        let (mut runs, mut page_token) = (Vec::new(), String::new());
        loop {
            let request =
                v1::ListRunsRequest { session: session.to_owned(), page_token, ..Default::default() };
            let answer =
                RunServiceClient::new(self.channel(0)).list_runs(self.request(request)).await?.into_inner();
            runs.extend(answer.runs);
            page_token = answer.next_page_token;
            if page_token.is_empty() {
                return Ok(runs);
            }
        }
    }

    /// Submits a run and waits for its end.
    pub(super) async fn run(
        &self,
        client: usize,
        request: v1::SubmitRunRequest,
        traced: Option<TraceContext>,
    ) -> anyhow::Result<v1::Run> {
        let wait = Some(RUN_WAIT.try_into()?);
        let mut service =
            RunServiceClient::new(self.channel(client)).max_decoding_message_size(limits::MAX_MESSAGE_BYTES);
        let mut request = self.request(v1::SubmitRunRequest { wait, ..request });
        if let Some(context) = traced {
            request.metadata_mut().insert("traceparent", context.to_string().parse()?);
        }
        let submitted = service.submit_run(request).await?;
        let mut run = submitted.into_inner().run.context("no run in the answer")?;
        while run.finished_at.is_none() {
            let again = v1::WaitRunRequest { run_id: run.id.clone(), max_wait: wait };
            run = service
                .wait_run(self.request(again))
                .await?
                .into_inner()
                .run
                .context("no run in the answer")?;
        }
        Ok(run)
    }

    /// The last cursor of a session.
    pub(super) async fn last_cursor(&self, session: &str) -> anyhow::Result<i64> {
        let request = self.request(v1::GetSessionRequest { session: session.to_owned() });
        let answer = SessionServiceClient::new(self.channel(0)).get_session(request).await?.into_inner();
        Ok(answer.session.context("no session in the answer")?.last_cursor)
    }

    /// Records a finished run.
    pub(crate) fn observe(&self, session: usize, sent: Micros, run: &v1::Run) -> anyhow::Result<ObservedRun> {
        let state = convert::run_state("state", run.state)?;
        let time = |at: &Option<prost_types::Timestamp>| {
            at.as_ref().map_or(0, |at| at.seconds * 1_000_000 + Micros::from(at.nanos) / 1000)
        };
        Ok(ObservedRun {
            session,
            id: run.id.clone(),
            seq: run.seq,
            completed: state == remuda_domain::RunState::Completed,
            sent,
            answered: crate::observed_history::now(),
            started: time(&run.started_at),
            finished: time(&run.finished_at),
        })
    }
}
