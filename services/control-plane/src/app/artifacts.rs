//! Artifacts: files with tool output that was too long for the tool result.

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2},
};
use remuda_domain::{
    Code, Error, RunId, ToolCallId, error::Result, identity::Principal, session::SessionRef, step::Step,
};

use super::App;

/// The largest file that can be downloaded.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// A file that a tool call of a run left in the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    pub call: ToolCallId,
    pub tool: String,
    /// Such as `output`, `stdout` or `stderr`; unique within its call.
    pub name: String,
    /// Relative to the workspace's root.
    pub path: String,
}

fn artifacts(steps: &[Step]) -> Vec<Artifact> {
    let outcomes = steps.iter().filter_map(Step::call_outcome);
    let files = outcomes.flat_map(|outcome| {
        let named = outcome.output.get("artifacts").and_then(|named| named.as_object());
        named.into_iter().flatten().filter_map(|(name, path)| {
            let (call, tool) = (outcome.id, outcome.tool.clone());
            Some(Artifact { call, tool, name: name.clone(), path: path.as_str()?.to_owned() })
        })
    });
    files.collect()
}

impl App {
    /// The artifacts of a run, in the order of its calls.
    pub async fn list_artifacts(&self, caller: &Principal, run: RunId) -> Result<Vec<Artifact>> {
        Ok(artifacts(&self.list_steps(caller, run).await?))
    }

    /// Reads an artifact. It can be read only if this process sees the workers' directories.
    pub async fn read_artifact(
        &self,
        caller: &Principal,
        run: RunId,
        call: ToolCallId,
        name: &str,
    ) -> Result<Vec<u8>> {
        let found = self.list_artifacts(caller, run).await?;
        let found = found.into_iter().find(|artifact| artifact.call == call && artifact.name == name);
        let artifact = found.ok_or_else(|| Error::new(Code::FileNotFound, "the run left no such file"))?;
        let session = SessionRef::Id(self.get_run(caller, run).await?.session);
        let workspace = self.store.get_session(caller.tenant, &session).await?.workspace;
        let root = PathBuf::from(self.store.get_workspace(caller.tenant, workspace).await?.root);
        let (tenant, roots) =
            (self.store.get_tenant(caller.tenant).await?, Arc::clone(&self.workspace_roots));
        let read = tokio::task::spawn_blocking(move || {
            let real = roots.admit(&tenant.name, &root).map_err(|refusal| refusal.for_tenant())?;
            read_beneath(&real, Path::new(&artifact.path))
        });
        read.await.map_err(|error| Error::internal("reading the file failed").with_source(error))?
    }
}

/// Reads a file beneath a directory without links in its path. Processes of the session may change the path meanwhile, but cannot lead out of the
/// directory: the kernel resolves the path and follows no link.
fn read_beneath(root: &Path, path: &Path) -> Result<Vec<u8>> {
    let gone = |error: Errno| {
        let message = "the file is gone, or this server does not see the workers' directories";
        Error::new(Code::FileNotFound, message).with_source(error)
    };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let exact = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    let directory = openat2(AT_FDCWD, root, exact).map_err(gone)?;
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let resolve = ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_MAGICLINKS
        | ResolveFlag::RESOLVE_NO_XDEV;
    let file = openat2(&directory, path, OpenHow::new().flags(flags).resolve(resolve)).map_err(gone)?;
    let file = File::from(file);
    let unreadable =
        |error: std::io::Error| Error::new(Code::FileNotFound, "the file cannot be read").with_source(error);
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(Error::new(Code::FileNotFound, "it is not a regular file"));
    }
    if metadata.len() > MAX_BYTES {
        return Err(Error::new(Code::TooLarge, format!("the file is larger than {MAX_BYTES} bytes")));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_regular_files_of_the_workspace_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        std::fs::create_dir_all(root.join("inside")).unwrap();
        std::fs::write(root.join("inside/file"), "hello").unwrap();
        std::fs::write(directory.path().join("secret"), "no").unwrap();
        symlink(directory.path(), root.join("out")).unwrap();
        symlink(root.join("inside/file"), root.join("link")).unwrap();
        let read = |path: &str| read_beneath(&root, Path::new(path));
        assert_eq!(read("inside/file").unwrap(), b"hello");
        for path in ["../secret", "out/secret", "link", "/etc/passwd", "inside", "nothing", ""] {
            assert_eq!(read(path).unwrap_err().code(), Code::FileNotFound, "{path}");
        }
    }
}
