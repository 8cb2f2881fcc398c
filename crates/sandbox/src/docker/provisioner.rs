//! Creates, starts, lists and removes containers.

use std::path::Path;

use async_trait::async_trait;
use bollard::{
    container::LogOutput,
    models::ContainerSummary,
    query_parameters::{
        AttachContainerOptions, CreateContainerOptions, RenameContainerOptions, StartContainerOptions,
    },
};
use futures::StreamExt as _;
use remuda_domain::{
    SandboxId,
    error::{Code, Error, Result},
    execution::{BackendKind, Holder, WorkspaceAccess},
};
use tokio_util::io::StreamReader;

use super::{
    create::{
        ContainerSettings, SUPERVISOR, WORKSPACE, check_network, create_body, environment, has_network,
    },
    describe,
    engine::{Engine, Failure},
    image, names,
    options::DockerOptions,
    supervisor_volume::SupervisorVolume,
    workspace_owner,
};
use crate::{
    path::display_safe,
    remote::{
        ByteStream, FoundResource, Image, InstancePlan, InstanceSpec, ListFilter, Provisioner,
        RunningInstance, StartError,
    },
    traits::{Feature, SandboxRequest},
};

/// Containers of one engine.
#[derive(Debug)]
pub struct DockerProvisioner {
    engine: Engine,
    volume: SupervisorVolume,
    settings: ContainerSettings,
}

impl DockerProvisioner {
    pub(super) fn new(options: &DockerOptions) -> Self {
        Self {
            engine: Engine::new(options.host.clone()),
            volume: SupervisorVolume::default(),
            settings: ContainerSettings { user: options.user, runtime: options.runtime.clone() },
        }
    }

    async fn check_network_exists(&self, network: &str) -> Result<()> {
        let found =
            self.engine.call(|docker| async move { docker.inspect_network(network, None).await }).await;
        match found {
            Ok(_) => Ok(()),
            Err(failure) if failure.is_missing() => Err(no_network(network)),
            Err(failure) => Err(failure.into_error("inspect the network")),
        }
    }

    /// Attaches to a container that does not run yet, so that no output is missed, and so that the container
    /// ends if this process dies.
    async fn attach(&self, container: &str) -> Result<ByteStream> {
        let options =
            AttachContainerOptions { stream: true, stdin: true, stdout: true, ..Default::default() };
        let attached = self
            .engine
            .call(|docker| async move { docker.attach_container(container, Some(options)).await })
            .await
            .map_err(|failure| failure.into_error("attach to a container"))?;
        let stdout = attached.output.filter_map(|chunk| async {
            match chunk {
                Ok(LogOutput::StdOut { message }) => Some(Ok(message)),
                // Not written by the supervisor.
                Ok(_) => None,
                Err(error) => Some(Err(std::io::Error::other(error))),
            }
        });
        Ok(ByteStream::buffered(StreamReader::new(Box::pin(stdout)), attached.input))
    }

    /// Maps the engine's rejection to an error for the caller.
    fn creation_error(&self, failure: Failure, plan: &InstancePlan) -> Error {
        if failure.message_contains("network") && failure.message_contains("not found") {
            return no_network(&plan.spec.network);
        }
        if failure.message_contains("unknown runtime")
            || failure.message_contains("unknown or invalid runtime")
        {
            let runtime = self.settings.runtime.as_deref().unwrap_or_default();
            return Error::new(
                Code::NotConfigured,
                format!("the engine has no runtime {}", display_safe(runtime)),
            );
        }
        if failure.message_contains("bind source path does not exist") {
            let advice = "it must run on this machine to mount workspaces; elsewhere they can be copied";
            return Error::unavailable(format!("the Docker engine does not see the workspace: {advice}"));
        }
        failure.into_error("start a container")
    }
}

#[async_trait]
impl Provisioner for DockerProvisioner {
    fn kind(&self) -> BackendKind {
        BackendKind::Docker
    }

