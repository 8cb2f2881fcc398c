//! The create request of a container, which decides all of its privileges.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountBindOptions, MountBindOptionsPropagationEnum, MountType, MountVolumeOptions, ResourcesUlimits,
    RestartPolicy, RestartPolicyNameEnum,
};
use remuda_domain::{
    error::{Error, Result},
    execution::{NO_NETWORK, ResourceLimits},
};

use super::supervisor_volume;
use crate::remote::{Image, InstancePlan, InstanceSpec};

/// Path of the workspace as commands see it.
pub(super) const WORKSPACE: &str = "/workspace";
/// Mount point of the supervisor program.
pub(super) const SUPERVISOR_DIRECTORY: &str = "/.remuda";
pub(super) const SUPERVISOR: &str = "/.remuda/remuda-supervisor";
/// Directory for temporary files.
pub(super) const SCRATCH: &str = "/tmp";

const RUN_BYTES: u64 = 16 << 20;
const SHM_BYTES: i64 = 64 << 20;
/// Processes of the supervisor program, in addition to those of commands.
const OWN_PROCESSES: u64 = 160;
/// Open files that the supervisor program needs, if commands may open fewer.
const OWN_OPEN_FILES: u64 = 1024;
/// Microseconds in which a container may use its share of the CPUs.
const CPU_PERIOD: i64 = 100_000;
/// The OOM killer prefers containers when the machine runs out of memory.
const OOM_SCORE_ADJ: i64 = 500;

/// User and group of a container's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerUser {
    pub uid: u32,
    pub gid: u32,
}

impl ContainerUser {
    /// The unprivileged user `nobody`.
    pub const NOBODY: Self = Self { uid: 65534, gid: 65534 };
}

/// What the operator configured for all containers.
#[derive(Clone, Debug)]
pub(super) struct ContainerSettings {
    pub(super) user: ContainerUser,
    /// OCI runtime; the engine's default if `None`.
    pub(super) runtime: Option<String>,
}

/// Rejects invalid network names and the host's network.
pub(super) fn check_network(network: &str) -> Result<()> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let starts_well = network.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if network == "host" || network.len() > 128 || !starts_well || !network.bytes().all(plain) {
        return Err(Error::invalid("network", "expected none or the name of a network, and not the host's"));
    }
    Ok(())
}

/// Builds the whole request. A tenant influences it only through its policy.
pub(super) fn create_body(plan: &InstancePlan, settings: &ContainerSettings) -> ContainerCreateBody {
    let (image, user) = (&plan.image, settings.user);
    let volume = supervisor_volume::name(&plan.creator);
    ContainerCreateBody {
        image: Some(image.id.clone()),
        entrypoint: Some(vec![SUPERVISOR.to_owned(), "init".to_owned()]),
        cmd: Some(Vec::new()),
        user: Some(format!("{}:{}", user.uid, user.gid)),
        working_dir: Some(WORKSPACE.to_owned()),
        env: Some(environment(image).into_iter().map(|(name, value)| format!("{name}={value}")).collect()),
        labels: Some(plan.labels()),
        open_stdin: Some(true),
        // When our connection ends, its stdin closes and the container ends.
        stdin_once: Some(true),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(false),
        tty: Some(false),
        // A health check of the image would run commands in the container.
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".to_owned()]), ..Default::default() }),
        host_config: Some(host_config(&plan.spec, user, settings.runtime.clone(), &volume)),
        ..Default::default()
    }
}

fn host_config(
    spec: &InstanceSpec,
    user: ContainerUser,
    runtime: Option<String>,
    volume: &str,
) -> HostConfig {
    let limits = &spec.limits.of_container();
    let memory = limits.memory_bytes.map(signed);
    HostConfig {
        cap_drop: Some(vec!["ALL".to_owned()]),
        // Seccomp and AppArmor are not set: the engine's default profiles apply.
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        privileged: Some(false),
        readonly_rootfs: Some(true),
        tmpfs: Some(tmpfs(spec, user)),
        mounts: Some(mounts(spec, volume)),
        network_mode: Some(spec.network.clone()),
        ipc_mode: Some("private".to_owned()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        memory,
        // Equal to the memory limit, so that no swap is allowed.
        memory_swap: memory,
        // A quota, because the engine rejects a number of CPUs (NanoCpus) that the machine does not have.
        cpu_period: Some(CPU_PERIOD),
        cpu_quota: limits.cpus.map(cpu_quota),
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

/// Base environment of every command.
pub(super) fn environment(image: &Image) -> Vec<(String, String)> {
    [("PATH", image.path.as_str()), ("HOME", SCRATCH), ("LANG", "C.UTF-8")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
}

fn tmpfs(spec: &InstanceSpec, user: ContainerUser) -> HashMap<String, String> {
    let scratch = spec.limits.scratch_bytes;
    let ContainerUser { uid, gid } = user;
    // No noexec: builds execute their own output.
    let mut tmpfs = HashMap::from([
        (SCRATCH.to_owned(), format!("rw,exec,nosuid,nodev,size={scratch},mode=1777")),
        ("/run".to_owned(), format!("rw,noexec,nosuid,nodev,size={RUN_BYTES},mode=0755,uid={uid},gid={gid}")),
    ]);
    if spec.mount.is_none() {
        let options = format!("rw,exec,nosuid,nodev,size={scratch},mode=0755,uid={uid},gid={gid}");
        tmpfs.insert(WORKSPACE.to_owned(), options);
    }
    tmpfs
}

/// As objects, not as `source:target:options`: a path may contain a colon, and the engine does not create a
/// missing directory as root.
fn mounts(spec: &InstanceSpec, volume: &str) -> Vec<Mount> {
    let mut mounts = vec![supervisor_mount(volume, true)];
    if let Some(workspace) = &spec.mount {
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
    // The supervisor applies the exact limit to commands.
    ulimits.extend(limits.open_files.map(|files| ulimit("nofile", files.max(OWN_OPEN_FILES))));
    ulimits.extend(limits.file_bytes.map(|bytes| ulimit("fsize", bytes)));
    ulimits
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "limits of CPUs are small positive numbers; a cast saturates"
)]
fn cpu_quota(cpus: f64) -> i64 {
    (cpus * CPU_PERIOD as f64) as i64
}

/// Whether the container has a network.
pub(super) fn has_network(spec: &InstanceSpec) -> bool {
    spec.network != NO_NETWORK
}

#[cfg(test)]
#[path = "create_tests.rs"]
mod tests;
