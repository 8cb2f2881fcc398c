//! Confinement of commands: Landlock for files, network and processes, seccomp for system calls.
//!
//! The supervisor prepares the rules, while it can still open files and report errors; the child enters them.

mod syscalls;

use std::{error::Error, io};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use nix::{errno::Errno, sys::prctl};
use remuda_supervisor::Confinement;
use seccompiler::BpfProgram;

use self::syscalls::Sockets;

/// Error number by which a child reports that it could not be confined. No other step fails with it.
pub(super) const NOT_CONFINED: Errno = Errno::EREMOTEIO;

/// Required version of Landlock: older ones let a command truncate files that it may not write.
const REQUIRED_ABI: ABI = ABI::V3;

/// Devices that programs write to and that store nothing.
const HARMLESS_DEVICES: [&str; 7] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx"];
const HARMLESS_DEVICE_DIRECTORIES: [&str; 2] = ["/dev/pts", "/dev/shm"];

#[derive(Debug)]
pub(super) struct PreparedConfinement {
    rules: Option<RulesetCreated>,
    filters: Vec<BpfProgram>,
}

impl PreparedConfinement {
    pub(super) fn prepare(confinement: &Confinement) -> Result<Self, Box<dyn Error>> {
        let (rules, filters) = match confinement {
            Confinement::Processes => (Some(scope(Scope::Signal)?), Vec::new()),
            Confinement::Namespaced { host_network: false } => (None, syscalls::filters(Sockets::Any)?),
            Confinement::Namespaced { host_network: true } => match scope(Scope::AbstractUnixSocket) {
                Ok(rules) => (Some(rules), syscalls::filters(Sockets::Any)?),
                // A filter cannot see to which address a socket connects.
                Err(_) => (None, syscalls::filters(Sockets::NoUnix)?),
            },
            Confinement::Files { readable, writable, network } => {
                let sockets = if *network { Sockets::Any } else { Sockets::OnlyUnix };
                (Some(files(readable, writable, *network)?), syscalls::filters(sockets)?)
            }
        };
        Ok(Self { rules, filters })
    }

    /// Applies the rules to the calling process (the child). Irreversible.
    pub(super) fn enter(&mut self) -> io::Result<()> {
        let not_confined = || io::Error::from(NOT_CONFINED);
        prctl::set_no_new_privs()?;
        if let Some(rules) = self.rules.take() {
            let status = rules.restrict_self().map_err(|_| not_confined())?;
            if status.ruleset == RulesetStatus::NotEnforced {
                return Err(not_confined());
            }
        }
        for filter in &self.filters {
            seccompiler::apply_filter(filter).map_err(|_| not_confined())?;
        }
        Ok(())
    }
}

/// Rules for what is beyond the command's own processes; files stay as they are. Tracing is always forbidden:
/// Landlock lets no process trace, or read the environment of, one outside of its rules.
fn scope(scope: Scope) -> Result<RulesetCreated, RulesetError> {
    Ruleset::default().set_compatibility(CompatLevel::HardRequirement).scope(scope)?.create()
}

fn files(readable: &[String], writable: &[String], network: bool) -> Result<RulesetCreated, Box<dyn Error>> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(REQUIRED_ABI))?
        // Available on later kernels: no signals to other processes, and no bypass of the system call filter.
        .set_compatibility(CompatLevel::BestEffort)
        .scope(Scope::from_all(ABI::V6))?;
    if !network {
        ruleset = ruleset.handle_access(AccessNet::from_all(ABI::V4))?;
    }
    let mut ruleset = ruleset.create()?;
    for path in writable {
        ruleset = ruleset.add_rule(PathBeneath::new(PathFd::new(path)?, AccessFs::from_all(REQUIRED_ABI)))?;
    }
    // Rights for directories are dropped for a file, because compatibility is best effort here.
    for path in readable {
        if let Ok(open) = PathFd::new(path) {
            ruleset = ruleset.add_rule(PathBeneath::new(open, AccessFs::from_read(REQUIRED_ABI)))?;
        }
    }
    for path in HARMLESS_DEVICES.into_iter().chain(HARMLESS_DEVICE_DIRECTORIES) {
        // Some may be missing in a container.
        if let Ok(open) = PathFd::new(path) {
            let mut access = AccessFs::from_file(REQUIRED_ABI);
            if HARMLESS_DEVICE_DIRECTORIES.contains(&path) {
                access |= AccessFs::MakeReg | AccessFs::RemoveFile | AccessFs::ReadDir;
            }
            ruleset = ruleset.add_rule(PathBeneath::new(open, access))?;
        }
    }
    Ok(ruleset)
}

/// Checks whether commands can be confined here by confining this process, which must exit afterwards.
pub(crate) fn check(what: &str) -> io::Result<()> {
    let confinement = match what {
        "files" => {
            Confinement::Files { readable: Vec::new(), writable: vec!["/".to_owned()], network: false }
        }
        "processes" => Confinement::Processes,
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    PreparedConfinement::prepare(&confinement).map_err(|error| io::Error::other(error.to_string()))?.enter()
}
