//! What a container may do: decided here and nowhere else.

use std::{collections::HashMap, path::PathBuf};

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountBindOptions, MountBindOptionsPropagationEnum, MountType, MountVolumeOptions, ResourcesUlimits,
    RestartPolicy, RestartPolicyNameEnum,
};
use remuda_domain::{
    SandboxId,
    error::{Error, Result},
    execution::{Holder, NO_NETWORK, ResourceLimits},
};

use super::{
    image::Image,
    labels::{self, Maker},
};

/// Where the workspace is, as commands see it.
pub(super) const WORKSPACE: &str = "/workspace";
/// Where our own program is.
pub(super) const SUPERVISOR_DIRECTORY: &str = "/.remuda";
pub(super) const SUPERVISOR: &str = "/.remuda/remuda-supervisor";
/// Where commands may put what they do not want to keep.
pub(super) const SCRATCH: &str = "/tmp";

const RUN_BYTES: u64 = 16 << 20;
const SHM_BYTES: i64 = 64 << 20;
/// Processes and threads of our own program, beside those of commands.
const OWN_PROCESSES: u64 = 160;
/// What our own program needs, if commands may open fewer files.
const OWN_OPEN_FILES: u64 = 1024;
/// Commands go first when the machine runs out of memory.
const OOM_SCORE_ADJ: i64 = 500;

/// Who the processes of a container are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerUser {
    pub uid: u32,
    pub gid: u32,
}

impl ContainerUser {
    /// Nobody in particular.
    pub const NOBODY: Self = Self { uid: 65534, gid: 65534 };
}

/// What makes one container differ from another: a container serves only requests of its own shape.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shape {
    pub(super) image: String,
    pub(super) network: String,
    pub(super) limits: ResourceLimits,
    /// The directory that is mounted as workspace. Without one the container has a directory of its own.
    pub(super) mount: Option<PathBuf>,
}

/// A container to be made.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) sandbox: SandboxId,
    pub(super) maker: Maker,
    pub(super) holder: Option<Holder>,
    pub(super) image: Image,
    pub(super) shape: Shape,
    pub(super) user: ContainerUser,
    pub(super) runtime: Option<String>,
    /// The volume with our own program.
    pub(super) volume: String,
}

/// Refuses names of networks that are not networks at all.
pub(super) fn check_network(network: &str) -> Result<()> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let starts_well = network.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if network == "host" || network.len() > 128 || !starts_well || !network.bytes().all(plain) {
        return Err(Error::invalid("network", "expected none or the name of a network, and not the host's"));
    }
    Ok(())
}

/// The whole request. Nothing in it is a tenant's to choose but through its policy.
pub(super) fn create_body(plan: &Plan) -> ContainerCreateBody {
    let Plan { sandbox, maker, holder, image, shape, user, runtime, volume } = plan;
    let mut labels = maker.labels(*sandbox, holder.as_ref());
    labels.insert(labels::IMAGE.to_owned(), image.name.clone());
    labels.insert(labels::DIGEST.to_owned(), image.digest.clone());
    ContainerCreateBody {
        image: Some(image.id.clone()),
        entrypoint: Some(vec![SUPERVISOR.to_owned(), "init".to_owned()]),
        cmd: Some(Vec::new()),
        user: Some(format!("{}:{}", user.uid, user.gid)),
        working_dir: Some(WORKSPACE.to_owned()),
        env: Some(environment(image).into_iter().map(|(name, value)| format!("{name}={value}")).collect()),
        labels: Some(labels),
        open_stdin: Some(true),
        // The end of our connection is the end of its input, and that is its end.
        stdin_once: Some(true),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(false),
        tty: Some(false),
        // An image's own would run commands in there.
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".to_owned()]), ..Default::default() }),
        host_config: Some(host_config(shape, *user, runtime.clone(), volume)),
        ..Default::default()
    }
}

