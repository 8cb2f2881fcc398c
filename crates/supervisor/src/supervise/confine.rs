//! Confinement of commands: Landlock for files and network, seccomp for system calls.
//!
//! The supervisor prepares the rules, while it can still open files and report errors; the child enters them.

mod syscalls;

use std::{error::Error, io};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};
use nix::{errno::Errno, sys::prctl};
use remuda_supervisor::Confinement;
use seccompiler::BpfProgram;

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
    files: Option<RulesetCreated>,
    filters: Vec<BpfProgram>,
}

impl PreparedConfinement {
    pub(super) fn prepare(confinement: &Confinement) -> Result<Self, Box<dyn Error>> {
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_write(REQUIRED_ABI))?
            // Available on later kernels: no signals to other processes, and no bypass of the system call
            // filter.
            .set_compatibility(CompatLevel::BestEffort)
            .scope(Scope::from_all(ABI::V6))?;
        if !confinement.network {
            ruleset = ruleset.handle_access(AccessNet::from_all(ABI::V4))?;
        }
        let mut ruleset = ruleset.create()?;
        for path in &confinement.writable {
            let beneath = PathBeneath::new(PathFd::new(path)?, AccessFs::from_write(REQUIRED_ABI));
            ruleset = ruleset.add_rule(beneath)?;
        }
        for path in HARMLESS_DEVICES.into_iter().chain(HARMLESS_DEVICE_DIRECTORIES) {
            // Some may be missing in a container.
            if let Ok(open) = PathFd::new(path) {
                let mut access = AccessFs::from_file(REQUIRED_ABI) & AccessFs::from_write(REQUIRED_ABI);
                if HARMLESS_DEVICE_DIRECTORIES.contains(&path) {
                    access |= AccessFs::MakeReg | AccessFs::RemoveFile;
                }
                ruleset = ruleset.add_rule(PathBeneath::new(open, access))?;
            }
        }
        Ok(Self { files: Some(ruleset), filters: syscalls::filters(confinement.network)? })
    }

    /// Applies the rules to the calling process (the child). Irreversible.
    pub(super) fn enter(&mut self) -> io::Result<()> {
        let not_confined = || io::Error::from(NOT_CONFINED);
        prctl::set_no_new_privs()?;
        let files = self.files.take().ok_or_else(not_confined)?;
        let status = files.restrict_self().map_err(|_| not_confined())?;
        if status.ruleset == RulesetStatus::NotEnforced {
            return Err(not_confined());
        }
        for filter in &self.filters {
            seccompiler::apply_filter(filter).map_err(|_| not_confined())?;
        }
        Ok(())
    }
}

/// Checks whether commands can be confined here by confining this process, which must exit afterwards.
pub(crate) fn check() -> io::Result<()> {
    let confinement = Confinement { writable: vec!["/".to_owned()], network: false };
    PreparedConfinement::prepare(&confinement).map_err(|error| io::Error::other(error.to_string()))?.enter()
}
