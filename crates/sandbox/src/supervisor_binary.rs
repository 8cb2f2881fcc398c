//! The embedded supervisor program.
//!
//! It is executed from memory (memfd): no file has to be unpacked, located or cleaned up, and none can be
//! replaced.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsRawFd, OwnedFd},
    path::PathBuf,
    sync::OnceLock,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
};
use remuda_domain::error::{Error, Result};

/// The static program `remuda-supervisor`, built by the build script.
#[must_use]
pub fn bytes() -> &'static [u8] {
    include_bytes!(env!("REMUDA_SUPERVISOR_PROGRAM"))
}

/// The program as an open file, created at first use. Close-on-exec: children lose it only once they execute
/// it.
pub(crate) fn file() -> Result<&'static File> {
    static PROGRAM: OnceLock<File> = OnceLock::new();
    if let Some(program) = PROGRAM.get() {
        return Ok(program);
    }
    let made = make().map_err(|error| {
        Error::unavailable("cannot load the supervisor program into memory").with_source(error)
    })?;
    Ok(PROGRAM.get_or_init(|| made))
}

/// Path under which children of this process, and only they, can execute the program.
pub fn path() -> Result<PathBuf> {
    Ok(format!("/proc/self/fd/{}", file()?.as_raw_fd()).into())
}

fn make() -> io::Result<File> {
    let mut memory = File::from(memory()?);
    memory.write_all(bytes())?;
    let seals =
        SealFlag::F_SEAL_SEAL | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE;
    fcntl(&memory, FcntlArg::F_ADD_SEALS(seals))?;
    // Reopened read-only: a file that is open for writing cannot be executed.
    File::open(format!("/proc/self/fd/{}", memory.as_raw_fd()))
}

fn memory() -> nix::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    // Kernels before 6.3 do not have the flag and do not need it.
    let executable = flags | MFdFlags::from_bits_retain(nix::libc::MFD_EXEC);
    match memfd_create("remuda-supervisor", executable) {
        Err(Errno::EINVAL) => memfd_create("remuda-supervisor", flags),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a 64-bit ELF program has no program header for a dynamic loader.
    fn needs_no_loader(program: &[u8]) -> bool {
        const INTERPRETER: [u8; 4] = 3_u32.to_ne_bytes();
        assert!(program.starts_with(b"\x7fELF\x02"));
        let number = |at: usize| usize::from(u16::from_ne_bytes([program[at], program[at + 1]]));
        let (start, size, count) = (number(32), number(54), number(56));
        (0..count).all(|header| program[start + header * size..][..4] != INTERPRETER)
    }

    #[test]
    fn embedded_program_is_static_and_sealed() {
        assert!(needs_no_loader(bytes()));
        assert!(!needs_no_loader(&std::fs::read("/bin/sh").unwrap()));
        let opened = File::options().write(true).open(path().unwrap());
        assert!(opened.and_then(|mut file| file.write_all(b"x")).is_err());
        let status = std::process::Command::new(path().unwrap()).status().unwrap();
        assert_eq!(status.code(), Some(2));
    }
}
