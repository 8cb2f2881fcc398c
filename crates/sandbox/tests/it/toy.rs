//! A backend without isolation, to prove that a backend is only a [`Provisioner`]: an instance is the real supervisor
//! as a child process of this one, in a temporary directory.
//!
//! It passes the whole conformance suite. The tests of `docker/` about privileges, images and the engine do not
//! apply: its commands are processes of this user on this machine. What the Docker backend inherits from
//! `remote` (spares, copies, limits, takeover) is tested here as well, without an engine.

use std::{
    collections::HashMap,
    path::Path,
    process::Stdio,
    sync::{Arc, LazyLock, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use remuda_domain::{
    Code, Error, Result, SandboxId, WorkerId,
    execution::{BackendKind, ExecutionPolicy, Holder, NO_NETWORK, ResourceLimits, WorkspaceAccess},
};
use remuda_sandbox::{
    Backend, Command, EngineResourceKind, Feature, NoOutput, Sandbox, SandboxRequest,
    remote::{
        ByteStream, FoundResource, Image, InstancePlan, InstanceSpec, ListFilter, Provisioner, RemoteBackend,
        RemoteOptions, RunningInstance, StartError, WarmTarget,
    },
    supervisor_binary,
};
use tempfile::TempDir;
use tokio::{
    process::{Child, Command as Process},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::fixture::{self, LONG, SandboxFixture, code, wait_for};

/// Instances by handle. Clones share them, like clients of one engine.
#[derive(Clone, Debug, Default)]
struct ToyProvisioner(Arc<Mutex<HashMap<String, ToyInstance>>>);

#[derive(Debug)]
struct ToyInstance {
    labels: HashMap<String, String>,
    assigned: Option<Holder>,
    /// Holds the copy of the workspace.
    directory: TempDir,
    child: Option<Child>,
}

/// The supervisor program as a file: commands have no access to the descriptors of this process.
fn supervisor() -> &'static str {
    static COPY: LazyLock<String> = LazyLock::new(|| {
        let path = format!("{}/toy-supervisor", env!("CARGO_TARGET_TMPDIR"));
        let process = std::process::id();
        let program = supervisor_binary::path().unwrap();
        let program = program.to_str().unwrap().replace("self", &process.to_string());
        // Not copied by this process: a child of another test could inherit the file while it is open for writing.
        let script = format!(
            "cp {program} {path}.{process} && chmod 755 {path}.{process} && mv {path}.{process} {path}"
        );
        assert!(std::process::Command::new("sh").args(["-c", &script]).status().unwrap().success());
        path
    });
    &COPY
}

#[async_trait]
impl Provisioner for ToyProvisioner {
    fn kind(&self) -> BackendKind {
        BackendKind::Local
    }

    fn noun(&self) -> &'static str {
        "toy"
    }

    fn spec(&self, request: &SandboxRequest) -> Result<InstanceSpec> {
        let policy = &request.policy;
        Ok(InstanceSpec {
            image: String::new(),
            network: policy.network.clone(),
            limits: policy.limits,
            mount: match policy.workspace {
                WorkspaceAccess::Mount => Some(request.workspace_root.clone()),
                WorkspaceAccess::Copy => None,
            },
        })
    }

    async fn image(&self, _spec: &InstanceSpec) -> Result<Image> {
        Ok(Image::default())
    }

    async fn create(&self, plan: &InstancePlan) -> Result<String> {
        let handle = plan.sandbox.to_string();
        let directory = TempDir::new().unwrap();
        std::fs::create_dir(directory.path().join("workspace")).unwrap();
        let instance = ToyInstance { labels: plan.labels(), assigned: None, directory, child: None };
        self.0.lock().unwrap().insert(handle.clone(), instance);
        Ok(handle)
    }

    async fn start(&self, handle: &str, plan: &InstancePlan) -> Result<RunningInstance, StartError> {
        let mut child = Process::new(supervisor())
            .arg("init")
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| Error::unavailable("cannot start a toy").with_source(error))?;
        let stream = ByteStream::new(child.stdout.take().unwrap(), child.stdin.take().unwrap());
        let mut instances = self.0.lock().unwrap();
        let instance = instances.get_mut(handle).unwrap();
        instance.child = Some(child);
        let copy = instance.directory.path().join("workspace");
        let workspace = plan.spec.mount.as_ref().unwrap_or(&copy).canonicalize().unwrap();
        let env = [("PATH", "/usr/bin:/bin"), ("HOME", "/tmp"), ("LANG", "C.UTF-8")];
        Ok(RunningInstance {
            stream,
            supervisor: supervisor().to_owned(),
            workspace: workspace.to_str().unwrap().to_owned(),
            env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
        })
    }

    async fn remove(&self, handle: &str) -> Result<()> {
        let removed = self.0.lock().unwrap().remove(handle);
        if let Some(mut child) = removed.and_then(|instance| instance.child) {
            child.kill().await.unwrap();
        }
        Ok(())
    }

    async fn list(&self, filter: &ListFilter<'_>) -> Result<Vec<FoundResource>> {
        let instances = self.0.lock().unwrap();
        let matches = |instance: &ToyInstance| {
            filter
                .labels()
                .iter()
                .all(|(name, value)| instance.labels.get(*name).is_some_and(|it| it == value))
        };
        let found = instances.iter().filter(|(_, instance)| matches(instance));
        let found = found.map(|(handle, instance)| FoundResource {
            handle: handle.clone(),
            labels: instance.labels.clone(),
            assigned: instance.assigned,
        });
        Ok(found.collect())
    }

    async fn assign(&self, handle: &str, _sandbox: SandboxId, holder: &Holder) -> Result<()> {
        self.0.lock().unwrap().get_mut(handle).unwrap().assigned = Some(*holder);
        Ok(())
    }

    async fn describe(&self) -> Vec<Feature> {
        Vec::new()
    }
}