fn host_config(shape: &Shape, user: ContainerUser, runtime: Option<String>, volume: &str) -> HostConfig {
    let limits = &shape.limits;
    let memory = limits.memory_bytes.map(signed);
    HostConfig {
        cap_drop: Some(vec!["ALL".to_owned()]),
        // Nothing about seccomp and AppArmor: the engine's own profiles apply.
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        privileged: Some(false),
        readonly_rootfs: Some(true),
        tmpfs: Some(tmpfs(shape, user)),
        mounts: Some(mounts(shape, volume)),
        network_mode: Some(shape.network.clone()),
        ipc_mode: Some("private".to_owned()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        memory,
        // The same, so that there is no swap beyond it.
        memory_swap: memory,
        nano_cpus: limits.cpus.map(nano_cpus),
        pids_limit: limits.processes.map(|processes| signed(processes.saturating_add(OWN_PROCESSES))),
        ulimits: Some(ulimits(limits)),
        shm_size: Some(SHM_BYTES),
        oom_score_adj: Some(OOM_SCORE_ADJ),
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        auto_remove: Some(true),
        init: Some(false),
        runtime,
        ..Default::default()
    }
}

/// What every command finds in its environment.
pub(super) fn environment(image: &Image) -> Vec<(String, String)> {
    [("PATH", image.path.as_str()), ("HOME", SCRATCH), ("LANG", "C.UTF-8")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
}

fn tmpfs(shape: &Shape, user: ContainerUser) -> HashMap<String, String> {
    let scratch = shape.limits.scratch_bytes;
    let ContainerUser { uid, gid } = user;
    // Builds execute what they have just made, so there is no noexec.
    let mut tmpfs = HashMap::from([
        (SCRATCH.to_owned(), format!("rw,exec,nosuid,nodev,size={scratch},mode=1777")),
        ("/run".to_owned(), format!("rw,noexec,nosuid,nodev,size={RUN_BYTES},mode=0755,uid={uid},gid={gid}")),
    ]);
    if shape.mount.is_none() {
        let options = format!("rw,exec,nosuid,nodev,size={scratch},mode=0755,uid={uid},gid={gid}");
        tmpfs.insert(WORKSPACE.to_owned(), options);
    }
    tmpfs
}

/// As objects, not as `source:target:options`: a path may have a colon, and a missing directory is not made by root.
fn mounts(shape: &Shape, volume: &str) -> Vec<Mount> {
    let mut mounts = vec![supervisor_mount(volume, true)];
    if let Some(workspace) = &shape.mount {
        mounts.push(Mount {
            typ: Some(MountType::BIND),
            source: Some(workspace.to_string_lossy().into_owned()),
            target: Some(WORKSPACE.to_owned()),
            read_only: Some(false),
            bind_options: Some(MountBindOptions {
                propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
                ..Default::default()
            }),
            ..Default::default()
        });
    }
    mounts
}

pub(super) fn supervisor_mount(volume: &str, read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::VOLUME),
        source: Some(volume.to_owned()),
        target: Some(SUPERVISOR_DIRECTORY.to_owned()),
        read_only: Some(read_only),
        volume_options: Some(MountVolumeOptions { no_copy: Some(true), ..Default::default() }),
        ..Default::default()
    }
}

fn ulimits(limits: &ResourceLimits) -> Vec<ResourcesUlimits> {
    let ulimit = |name: &str, value: u64| ResourcesUlimits {
        name: Some(name.to_owned()),
        soft: Some(signed(value)),
        hard: Some(signed(value)),
    };
    let mut ulimits = vec![ulimit("core", 0)];
    // Commands get exactly their number from the supervisor.
    ulimits.extend(limits.open_files.map(|files| ulimit("nofile", files.max(OWN_OPEN_FILES))));
    ulimits.extend(limits.file_bytes.map(|bytes| ulimit("fsize", bytes)));
    ulimits
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "limits of CPUs are small positive numbers; a cast saturates"
)]
fn nano_cpus(cpus: f64) -> i64 {
    (cpus * 1e9) as i64
}

/// Whether the network is one at all.
pub(super) fn has_network(shape: &Shape) -> bool {
    shape.network != NO_NETWORK
}

#[cfg(test)]
#[path = "create_tests.rs"]
mod tests;
