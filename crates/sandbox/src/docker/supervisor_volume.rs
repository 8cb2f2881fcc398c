//! Volume that provides the supervisor program to every container.

use std::sync::Arc;

use bollard::{
    body_full,
    models::{ContainerCreateBody, HostConfig, VolumeCreateRequest},
    query_parameters::{CreateContainerOptions, UploadToContainerOptions},
};
use parking_lot::{Mutex, MutexGuard};
use remuda_domain::{SandboxId, error::Result};
use tokio::sync::OnceCell;

use super::{
    create::{SUPERVISOR_DIRECTORY, supervisor_mount},
    engine::Engine,
    names,
};
use crate::{
    remote::{Creator, Image},
    supervisor_binary,
};

const FILE: &str = "remuda-supervisor";
const BLOCK: usize = 512;

/// The supervisor volume of one backend, created when the first container needs it.
#[derive(Debug, Default)]
pub(super) struct SupervisorVolume {
    /// Its name, once it exists.
    filled: Mutex<Arc<OnceCell<String>>>,
}

/// The name of a backend's volume.
pub(super) fn name(creator: &Creator) -> String {
    format!("remuda-{}", creator.backend)
}

impl SupervisorVolume {
    /// Creates the volume if it does not exist yet. Concurrent callers share one attempt.
    pub(super) async fn ensure(&self, engine: &Engine, creator: &Creator, image: &Image) -> Result<()> {
        let filled = Arc::clone(&self.lock());
        filled.get_or_try_init(|| create_and_fill(engine, creator, image)).await.map(drop)
    }

    /// Marks the volume as missing, because it may have been removed.
    pub(super) fn forget(&self) {
        *self.lock() = Arc::default();
    }

    /// Removes the volume, if it was created.
    pub(super) async fn remove(&self, engine: &Engine) -> Result<()> {
        let filled = std::mem::take(&mut *self.lock());
        match filled.get() {
            Some(name) => engine.remove_volume(name).await,
            None => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Arc<OnceCell<String>>> {
        self.filled.lock()
    }
}

/// Creates the volume and stores the program in it. Files can be uploaded only through a container, which is
/// never started.
async fn create_and_fill(engine: &Engine, creator: &Creator, image: &Image) -> Result<String> {
    let (sandbox, volume) = (SandboxId::new(), name(creator));
    let labels = creator.labels(sandbox, None);
    let request = VolumeCreateRequest {
        name: Some(volume.clone()),
        labels: Some(labels.clone()),
        ..Default::default()
    };
    engine
        .call(|docker| async move { docker.create_volume(request).await })
        .await
        .map_err(|failure| failure.into_error("create a volume"))?;
    let body = ContainerCreateBody {
        image: Some(image.id.clone()),
        entrypoint: Some(vec![FILE.to_owned()]),
        labels: Some(labels),
        network_disabled: Some(true),
        host_config: Some(HostConfig {
            mounts: Some(vec![supervisor_mount(&volume, false)]),
            network_mode: Some("none".to_owned()),
            ..Default::default()
        }),
        ..Default::default()
    };
    let options = CreateContainerOptions { name: Some(names::name(sandbox, None)), platform: String::new() };
    let container = engine
        .call(|docker| async move { docker.create_container(Some(options), body).await })
        .await
        .map_err(|failure| failure.into_error("create a container for the supervisor"))?
        .id;
    let uploaded = upload(engine, &container).await;
    engine.remove_container(&container).await?;
    uploaded.map(|()| volume)
}

async fn upload(engine: &Engine, container: &str) -> Result<()> {
    let options = UploadToContainerOptions { path: SUPERVISOR_DIRECTORY.to_owned(), ..Default::default() };
    // Never compressed: engines unpack with a program of the container, as root (CVE-2026-41567).
    let archive = archive(FILE, supervisor_binary::bytes());
    engine
        .call(|docker| async move {
            docker.upload_to_container(container, Some(options), body_full(archive.into())).await
        })
        .await
        .map_err(|failure| failure.into_error("store the supervisor"))
}

/// A tar archive of one executable file.
fn archive(name: &str, contents: &[u8]) -> Vec<u8> {
    let mut header = [0u8; BLOCK];
    let size = format!("{:011o}\0", contents.len());
    let fields: [(usize, &[u8]); 9] = [
        (0, name.as_bytes()),
        (100, b"0000755\0"),
        (108, b"0000000\0"),
        (116, b"0000000\0"),
        (124, size.as_bytes()),
        (136, b"00000000000\0"),
        // The checksum field counts as spaces.
        (148, b"        "),
        (156, b"0"),
        (257, b"ustar\x0000"),
    ];
    for (at, field) in fields {
        header[at..at + field.len()].copy_from_slice(field);
    }
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());

    let mut archive = Vec::with_capacity(contents.len() + 4 * BLOCK);
    archive.extend_from_slice(&header);
    archive.extend_from_slice(contents);
    // Padded to whole blocks; two empty blocks mark the end.
    archive.resize(archive.len().next_multiple_of(BLOCK) + 2 * BLOCK, 0);
    archive
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tar_reads_the_archive() {
        let directory = tempfile::tempdir().unwrap();
        let contents = [7u8; 700];
        std::fs::write(directory.path().join("a.tar"), archive("tool", &contents)).unwrap();
        let listed = std::process::Command::new("tar")
            .args(["-xpf", "a.tar"])
            .current_dir(directory.path())
            .status()
            .unwrap();
        assert!(listed.success());
        let file = directory.path().join("tool");
        assert_eq!(std::fs::read(&file).unwrap(), contents);
        let mode = std::os::unix::fs::PermissionsExt::mode(&file.metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o755);
    }
}
