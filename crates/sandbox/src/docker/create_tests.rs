//! Snapshot of the whole create request, so that every addition is reviewed here.

use std::path::PathBuf;

use remuda_domain::{SandboxId, SessionId, TenantId, WorkerId, execution::Holder};
use serde_json::{Value, json};

use super::*;
use crate::remote::Creator;

fn plan(mount: Option<&str>) -> InstancePlan {
    InstancePlan {
        sandbox: SandboxId::new(),
        creator: Creator { installation: "here".into(), backend: "one".into(), worker: WorkerId::new() },
        holder: Some(Holder { tenant: TenantId::new(), session: SessionId::new(), epoch: 3 }),
        image: Image {
            name: "tools:1".into(),
            id: "sha256:abc".into(),
            digest: "tools@sha256:def".into(),
            path: "/bin".into(),
        },
        spec: InstanceSpec {
            image: "tools:1".into(),
            network: "none".into(),
            limits: ResourceLimits {
                memory_bytes: Some(256 << 20),
                cpus: Some(1.5),
                processes: Some(100),
                file_bytes: Some(1 << 30),
                open_files: Some(64),
                scratch_bytes: 1 << 20,
                disk_reserve_bytes: 0,
            },
            mount: mount.map(PathBuf::from),
        },
    }
}

fn body(plan: &InstancePlan, runtime: Option<&str>) -> Value {
    let user = ContainerUser { uid: 1000, gid: 100 };
    let settings = ContainerSettings { user, runtime: runtime.map(str::to_owned) };
    serde_json::to_value(create_body(plan, &settings)).unwrap()
}

#[test]
fn create_request_has_exactly_the_expected_fields() {
    let plan = plan(Some("/srv/a:b"));
    let holder = plan.holder.unwrap();
    let expected = json!({
        "Image": "sha256:abc",
        "Entrypoint": ["/.remuda/remuda-supervisor", "init"],
        "Cmd": [],
        "User": "1000:100",
        "WorkingDir": "/workspace",
        "Env": ["PATH=/bin", "HOME=/tmp", "LANG=C.UTF-8"],
        "Labels": {
            "dev.remuda.installation": "here",
            "dev.remuda.instance": "one",
            "dev.remuda.worker": plan.creator.worker.to_string(),
            "dev.remuda.sandbox": plan.sandbox.to_string(),
            "dev.remuda.tenant": holder.tenant.to_string(),
            "dev.remuda.session": holder.session.to_string(),
            "dev.remuda.epoch": "3",
            "dev.remuda.image": "tools:1",
            "dev.remuda.digest": "tools@sha256:def",
        },
        "OpenStdin": true,
        "StdinOnce": true,
        "AttachStdin": true,
        "AttachStdout": true,
        "AttachStderr": false,
        "Tty": false,
        "Healthcheck": { "Test": ["NONE"] },
        "HostConfig": {
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "Privileged": false,
            "ReadonlyRootfs": true,
            "Tmpfs": {
                "/tmp": "rw,exec,nosuid,nodev,size=1048576,mode=1777",
                "/run": "rw,noexec,nosuid,nodev,size=16777216,mode=0755,uid=1000,gid=100",
            },
            "Mounts": [
                {
                    "Type": "volume", "Source": "remuda-one", "Target": "/.remuda", "ReadOnly": true,
                    "VolumeOptions": { "NoCopy": true },
                },
                {
                    "Type": "bind", "Source": "/srv/a:b", "Target": "/workspace", "ReadOnly": false,
                    "BindOptions": { "Propagation": "rprivate" },
                },
            ],
            "NetworkMode": "none",
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "Memory": 268_435_456,
            "MemorySwap": 268_435_456,
            "CpuPeriod": 100_000,
            "CpuQuota": 150_000,
            "PidsLimit": 260,
            "Ulimits": [
                { "Name": "core", "Soft": 0, "Hard": 0 },
                { "Name": "nofile", "Soft": 1024, "Hard": 1024 },
                { "Name": "fsize", "Soft": 1_073_741_824, "Hard": 1_073_741_824 },
            ],
            "ShmSize": 67_108_864,
            "OomScoreAdj": 500,
            "LogConfig": { "Type": "none" },
            "RestartPolicy": { "Name": "no" },
            "AutoRemove": true,
            "Init": false,
        },
    });
    assert_eq!(body(&plan, None), expected);
}

#[test]
fn request_for_a_spare_with_a_copied_workspace() {
    let mut plan = plan(None);
    plan.holder = None;
    plan.spec.limits =
        ResourceLimits { processes: None, open_files: None, file_bytes: None, ..ResourceLimits::default() };
    let body = body(&plan, Some("runsc"));
    let host = &body["HostConfig"];
    assert_eq!(host["Tmpfs"]["/workspace"], "rw,exec,nosuid,nodev,size=536870912,mode=0755,uid=1000,gid=100");
    assert_eq!(host["Mounts"].as_array().unwrap().len(), 1);
    assert_eq!(host["Runtime"], "runsc");
    assert_eq!(host["Ulimits"], json!([{ "Name": "core", "Soft": 0, "Hard": 0 }]));
    // Without a policy there are limits, too.
    let memory = ResourceLimits::CONTAINER_MEMORY_BYTES;
    assert_eq!((&host["Memory"], &host["MemorySwap"]), (&json!(memory), &json!(memory)));
    assert_eq!(host["CpuQuota"], json!(200_000));
    assert_eq!(host["PidsLimit"], json!(1024 + OWN_PROCESSES));
    assert!(body["Labels"].get("dev.remuda.session").is_none());
}

#[test]
fn documented_limits_are_the_enforced_ones() {
    let docs = include_str!("../../../../docs/sandboxes.md");
    let ResourceLimits { processes, file_bytes, open_files, scratch_bytes, disk_reserve_bytes, .. } =
        ResourceLimits::default();
    let row = |name: &str, value: String| format!("| `{name}` | {value} |");
    for text in [
        row("memory", format!("{} GiB", ResourceLimits::CONTAINER_MEMORY_BYTES >> 30)),
        row("cpus", ResourceLimits::CONTAINER_CPUS.to_string()),
        row("processes", processes.unwrap().to_string()),
        row("file_size", format!("{} GiB", file_bytes.unwrap() >> 30)),
        row("open_files", open_files.unwrap().to_string()),
        row("scratch", format!("{} MiB", scratch_bytes >> 20)),
        row("disk_reserve", format!("{} MiB", disk_reserve_bytes >> 20)),
        format!("gets {OWN_PROCESSES} more for supervisors"),
        format!("{} MiB of `/run` and {} MiB of `/dev/shm`", RUN_BYTES >> 20, SHM_BYTES >> 20),
    ] {
        assert!(docs.contains(&text), "{text}");
    }
}

#[test]
fn network_names_are_validated() {
    for network in ["none", "egress", "team.net-1"] {
        check_network(network).unwrap();
    }
    for network in ["host", "", "container:abc", "-x", "a b"] {
        assert_eq!(check_network(network).unwrap_err().field(), Some("network"), "{network:?}");
    }
}