type ToyBackend = RemoteBackend<ToyProvisioner>;

fn options(installation: &str) -> RemoteOptions {
    RemoteOptions::new(installation, WorkerId::new())
}

async fn fixture() -> SandboxFixture {
    let backend = ToyBackend::over(ToyProvisioner::default(), options("here"));
    // The backend lives as long as its sandbox.
    SandboxFixture::new(&backend).await.with_dependencies(backend)
}

crate::backend_suite!(crate::toy::fixture);

fn request(root: &Path, workspace: WorkspaceAccess) -> SandboxRequest {
    let policy = ExecutionPolicy { workspace, ..ExecutionPolicy::default() };
    let mut request = fixture::request(root.join("workspace"), policy);
    request.epoch = 1;
    request
}

/// A backend that is maintained until the test ends.
struct Maintained {
    backend: ToyBackend,
    toys: ToyProvisioner,
    stop: CancellationToken,
    maintain: JoinSet<()>,
}

impl Maintained {
    fn start(adjust: impl FnOnce(&mut RemoteOptions)) -> Self {
        let (toys, stop) = (ToyProvisioner::default(), CancellationToken::new());
        let mut options = options("here");
        adjust(&mut options);
        let backend = ToyBackend::over(toys.clone(), options);
        let (keeper, until) = (backend.clone(), stop.clone());
        let mut maintain = JoinSet::new();
        maintain.spawn(async move { keeper.maintain(until).await });
        Self { backend, toys, stop, maintain }
    }

    fn count(&self) -> usize {
        self.toys.0.lock().unwrap().len()
    }

    async fn close(mut self) {
        self.stop.cancel();
        self.maintain.join_next().await.unwrap().unwrap();
        assert_eq!(self.toys.0.lock().unwrap().len(), 0);
    }
}

async fn shell(sandbox: &dyn Sandbox, script: &str) -> Result<String> {
    let command = Command::shell(script, LONG);
    Ok(sandbox.exec(command, &NoOutput, &CancellationToken::new()).await?.stdout.text)
}

