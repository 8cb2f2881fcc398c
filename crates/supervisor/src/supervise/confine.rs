//! What a confined command may touch: files by Landlock, system calls by seccomp.
//!
//! Prepared by the supervisor, which can still open files and say what is wrong, and entered by the child.

mod syscalls;

use std::{error::Error, io};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};
use nix::{errno::Errno, sys::prctl};
use remuda_supervisor::Confinement;
use seccompiler::BpfProgram;

/// How a child says that it could not be confined; no other step fails like that.
pub(super) const NOT_CONFINED: Errno = Errno::EREMOTEIO;

/// Without this version of Landlock, files that may not be written could be emptied.
const NEEDED: ABI = ABI::V3;

/// Devices that programs write to and that hold nothing.
const HARMLESS: [&str; 7] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx"];
const HARMLESS_DIRECTORIES: [&str; 2] = ["/dev/pts", "/dev/shm"];

#[derive(Debug)]
pub(super) struct Confined {
    files: Option<RulesetCreated>,
    filters: Vec<BpfProgram>,
}

impl Confined {
    pub(super) fn prepare(confinement: &Confinement) -> Result<Self, Box<dyn Error>> {
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_write(NEEDED))?
            // What later kernels add: no signals to others, and no way around the filter of system calls.
            .set_compatibility(CompatLevel::BestEffort)
            .scope(Scope::from_all(ABI::V6))?;
        if !confinement.network {
            ruleset = ruleset.handle_access(AccessNet::from_all(ABI::V4))?;
        }
        let mut ruleset = ruleset.create()?;
        for path in &confinement.writable {
            let beneath = PathBeneath::new(PathFd::new(path)?, AccessFs::from_write(NEEDED));
            ruleset = ruleset.add_rule(beneath)?;
        }
        for path in HARMLESS.into_iter().chain(HARMLESS_DIRECTORIES) {
            // A container may lack some.
            if let Ok(open) = PathFd::new(path) {
                let mut access = AccessFs::from_file(NEEDED) & AccessFs::from_write(NEEDED);
                if HARMLESS_DIRECTORIES.contains(&path) {
                    access |= AccessFs::MakeReg | AccessFs::RemoveFile;
                }
                ruleset = ruleset.add_rule(PathBeneath::new(open, access))?;
            }
        }
        Ok(Self { files: Some(ruleset), filters: syscalls::filters(confinement.network)? })
    }

    /// For the child. There is no way back.
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

/// Whether commands can be confined here: confines this process, which is good for nothing else afterwards.
pub(crate) fn check() -> io::Result<()> {
    let confinement = Confinement { writable: vec!["/".to_owned()], network: false };
    Confined::prepare(&confinement).map_err(|error| io::Error::other(error.to_string()))?.enter()
}
