//! Client of the Docker engine that reconnects after failures.

use std::{collections::HashMap, future::Future, time::Duration};

use bollard::{
    Docker,
    errors::Error as EngineError,
    models::{ContainerSummary, SystemInfo, Volume},
    query_parameters::{
        ListContainersOptions, ListVolumesOptions, RemoveContainerOptions, RemoveVolumeOptions,
        WaitContainerOptions,
    },
};
use futures::StreamExt as _;
use parking_lot::{Mutex, MutexGuard};
use remuda_domain::error::{Code, Error, Result};
use tokio::time::timeout;

use crate::path::display_safe;

/// Timeout of a request. Starting a container on a busy machine takes seconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a removal that another request started.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(20);

/// The engine's address, and a cached client while it responds.
#[derive(Debug)]
pub(super) struct Engine {
    host: String,
    client: Mutex<Option<Client>>,
}

/// A connected client and the engine's properties.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) docker: Docker,
    /// The engine's own id.
    pub(super) id: String,
    pub(super) version: String,
    pub(super) api_version: String,
    /// In the notation of images: `amd64`.
    pub(super) architecture: String,
}

impl Engine {
    pub(super) fn new(host: String) -> Self {
        Self { host, client: Mutex::new(None) }
    }

    /// Returns a client for the engine's API version. The version is negotiated again after the engine was
    /// unreachable.
    pub(super) async fn client(&self) -> Result<Client> {
        if let Some(client) = self.cached() {
            return Ok(client);
        }
        let client = timeout(CONNECT_TIMEOUT, connect(&self.host))
            .await
            .map_err(|_| self.unreachable().with_source("timeout"))?
            .map_err(|error| self.unreachable().with_source(error))?;
        *self.lock() = Some(client.clone());
        Ok(client)
    }

    /// Sends a request to the engine, with a timeout.
    pub(super) async fn call<T, F>(&self, request: impl FnOnce(Docker) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, EngineError>>,
    {
        let docker = self.client().await?.docker;
        match timeout(REQUEST_TIMEOUT, request(docker)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(EngineError::DockerResponseServerError { status_code, message })) => {
                Err(Failure::Refused { status: status_code, message })
            }
            Ok(Err(error)) => {
                *self.lock() = None;
                Err(Failure::Failed(self.unreachable().with_source(error)))
            }
            Err(_) => {
                *self.lock() = None;
                Err(Failure::Failed(self.unreachable().with_source("timeout")))
            }
        }
    }

    pub(super) async fn info(&self) -> Result<SystemInfo> {
        self.call(|docker| async move { docker.info().await })
            .await
            .map_err(|failure| failure.into_error("report its properties"))
    }

    /// Lists the containers that match the filters, in any state.
    pub(super) async fn containers(&self, filters: &[(&str, String)]) -> Result<Vec<ContainerSummary>> {
        let options =
            ListContainersOptions { all: true, filters: Some(grouped(filters)), ..Default::default() };
        self.call(|docker| async move { docker.list_containers(Some(options)).await })
            .await
            .map_err(|failure| failure.into_error("list containers"))
    }

    pub(super) async fn volumes(&self, filters: &[(&str, String)]) -> Result<Vec<Volume>> {
        let options = ListVolumesOptions { filters: Some(grouped(filters)) };
        let answer = self.call(|docker| async move { docker.list_volumes(Some(options)).await }).await;
        Ok(answer.map_err(|failure| failure.into_error("list volumes"))?.volumes.unwrap_or_default())
    }

    /// Removes a container in any state and returns when it is gone.
    pub(super) async fn remove_container(&self, container: &str) -> Result<()> {
        let options = RemoveContainerOptions { force: true, v: true, link: false };
        let removed =
            self.call(|docker| async move { docker.remove_container(container, Some(options)).await }).await;
        match removed {
            Ok(()) => Ok(()),
            Err(failure) if failure.is_missing() => Ok(()),
            // Its removal is already in progress.
            Err(failure) if failure.is_conflict() => self.await_removal(container).await,
            Err(failure) => Err(failure.into_error("remove a container")),
        }
    }

    async fn await_removal(&self, container: &str) -> Result<()> {
        let options = WaitContainerOptions { condition: "removed".to_owned() };
        let removed = self.call(|docker| async move {
            match docker.wait_container(container, Some(options)).next().await {
                // The container's exit code; only a message says that the removal failed.
                Some(Err(EngineError::DockerContainerWaitError { error, .. })) => Ok(error),
                Some(Ok(_)) | None => Ok(String::new()),
                Some(Err(error)) => Err(error),
            }
        });
        match timeout(REMOVAL_TIMEOUT, removed).await {
            Ok(Ok(message)) if message.is_empty() => Ok(()),
            Ok(Ok(message)) => {
                Err(Failure::Refused { status: 500, message }.into_error("remove a container"))
            }
            Ok(Err(failure)) if failure.is_missing() => Ok(()),
            Ok(Err(failure)) => Err(failure.into_error("remove a container")),
            Err(_) => Err(Error::unavailable("the Docker engine does not finish removing a container")),
        }
    }

    pub(super) async fn remove_volume(&self, volume: &str) -> Result<()> {
        let options = RemoveVolumeOptions { force: true };
        match self.call(|docker| async move { docker.remove_volume(volume, Some(options)).await }).await {
            Ok(()) => Ok(()),
            Err(failure) if failure.is_missing() => Ok(()),
            Err(failure) => Err(failure.into_error("remove a volume")),
        }
    }

    fn cached(&self) -> Option<Client> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Client>> {
        self.client.lock()
    }

    fn unreachable(&self) -> Error {
        Error::unavailable(format!("the Docker engine at {} does not answer", display_safe(&self.host)))
    }
}

async fn connect(host: &str) -> Result<Client, EngineError> {
    let docker = Docker::connect_with_host(host)?.with_timeout(REQUEST_TIMEOUT).negotiate_version().await?;
    let (version, info) = (docker.version().await?, docker.info().await?);
    Ok(Client {
        docker,
        id: info.id.unwrap_or_default(),
        version: version.version.unwrap_or_default(),
        api_version: version.api_version.unwrap_or_default(),
        architecture: version.arch.unwrap_or_default(),
    })
}

fn grouped(filters: &[(&str, String)]) -> HashMap<String, Vec<String>> {
    let mut grouped: HashMap<String, Vec<String>> = HashMap::new();
    for (name, value) in filters {
        grouped.entry((*name).to_owned()).or_default().push(value.clone());
    }
    grouped
}

/// Failure of an engine request.
#[derive(Debug)]
pub(super) enum Failure {
    /// The engine rejected the request.
    Refused { status: u16, message: String },
    /// The engine did not respond.
    Failed(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Failure {
    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }

    fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused { status: 409, .. })
    }

    /// Whether the engine's message contains this text.
    pub(super) fn message_contains(&self, words: &str) -> bool {
        matches!(self, Self::Refused { message, .. } if message.contains(words))
    }

    /// Converts to an error that says what the engine could not do.
    pub(super) fn into_error(self, what: &str) -> Error {
        match self {
            Self::Failed(error) => error,
            Self::Refused { message, .. } => Error::new(
                Code::Unavailable,
                format!("the Docker engine could not {what}: {}", display_safe(message.trim())),
            ),
        }
    }
}