#[tokio::test]
async fn copied_workspace_is_synchronized_on_a_spare() {
    let spare = WarmTarget {
        image: String::new(),
        count: 2,
        network: NO_NETWORK.to_owned(),
        limits: ResourceLimits::default(),
    };
    let toy = Maintained::start(|options| options.warm = vec![spare]);
    // The first is ready when the second is created.
    wait_for(|| toy.count() == 2).await;
    let found = toy.backend.list().await.unwrap();
    let expected = (None, true, EngineResourceKind::Container);
    assert!(found.iter().all(|spare| (spare.holder, spare.ours, spare.kind) == expected), "{found:?}");

    let directory = tempfile::tempdir().unwrap();
    let request = request(directory.path(), WorkspaceAccess::Copy);
    std::fs::create_dir(&request.workspace_root).unwrap();
    std::fs::write(request.workspace_root.join("given"), "from the host").unwrap();
    let sandbox = toy.backend.acquire(&request).await.unwrap();
    let taken = sandbox.execution_site().unwrap().sandbox;
    assert!(found.iter().any(|spare| spare.sandbox == taken));
    assert_eq!(shell(&*sandbox, "cat given; echo -n made > new; rm given").await.unwrap(), "from the host");
    assert_eq!(std::fs::read_to_string(request.workspace_root.join("new")).unwrap(), "made");
    assert!(!request.workspace_root.join("given").try_exists().unwrap());
    // The spare now has a holder, also for other workers; another spare follows.
    wait_for(|| toy.toys.0.lock().unwrap().values().any(|instance| instance.assigned.is_some())).await;
    wait_for(|| toy.count() == 3).await;
    drop(sandbox);
    toy.close().await;
}

#[tokio::test]
async fn limit_evicts_idle_instances_and_idle_ones_are_removed() {
    let toy = Maintained::start(|options| {
        options.max_instances = 1;
        options.remove_after = Duration::from_secs(2);
    });
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (
        request(directory.path(), WorkspaceAccess::Mount),
        request(directory.path(), WorkspaceAccess::Mount),
    );
    let sandbox = toy.backend.acquire(&first).await.unwrap();
    let error = toy.backend.acquire(&second).await.unwrap_err();
    assert_eq!(error.code(), Code::Overloaded);
    assert_eq!(error.message(), "all 1 toys of this worker are in use");
    drop(sandbox);
    drop(toy.backend.acquire(&second).await.unwrap());
    assert_eq!(toy.count(), 1);
    wait_for(|| toy.count() == 0).await;
    toy.close().await;
}

#[tokio::test]
async fn newer_owner_removes_the_instance_of_the_older() {
    let toy = Maintained::start(|_| {});
    let other = ToyBackend::over(toy.toys.clone(), options("here"));
    let foreign = ToyBackend::over(toy.toys.clone(), options("elsewhere"));
    let directory = tempfile::tempdir().unwrap();
    let older = request(directory.path(), WorkspaceAccess::Mount);
    let mut newer = older.clone();
    newer.epoch = 2;
    let lost = toy.backend.acquire(&older).await.unwrap();
    let taken = other.acquire(&newer).await.unwrap();
    assert_eq!(code(shell(&*lost, "true").await), Code::Unavailable);
    assert_eq!(shell(&*taken, "echo well").await.unwrap(), "well\n");
    assert_eq!(code(toy.backend.acquire(&older).await), Code::OwnershipLost);
    let found = toy.backend.list().await.unwrap();
    assert_eq!(found.iter().map(|found| found.ours).collect::<Vec<_>>(), [false]);
    assert_eq!(foreign.list().await.unwrap(), vec![]);
    toy.backend.remove(&found[0]).await.unwrap();
    assert_eq!(code(shell(&*taken, "true").await), Code::Unavailable);
    drop((lost, taken));
    toy.close().await;
}

#[tokio::test]
async fn expired_watchdog_ends_the_instance() {
    let toy = Maintained::start(|_| {});
    let directory = tempfile::tempdir().unwrap();
    let sandbox = toy.backend.acquire(&request(directory.path(), WorkspaceAccess::Mount)).await.unwrap();
    toy.backend.feed_watchdog(Duration::from_millis(300));
    let error = shell(&*sandbox, "sleep 1000").await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Unavailable, "the sandbox is gone: its toy ended"));
    drop(sandbox);
    wait_for(|| toy.count() == 0).await;
    toy.close().await;
}
