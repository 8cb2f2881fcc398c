//! Servers, connections to them, and sessions on them.

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

use super::{RunFact, Sessions, Stages};
use crate::{history::Micros, workload::Addresses};

/// Connections that clients share: one HTTP/2 connection carries many calls, but not all of them.
const CONNECTIONS: usize = 8;
/// Sessions that are made at once.
const CALLS_AT_ONCE: usize = 64;
/// How long a client waits for its run. One that takes longer is asked for again.
const WAIT: Duration = Duration::from_secs(60);

/// Where load is put on.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) addresses: Addresses,
    pub(crate) sessions: Sessions,
    /// Who is told where the time of some runs goes.
    pub(super) stages: Option<Stages>,
    channels: Vec<Channel>,
    authorization: Option<MetadataValue<Ascii>>,
}

impl Site {
    /// Connects, and makes so many sessions.
    pub(crate) async fn new(addresses: Addresses, sessions: usize) -> anyhow::Result<Self> {
        Self::prepared(addresses, sessions, v1::CreateSessionRequest::default()).await
    }

    /// The same with sessions that are made as asked for.
    pub(crate) async fn prepared(
        addresses: Addresses,
        sessions: usize,
        like: v1::CreateSessionRequest,
    ) -> anyhow::Result<Self> {
        let mut site = Self::connect(addresses)?;
        let created = stream::iter(0..sessions).map(|number| {
            let (mut service, request) =
                (SessionServiceClient::new(site.channel(number)), site.request(like.clone()));
            async move {
                let answer = service.create_session(request).await?.into_inner();
                anyhow::Ok(Arc::from(answer.session.context("no session in the answer")?.id))
            }
        });
        site.sessions = Sessions::Made(created.buffered(CALLS_AT_ONCE).try_collect().await?);
        Ok(site)
    }

    /// The same with sessions of another pool.
    pub(crate) async fn in_pool(addresses: Addresses, sessions: usize, pool: &str) -> anyhow::Result<Self> {
        let like = v1::CreateSessionRequest { pool: pool.to_owned(), ..v1::CreateSessionRequest::default() };
        Self::prepared(addresses, sessions, like).await
    }

    /// The same with sessions that are there already.
    pub(crate) fn existing(addresses: Addresses, sessions: Sessions) -> anyhow::Result<Self> {
        Ok(Self { sessions, ..Self::connect(addresses)? })
    }

    /// Some of its runs tell where their time goes.
    pub(crate) fn staged(self, stages: Option<Stages>) -> Self {
        Self { stages, ..self }
    }

    /// From here on, stages are those of what follows.
    pub(crate) fn forget_stages(&self) {
        if let Some(stages) = &self.stages {
            stages.forget();
        }
    }

    fn connect(addresses: Addresses) -> anyhow::Result<Self> {
        let endpoint = addresses.control_planes.first().context("there is no control plane")?;
        let connect = |_| Ok(Endpoint::from_shared(endpoint.clone())?.tcp_nodelay(true).connect_lazy());
        let channels = (0..CONNECTIONS).map(connect).collect::<anyhow::Result<_>>()?;
        let header = |key: &String| format!("Bearer {key}").parse().context("the API key is no header");
        let authorization = addresses.api_key.as_ref().map(header).transpose()?;
        let sessions = Sessions::Made(Vec::new());
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

    /// Submits a run and waits for nothing. Returns its id.
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
        let wait = Some(WAIT.try_into()?);
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

    /// Where the stream of a session ends.
    pub(super) async fn last_cursor(&self, session: &str) -> anyhow::Result<i64> {
        let request = self.request(v1::GetSessionRequest { session: session.to_owned() });
        let answer = SessionServiceClient::new(self.channel(0)).get_session(request).await?.into_inner();
        Ok(answer.session.context("no session in the answer")?.last_cursor)
    }

    /// What is kept of a finished run.
    pub(crate) fn fact(&self, session: usize, sent: Micros, run: &v1::Run) -> anyhow::Result<RunFact> {
        let state = convert::run_state("state", run.state)?;
        let time = |at: &Option<prost_types::Timestamp>| {
            at.as_ref().map_or(0, |at| at.seconds * 1_000_000 + Micros::from(at.nanos) / 1000)
        };
        Ok(RunFact {
            session,
            id: run.id.clone(),
            seq: run.seq,
            completed: state == remuda_domain::RunState::Completed,
            sent,
            answered: crate::history::now(),
            started: time(&run.started_at),
            finished: time(&run.finished_at),
        })
    }
}
