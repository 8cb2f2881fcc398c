//! The Docker backend.
//!
//! Needs an engine: `cargo xtask test` finds one or starts a private one.

#![expect(
    clippy::expect_used,
    clippy::print_stderr,
    reason = "tests fail by panicking, and `Drop` can only tell"
)]

mod attacks;
mod copying;
mod daemon;
mod faults;
mod image;
mod lab;
mod life;
mod policy;

use self::lab::Lab;
use crate::bench::Bench;

async fn bench() -> Bench {
    let lab = Lab::new().await;
    let mut request = lab.request();
    // Of its own, because what is beside the workspace counts, too.
    let outside = lab::readable_directory();
    request.workspace_root = outside.path().join("workspace");
    let sandbox = remuda_sandbox::Backend::acquire(&lab.backend, &request).await.unwrap();
    Bench::over(sandbox, outside).holding(lab)
}

crate::backend_suite!(crate::docker::bench);
