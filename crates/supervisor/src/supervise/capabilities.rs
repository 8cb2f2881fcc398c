//! Drops the capabilities of the calling process.
//!
//! A process without them cannot read the memory, the environment or the descriptors of a process that has some,
//! even as the same user. Together with `no_new_privs`, executing a program as root does not bring them back.

use std::io;

use nix::{errno::Errno, libc};

/// `CAP_CHOWN`, `CAP_DAC_OVERRIDE`, `CAP_DAC_READ_SEARCH`, `CAP_FOWNER`, `CAP_FSETID`.
pub(super) const FILES: &[u32] = &[0, 1, 2, 3, 4];

/// `_LINUX_CAPABILITY_VERSION_3`: 64 capabilities, in two sets of 32.
const VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    process: libc::c_int,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Drops all capabilities but these, which stay if the process has them.
#[expect(unsafe_code, reason = "nix has no capset")]
pub(super) fn keep(kept: &[u32]) -> io::Result<()> {
    let mut header = Header { version: VERSION, process: 0 };
    let mut sets = [Sets::default(); 2];
    // SAFETY: both pointers are to locals with the layout that this version demands.
    Errno::result(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) })?;
    let wanted = kept.iter().fold(0, |wanted, capability| wanted | 1_u32 << capability);
    let permitted = sets[0].permitted & wanted;
    let sets = [Sets { effective: permitted, permitted, inheritable: 0 }, Sets::default()];
    // SAFETY: as above.
    Errno::result(unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) })?;
    Ok(())
}
