//! Spawns the command with its limits and confinement.

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
};

use nix::{
    errno::Errno,
    sys::{
        prctl,
        resource::{Resource, getrlimit, setrlimit},
        signal::{SigSet, Signal},
    },
    unistd::{Pid, getppid},
};
use remuda_supervisor::{Limits, Program, Refusal, RefusalKind, Request};

use super::{
    capabilities,
    confine::{NOT_CONFINED, PreparedConfinement},
};

/// Shells for scripts; the first that exists is used.
const SHELLS: [&str; 2] = ["bash", "sh"];

pub(super) fn spawn(request: &Request) -> Result<Child, Refusal> {
    if let Some(cwd) = &request.cwd {
        // Done before the fork: in the child, a missing directory would look like a missing program.
        std::env::set_current_dir(cwd)
            .map_err(|error| refusal(directory_refused(&error), format!("{cwd}: {error}")))?;
    }
    match &request.program {
        Program::Argv(argv) => {
            let (program, arguments) = argv
                .split_first()
                .ok_or_else(|| refusal(RefusalKind::ProgramNotFound, "no program was named".to_owned()))?;
            spawn_program(request, program, arguments)
        }
        Program::Shell { shell: Some(shell), script } => spawn_shell(request, shell, script),
        Program::Shell { shell: None, script } => {
            let mut refused = None;
            for shell in SHELLS {
                match spawn_shell(request, shell, script) {
                    Err(Refusal { kind: RefusalKind::ProgramNotFound, detail }) => {
                        refused = Some(refusal(RefusalKind::ProgramNotFound, detail));
                    }
                    result => return result,
                }
            }
            Err(refused.unwrap_or_else(|| refusal(RefusalKind::ProgramNotFound, "no shell".to_owned())))
        }
    }
}

fn spawn_shell(request: &Request, shell: &str, script: &str) -> Result<Child, Refusal> {
    spawn_program(request, shell, &["-c".to_owned(), script.to_owned()])
}

#[expect(unsafe_code, reason = "a single-threaded program may run any code between fork and exec")]
fn spawn_program(request: &Request, program: &str, arguments: &[String]) -> Result<Child, Refusal> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(request.env.iter().map(|(name, value)| (name, value)))
        .stdin(if request.has_input { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(user) = request.user {
        // Drops the supplementary groups, too.
        command.uid(user.uid).gid(user.gid);
    }
    let mut confined = match &request.confinement {
        Some(confinement) => Some(
            PreparedConfinement::prepare(confinement)
                .map_err(|error| refusal(RefusalKind::NotConfined, error.to_string()))?,
        ),
        None => None,
    };
    let (limits, supervisor, files) = (request.limits, Pid::this(), request.file_capabilities);
    // SAFETY: this program has a single thread, so the child finds no lock held and no memory half-written.
    unsafe {
        command.pre_exec(move || prepare(limits, supervisor, files, confined.as_mut()));
    }
    command.spawn().map_err(|error| refusal(program_refused(&error), format!("{program}: {error}")))
}

/// Runs in the child between fork and exec.
fn prepare(
    limits: Limits,
    supervisor: Pid,
    file_capabilities: bool,
    confined: Option<&mut PreparedConfinement>,
) -> io::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    if getppid() != supervisor {
        // The supervisor died before the line above.
        return Err(Errno::ESRCH.into());
    }
    let rlimits = [
        (Resource::RLIMIT_CORE, Some(0)),
        (Resource::RLIMIT_AS, limits.memory_bytes),
        (Resource::RLIMIT_FSIZE, limits.file_bytes),
        (Resource::RLIMIT_NOFILE, limits.open_files),
        (Resource::RLIMIT_NPROC, limits.processes),
    ];
    for (resource, limit) in rlimits {
        if let Some(limit) = limit {
            let (_, most) = getrlimit(resource)?;
            setrlimit(resource, limit.min(most), limit.min(most))?;
        }
    }
    prctl::set_no_new_privs()?;
    if let Some(confined) = confined {
        confined.enter()?;
    }
    capabilities::keep(if file_capabilities { capabilities::FILES } else { &[] })?;
    // Last: until here only SIGKILL can interrupt the child.
    SigSet::empty().thread_set_mask()?;
    Ok(())
}

fn program_refused(error: &io::Error) -> RefusalKind {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => RefusalKind::ProgramNotFound,
        io::ErrorKind::PermissionDenied => RefusalKind::ProgramNotExecutable,
        io::ErrorKind::ArgumentListTooLong => RefusalKind::ArgumentsTooLong,
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => RefusalKind::OutOfResources,
        _ if error.raw_os_error() == Some(Errno::ENOEXEC as i32) => RefusalKind::ProgramNotExecutable,
        _ if error.raw_os_error() == Some(NOT_CONFINED as i32) => RefusalKind::NotConfined,
        _ => RefusalKind::Other,
    }
}

fn directory_refused(error: &io::Error) -> RefusalKind {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => RefusalKind::DirectoryNotFound,
        _ => RefusalKind::Other,
    }
}

fn refusal(kind: RefusalKind, detail: String) -> Refusal {
    Refusal { kind, detail }
}
