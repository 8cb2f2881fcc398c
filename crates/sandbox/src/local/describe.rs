//! Describes what the local backend enforces on this machine.

use nix::unistd::Uid;
use remuda_domain::error::Error;

use super::hardening::{ConfinementMethod, Hardening};
use crate::traits::{Feature, FeatureState};

pub(super) fn features(
    hardening: Hardening,
    method: &Result<ConfinementMethod, Error>,
    guarded: bool,
) -> Vec<Feature> {
    let guard_state = if guarded { FeatureState::Enforced } else { FeatureState::Off };
    let enforced = |name, detail: &str| feature(name, FeatureState::Enforced, detail);
    vec![
        enforced("process containment", "what a command leaves behind is killed, daemons too"),
        feature("guard", guard_state, "commands die with their worker, and before its lease ends"),
        enforced("environment", "only a few harmless variables are passed on, no keys"),
        enforced("limits", "of each process: memory, file size, open files; no core files"),
        enforced("no privileges", "no capabilities; as the workspace's owner if the worker is root"),
        enforced("file tools", "cannot leave the workspace (openat2)"),
        worker_protection(method),
        confinement(hardening, method),
        network(method),
    ]
}

fn worker_protection(method: &Result<ConfinementMethod, Error>) -> Feature {
    let (state, detail) = match method {
        Ok(method) if method.protects_worker() => {
            (FeatureState::Enforced, "commands can neither signal nor trace the worker, nor read its secrets")
        }
        Ok(_) => (
            FeatureState::Partial,
            "commands cannot read the worker's memory and environment, but those of the same user can end it: \
             this needs Linux 6.12 with Landlock, or bubblewrap",
        ),
        Err(error) => (FeatureState::Unavailable, error.message()),
    };
    feature("worker protection", state, detail)
}

fn confinement(hardening: Hardening, method: &Result<ConfinementMethod, Error>) -> Feature {
    let (state, detail) = match method {
        Ok(ConfinementMethod::Bubblewrap(program)) => {
            let detail = "only the workspace, a /tmp of its own and the system's programs are visible";
            (FeatureState::Enforced, format!("bubblewrap ({}): {detail}", program.display()))
        }
        Ok(ConfinementMethod::Landlock { .. }) => {
            let detail = "Landlock and seccomp: files of the workspace, /tmp and the system's programs; Unix sockets \
                          of this machine and its /tmp are open: install bubblewrap";
            (FeatureState::Partial, detail.to_owned())
        }
        Ok(_) if hardening == Hardening::None && Uid::effective().is_root() => {
            let detail = "in a workspace that root owns, a command may change root's files, and so leave something \
                          that root runs later; for work you would run as root";
            (FeatureState::Off, detail.to_owned())
        }
        Ok(_) if hardening == Hardening::None => {
            let detail = "a command may use all files of this user; for work you would run yourself";
            (FeatureState::Off, detail.to_owned())
        }
        Ok(_) => (FeatureState::Unavailable, "neither bubblewrap nor Landlock works here".to_owned()),
        Err(error) => (FeatureState::Unavailable, error.message().to_owned()),
    };
    feature("confinement", state, &detail)
}

fn network(method: &Result<ConfinementMethod, Error>) -> Feature {
    let (state, detail) = match method {
        Ok(ConfinementMethod::Bubblewrap(_)) => (FeatureState::Enforced, "none, unless the policy names one"),
        Ok(ConfinementMethod::Landlock { .. }) => {
            (FeatureState::Partial, "none but Unix sockets of this machine, unless the policy names one")
        }
        Ok(_) => (FeatureState::Off, "a command reaches whatever this machine reaches"),
        Err(_) => (FeatureState::Unavailable, "no command runs"),
    };
    feature("network", state, detail)
}

fn feature(name: &'static str, state: FeatureState, detail: &str) -> Feature {
    Feature { name, state, detail: detail.to_owned() }
}
