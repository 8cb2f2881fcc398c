//! The engine: found again whenever it is back.

use std::{collections::HashMap, future::Future, sync::Mutex, time::Duration};

use bollard::{
    Docker,
    errors::Error as EngineError,
    models::{ContainerSummary, SystemInfo, Volume},
    query_parameters::{
        ListContainersOptions, ListVolumesOptions, RemoveContainerOptions, RemoveVolumeOptions,
    },
};
use remuda_domain::error::{Code, Error, Result};
use tokio::time::timeout;

use crate::path::shown;

/// Longer than any request should take. A start on a busy machine takes seconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a container that is being removed by someone else is looked at again.
const GONE_CHECK: Duration = Duration::from_millis(50);
const GONE_TIMEOUT: Duration = Duration::from_secs(20);

/// An address, and a client for it while somebody answers there.
#[derive(Debug)]
pub(super) struct Engine {
    host: String,
    client: Mutex<Option<Client>>,
}

/// What is known of an engine that answers.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) docker: Docker,
    /// Which engine it is, as it says itself.
    pub(super) id: String,
    pub(super) version: String,
    pub(super) api_version: String,
    /// As images name it: `amd64`.
    pub(super) architecture: String,
}

impl Engine {
    pub(super) fn new(host: String) -> Self {
        Self { host, client: Mutex::new(None) }
    }

    /// A client that speaks the engine's version. The version is asked for again after the engine was away.
    pub(super) async fn client(&self) -> Result<Client> {
        if let Some(client) = self.remembered() {
            return Ok(client);
        }
        let client = timeout(CONNECT_TIMEOUT, connect(&self.host))
            .await
            .map_err(|_| self.silent().with_source("no answer in time"))?
            .map_err(|error| self.silent().with_source(error))?;
        *self.lock() = Some(client.clone());
        Ok(client)
    }

    /// Asks the engine for something, within bounds.
    pub(super) async fn ask<T, F>(&self, request: impl FnOnce(Docker) -> F) -> Result<T, Failure>
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
                Err(Failure::Failed(self.silent().with_source(error)))
            }
            Err(_) => {
                *self.lock() = None;
                Err(Failure::Failed(self.silent().with_source("no answer in time")))
            }
        }
    }

    pub(super) async fn info(&self) -> Result<SystemInfo> {
        self.ask(|docker| async move { docker.info().await })
            .await
            .map_err(|failure| failure.to("say what it is"))
    }

    /// All containers with that label, in whatever state.
    pub(super) async fn containers(&self, filters: &[(&str, String)]) -> Result<Vec<ContainerSummary>> {
        let options =
            ListContainersOptions { all: true, filters: Some(grouped(filters)), ..Default::default() };
        self.ask(|docker| async move { docker.list_containers(Some(options)).await })
            .await
            .map_err(|failure| failure.to("list containers"))
    }

    pub(super) async fn volumes(&self, filters: &[(&str, String)]) -> Result<Vec<Volume>> {
        let options = ListVolumesOptions { filters: Some(grouped(filters)) };
        let answer = self.ask(|docker| async move { docker.list_volumes(Some(options)).await }).await;
        Ok(answer.map_err(|failure| failure.to("list volumes"))?.volumes.unwrap_or_default())
    }

    /// Removes a container, whatever it does, and returns when it is gone.
    pub(super) async fn remove_container(&self, container: &str) -> Result<()> {
        let options = RemoveContainerOptions { force: true, v: true, link: false };
        let removed =
            self.ask(|docker| async move { docker.remove_container(container, Some(options)).await }).await;
        match removed {
            Ok(()) => Ok(()),
            Err(failure) if failure.is_missing() => Ok(()),
            // It removes itself at this moment.
            Err(failure) if failure.is_conflict() => self.await_removal(container).await,
            Err(failure) => Err(failure.to("remove a container")),
        }
    }

    async fn await_removal(&self, container: &str) -> Result<()> {
        let gone = async {
            loop {
                match self.ask(|docker| async move { docker.inspect_container(container, None).await }).await
                {
                    Ok(_) => tokio::time::sleep(GONE_CHECK).await,
                    Err(failure) if failure.is_missing() => return Ok(()),
                    Err(failure) => return Err(failure.to("remove a container")),
                }
            }
        };
        timeout(GONE_TIMEOUT, gone).await.unwrap_or_else(|_| {
            Err(Error::unavailable("the Docker engine does not finish removing a container"))
        })
    }

    pub(super) async fn remove_volume(&self, volume: &str) -> Result<()> {
        let options = RemoveVolumeOptions { force: true };
        match self.ask(|docker| async move { docker.remove_volume(volume, Some(options)).await }).await {
            Ok(()) => Ok(()),
            Err(failure) if failure.is_missing() => Ok(()),
            Err(failure) => Err(failure.to("remove a volume")),
        }
    }

    fn remembered(&self) -> Option<Client> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Client>> {
        self.client.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn silent(&self) -> Error {
        Error::unavailable(format!("the Docker engine at {} does not answer", shown(&self.host)))
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

/// Why a request came to nothing.
#[derive(Debug)]
pub(super) enum Failure {
    /// The engine's own words.
    Refused { status: u16, message: String },
    /// It did not answer.
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

    /// Whether the engine said this.
    pub(super) fn says(&self, words: &str) -> bool {
        matches!(self, Self::Refused { message, .. } if message.contains(words))
    }

    /// The error for someone who wanted the engine to do `what`.
    pub(super) fn to(self, what: &str) -> Error {
        match self {
            Self::Failed(error) => error,
            Self::Refused { message, .. } => Error::new(
                Code::Unavailable,
                format!("the Docker engine could not {what}: {}", shown(message.trim())),
            ),
        }
    }
}
