//! Test images without a registry: busybox in a directory, imported.

use std::{
    collections::BTreeSet,
    os::unix::fs::symlink,
    path::Path,
    process::Command,
    sync::{Arc, Mutex, Weak},
};

use bollard::{Docker, body_full, query_parameters::CreateImageOptions};
use futures::StreamExt;

use super::docker_fixture::block_on;

/// An image that is removed with its last user.
pub(crate) struct TestImage {
    pub(crate) name: String,
    docker: Docker,
}

/// The image of most tests, created once for concurrent tests.
pub(crate) async fn shared_busybox(docker: &Docker) -> Arc<TestImage> {
    static SHARED: Mutex<Weak<TestImage>> = Mutex::new(Weak::new());
    if let Some(image) = SHARED.lock().unwrap().upgrade() {
        return image;
    }
    // A concurrent test may create another one; then there are two for a while.
    let image = Arc::new(busybox(docker).await);
    *SHARED.lock().unwrap() = Arc::downgrade(&image);
    image
}

pub(crate) async fn busybox(docker: &Docker) -> TestImage {
    let root = tempfile::tempdir().unwrap();
    busybox_root(root.path());
    TestImage::import(docker, root.path(), &[]).await
}

fn busybox_root(root: &Path) {
    let busybox = ["/usr/bin/busybox", "/bin/busybox"].map(Path::new).into_iter().find(|path| path.is_file());
    let busybox = busybox.expect("busybox is missing: install busybox-static, as `cargo xtask test` does");
    std::fs::create_dir_all(root.join("bin")).unwrap();
    std::fs::copy(busybox, root.join("bin/busybox")).unwrap();
    let list = Command::new(busybox).arg("--list").output().unwrap();
    let applets: BTreeSet<_> = String::from_utf8(list.stdout).unwrap().lines().map(str::to_owned).collect();
    assert!(applets.contains("sh"), "busybox has no shell");
    for applet in applets.iter().filter(|name| *name != "busybox") {
        symlink("busybox", root.join("bin").join(applet)).unwrap();
    }
}

impl TestImage {
    /// Imports a directory as an image. `changes` are Dockerfile instructions.
    pub(crate) async fn import(docker: &Docker, root: &Path, changes: &[&str]) -> Self {
        let unique = uuid_like();
        let name = format!("remuda-test-{unique}:1");
        let tar = Command::new("tar").arg("-C").arg(root).args(["-cf", "-", "."]).output().unwrap();
        assert!(tar.status.success());
        let options = CreateImageOptions {
            from_src: Some("-".to_owned()),
            repo: Some(name.trim_end_matches(":1").to_owned()),
            tag: Some("1".to_owned()),
            changes: changes.iter().map(|&line| line.to_owned()).collect(),
            ..Default::default()
        };
        let mut progress =
            std::pin::pin!(docker.create_image(Some(options), Some(body_full(tar.stdout.into())), None));
        while let Some(step) = progress.next().await {
            step.unwrap();
        }
        Self { name, docker: docker.clone() }
    }
}

impl Drop for TestImage {
    fn drop(&mut self) {
        let options = bollard::query_parameters::RemoveImageOptions { force: true, ..Default::default() };
        if let Err(error) = block_on(self.docker.remove_image(&self.name, Some(options), None)) {
            eprintln!("cannot remove {}: {error}", self.name);
        }
    }
}

pub(crate) fn uuid_like() -> String {
    remuda_domain::SandboxId::new().to_string().trim_start_matches("sbx_").to_lowercase()
}
