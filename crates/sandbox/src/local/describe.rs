//! Describes what the local backend enforces on this machine.

use remuda_domain::error::Error;

use super::hardening::{ConfinementMethod, Hardening};
use crate::traits::{Feature, FeatureState};

pub(super) fn features(
    hardening: Hardening,
    confinement_method: &Result<ConfinementMethod, Error>,
    guarded: bool,
) -> Vec<Feature> {
    let (confinement_state, confinement) = match confinement_method {
        Ok(ConfinementMethod::Bubblewrap(program)) => {
            let detail = "namespaces of its own; writes only the workspace and a /tmp of its own";
            (FeatureState::Enforced, format!("bubblewrap ({}): {detail}", program.display()))
        }
        Ok(ConfinementMethod::Landlock) => {
            let detail = "Landlock and seccomp: writes only beneath the workspace and /tmp";
            (FeatureState::Enforced, detail.to_owned())
        }
        Ok(ConfinementMethod::None) if hardening == Hardening::None => {
            let detail = "a command may do what this user may; for work you would run yourself";
            (FeatureState::Off, detail.to_owned())
        }
        Ok(ConfinementMethod::None) => {
            (FeatureState::Unavailable, "neither bubblewrap nor Landlock works here".to_owned())
        }
        Err(error) => (FeatureState::Unavailable, error.message().to_owned()),
    };
    let network = match confinement_state {
        FeatureState::Enforced => "none, unless the policy names one",
        FeatureState::Off | FeatureState::Unavailable => "a command reaches whatever this machine reaches",
    };
    let guard_state = if guarded { FeatureState::Enforced } else { FeatureState::Off };
    let enforced = FeatureState::Enforced;
    [
        ("process containment", enforced, "what a command leaves behind is killed, daemons too".to_owned()),
        ("guard", guard_state, "commands die with their worker, and before its lease ends".to_owned()),
        ("environment", enforced, "only a few harmless variables are passed on, no keys".to_owned()),
        ("limits", enforced, "of each process: memory, file size, open files; no core files".to_owned()),
        ("file tools", enforced, "cannot leave the workspace (openat2)".to_owned()),
        ("confinement", confinement_state, confinement),
        ("network", confinement_state, network.to_owned()),
    ]
    .map(|(name, state, detail)| Feature { name, state, detail })
    .to_vec()
}
