//! Tests of the Docker backend.
//!
//! Needs an engine: `cargo xtask test` finds one or starts a private one.

#![expect(
    clippy::expect_used,
    clippy::print_stderr,
    reason = "tests fail by panicking, and `Drop` can only print"
)]

mod attacks;
mod daemon;
mod docker_fixture;
mod faults;
mod image;
mod lifecycle;
mod policy;
mod workspace_copy;

use self::docker_fixture::DockerFixture;
use crate::fixture::SandboxFixture;

async fn fixture() -> SandboxFixture {
    let fixture = DockerFixture::new().await;
    let mut request = fixture.request();
    // A separate directory, because the suite also checks the workspace's siblings.
    let outside = docker_fixture::readable_directory();
    request.workspace_root = outside.path().join("workspace");
    let sandbox = remuda_sandbox::Backend::acquire(&fixture.backend, &request).await.unwrap();
    SandboxFixture::over(sandbox, outside).with_dependencies(fixture)
}

crate::backend_suite!(crate::docker::fixture);