    fn noun(&self) -> &'static str {
        "container"
    }

    fn spec(&self, request: &SandboxRequest) -> Result<InstanceSpec> {
        let policy = &request.policy;
        check_network(&policy.network)?;
        let image = policy.image.clone();
        Ok(InstanceSpec {
            image: image
                .ok_or_else(|| Error::invalid("image", "expected an image for the docker backend"))?,
            network: policy.network.clone(),
            limits: policy.limits,
            mount: match policy.workspace {
                WorkspaceAccess::Mount => Some(request.workspace_root.clone()),
                WorkspaceAccess::Copy => None,
            },
        })
    }

    async fn image(&self, spec: &InstanceSpec) -> Result<Image> {
        image::find(&self.engine, &spec.image).await
    }

    async fn check(&self, spec: &InstanceSpec) -> Result<()> {
        self.image(spec).await?;
        if has_network(spec) {
            self.check_network_exists(&spec.network).await?;
        }
        Ok(())
    }

    async fn prepare_workspace(&self, directory: &Path) -> Result<()> {
        workspace_owner::change(directory, self.settings.user).await
    }

    async fn create(&self, plan: &InstancePlan) -> Result<String> {
        self.volume.ensure(&self.engine, &plan.creator, &plan.image).await?;
        let body = create_body(plan, &self.settings);
        let name = names::name(plan.sandbox, plan.holder.as_ref());
        let options = CreateContainerOptions { name: Some(name), platform: String::new() };
        let created = self
            .engine
            .call(|docker| async move { docker.create_container(Some(options), body).await })
            .await;
        created.map(|created| created.id).map_err(|failure| self.creation_error(failure, plan))
    }

    async fn start(&self, handle: &str, plan: &InstancePlan) -> Result<RunningInstance, StartError> {
        let stream = self.attach(handle).await?;
        let started = self
            .engine
            .call(|docker| async move { docker.start_container(handle, None::<StartContainerOptions>).await })
            .await;
        if let Err(failure) = started {
            let lost = failure.message_contains(SUPERVISOR) && failure.message_contains("no such file");
            let error = self.creation_error(failure, plan);
            if !lost {
                return Err(error.into());
            }
            // The volume was removed, for example by `docker volume prune`.
            self.volume.forget();
            let error = Error::internal("the supervisor program is missing in its volume").with_source(error);
            return Err(StartError::Retry(error));
        }
        Ok(RunningInstance {
            stream,
            supervisor: SUPERVISOR.to_owned(),
            workspace: WORKSPACE.to_owned(),
            env: environment(&plan.image),
        })
    }

    async fn remove(&self, handle: &str) -> Result<()> {
        self.engine.remove_container(handle).await
    }

    async fn list(&self, filter: &ListFilter<'_>) -> Result<Vec<FoundResource>> {
        let mut filters = label_filters(filter);
        // The name of an assigned spare contains its session; its labels do not.
        filters.extend(filter.session.map(|session| ("name", session.to_string())));
        let found = self.engine.containers(&filters).await?;
        Ok(found.into_iter().filter_map(found_container).collect())
    }

    async fn assign(&self, handle: &str, sandbox: SandboxId, holder: &Holder) -> Result<()> {
        let options = RenameContainerOptions { name: names::name(sandbox, Some(holder)) };
        let renamed =
            self.engine.call(|docker| async move { docker.rename_container(handle, options).await }).await;
        renamed.map_err(|failure| failure.into_error("rename a container"))
    }

    async fn pause(&self, handle: &str) -> Result<()> {
        let paused = self.engine.call(|docker| async move { docker.pause_container(handle).await }).await;
        paused.map_err(|failure| failure.into_error("pause a container"))
    }

    async fn unpause(&self, handle: &str) -> Result<()> {
        let unpaused = self.engine.call(|docker| async move { docker.unpause_container(handle).await }).await;
        unpaused.map_err(|failure| failure.into_error("unpause a container"))
    }

    async fn list_shared(&self, filter: &ListFilter<'_>) -> Result<Vec<FoundResource>> {
        let found = self.engine.volumes(&label_filters(filter)).await?;
        let read = found.into_iter().map(|volume| FoundResource {
            handle: volume.name,
            labels: volume.labels,
            assigned: None,
        });
        Ok(read.collect())
    }

    async fn remove_shared(&self, handle: &str) -> Result<()> {
        self.engine.remove_volume(handle).await
    }

    async fn close(&self) -> Result<()> {
        self.volume.remove(&self.engine).await
    }

    async fn engine_id(&self) -> Result<String> {
        Ok(self.engine.client().await?.id)
    }

    async fn describe(&self) -> Vec<Feature> {
        let known = async { Ok((self.engine.client().await?, self.engine.info().await?)) };
        match known.await {
            Ok((client, info)) => describe::features(&client, &info, &self.settings),
            Err(error) => describe::no_engine(Error::chain(&error)),
        }
    }
}

fn label_filters(filter: &ListFilter<'_>) -> Vec<(&'static str, String)> {
    filter.labels().into_iter().map(|(name, value)| ("label", format!("{name}={value}"))).collect()
}

fn found_container(found: ContainerSummary) -> Option<FoundResource> {
    let names = found.names.unwrap_or_default();
    Some(FoundResource {
        handle: found.id?,
        labels: found.labels.unwrap_or_default(),
        assigned: names.iter().find_map(|name| names::holder(name)),
    })
}

fn no_network(network: &str) -> Error {
    let message = format!("the engine has no network {}", display_safe(network));
    Error::new(Code::NotConfigured, message).at("network")
}
