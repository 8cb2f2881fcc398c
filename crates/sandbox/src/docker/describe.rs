//! Describes what the Docker engine enforces.

use bollard::models::SystemInfo;

use super::{create::ContainerSettings, engine::Client};
use crate::traits::{Feature, FeatureState};

pub(super) fn features(client: &Client, info: &SystemInfo, settings: &ContainerSettings) -> Vec<Feature> {
    let security = info.security_options.clone().unwrap_or_default();
    let has = |name: &str| {
        security.iter().any(|option| option.split(',').any(|part| part == format!("name={name}")))
    };
    let cgroup = info.cgroup_version.map_or_else(|| "?".to_owned(), |version| version.to_string());
    let rootless = if has("rootless") { ", rootless" } else { "" };
    let engine = format!("{} (API {}), cgroup v{cgroup}{rootless}", client.version, client.api_version);
    let runtime = settings.runtime.clone().or_else(|| info.default_runtime.clone()).unwrap_or_default();
    let known = info.runtimes.as_ref().is_some_and(|runtimes| runtimes.contains_key(&runtime));
    vec![
        feature("engine", true, engine),
        feature("runtime", known, runtime),
        feature("seccomp", has("seccomp"), "the engine's own profile".to_owned()),
        feature("apparmor", has("apparmor"), "the engine's own profile".to_owned()),
        feature(
            "user namespace",
            has("userns") || has("rootless"),
            "root in a container is unprivileged on the host".to_owned(),
        ),
        feature(
            "no privileges",
            true,
            format!(
                "user {}:{}, no capabilities, no new privileges, read-only root",
                settings.user.uid, settings.user.gid
            ),
        ),
        feature("memory limit", info.memory_limit.unwrap_or(false), "of a container".to_owned()),
        feature("CPU limit", info.cpu_cfs_quota.unwrap_or(false), "of a container".to_owned()),
        feature("process limit", info.pids_limit.unwrap_or(false), "of a container".to_owned()),
        feature("network", true, "none, unless the policy names one".to_owned()),
    ]
}

/// The only feature if the engine does not respond.
pub(super) fn no_engine(why: String) -> Vec<Feature> {
    vec![feature("engine", false, why)]
}

fn feature(name: &'static str, enforced: bool, detail: String) -> Feature {
    let state = if enforced { FeatureState::Enforced } else { FeatureState::Unavailable };
    Feature { name, state, detail }
}
