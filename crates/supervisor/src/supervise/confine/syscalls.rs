//! Seccomp filters against system calls that no tool needs and that allow an escape, or did in the past.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

const FORBIDDEN: [libc::c_long; 35] = [
    // Access to other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_perf_event_open,
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_open_by_handle_at,
    // Kernel administration.
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // Performs forbidden operations without issuing their system calls.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// The bits of a socket's type without its flags.
const SOCKET_TYPE: u64 = 0xf;

/// Bit that x32 programs set in call numbers; the same calls must be blocked with it.
#[cfg(target_arch = "x86_64")]
const ALIASES: [libc::c_long; 2] = [0, 0x4000_0000];
#[cfg(not(target_arch = "x86_64"))]
const ALIASES: [libc::c_long; 1] = [0];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Sockets that a command may create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sockets {
    Any,
    OnlyUnix,
    /// Connected pairs are possible nevertheless, except those that can be connected again.
    NoUnix,
}

/// The filters, to be applied one after the other.
pub(super) fn filters(sockets: Sockets) -> Result<Vec<BpfProgram>, BackendError> {
    let mut forbidden: Vec<(libc::c_long, Vec<SeccompRule>)> =
        FORBIDDEN.into_iter().map(|call| (call, Vec::new())).collect();
    let mut clone = Vec::new();
    for namespace in NAMESPACES {
        let flag = u64::from(namespace.unsigned_abs());
        clone.push(rule(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag)?);
    }
    forbidden.push((libc::SYS_clone, clone));
    let unix = u64::from(libc::AF_UNIX.unsigned_abs());
    match sockets {
        Sockets::Any => {}
        Sockets::OnlyUnix => forbidden
            .push((libc::SYS_socket, vec![rule(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, unix)?])),
        Sockets::NoUnix => {
            forbidden
                .push((libc::SYS_socket, vec![rule(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, unix)?]));
            // A socket of these types can be connected to an address, even if it is half of a pair.
            let pairs = [libc::SOCK_DGRAM, libc::SOCK_RAW].map(|kind| {
                let of_type = SeccompCmpOp::MaskedEq(SOCKET_TYPE);
                rule(1, SeccompCmpArgLen::Dword, of_type, u64::from(kind.unsigned_abs()))
            });
            forbidden.push((libc::SYS_socketpair, pairs.into_iter().collect::<Result<_, _>>()?));
        }
    }
    // A filter cannot see the flags of clone3. If it fails with ENOSYS, callers fall back to clone.
    let unknown = vec![(libc::SYS_clone3, Vec::new())];
    [(forbidden, libc::EPERM), (unknown, libc::ENOSYS)]
        .into_iter()
        .map(|(calls, errno)| filter(&calls, errno.unsigned_abs()))
        .collect()
}

fn filter(calls: &[(libc::c_long, Vec<SeccompRule>)], errno: u32) -> Result<BpfProgram, BackendError> {
    let mut rules = Rules::new();
    for (call, conditions) in calls {
        for alias in ALIASES {
            rules.insert(*call | alias, conditions.clone());
        }
    }
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno), architecture)?.try_into()
}

fn rule(
    argument: u8,
    length: SeccompCmpArgLen,
    comparison: SeccompCmpOp,
    value: u64,
) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(argument, length, comparison, value)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_compile_for_all_sockets() {
        for sockets in [Sockets::Any, Sockets::OnlyUnix, Sockets::NoUnix] {
            assert_eq!(filters(sockets).unwrap().len(), 2);
        }
    }
}
