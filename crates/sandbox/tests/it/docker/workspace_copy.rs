//! Copied workspaces and spare containers.

use std::{
    os::unix::fs::{PermissionsExt, symlink},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use remuda_domain::{
    Code, SandboxId,
    execution::{NO_NETWORK, ResourceLimits, SandboxRecord, SandboxState, WorkspaceAccess},
};
use remuda_sandbox::{
    Backend, Command, EngineResourceKind, Sandbox, SandboxRegistry, SandboxRequest, docker::WarmTarget,
};

use super::docker_fixture::{DockerFixture, eventually, run, shell};
use crate::fixture::{LONG, code};

fn copied(fixture: &DockerFixture) -> SandboxRequest {
    let mut request = fixture.request();
    request.policy.workspace = WorkspaceAccess::Copy;
    request
}

async fn sandbox(fixture: &DockerFixture) -> Arc<dyn Sandbox> {
    fixture.backend.acquire(&copied(fixture)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_copied_in_both_directions() {
    let fixture = DockerFixture::new().await;
    let root = fixture.workspace();
    std::fs::create_dir_all(root.join("d/e")).unwrap();
    std::fs::write(root.join("d/e/tool"), "#!/bin/sh\necho ran\n").unwrap();
    std::fs::set_permissions(root.join("d/e/tool"), PermissionsExt::from_mode(0o755)).unwrap();
    symlink("e/tool", root.join("d/link")).unwrap();
    std::fs::write(root.join("old"), "old").unwrap();
    let sandbox = sandbox(&fixture).await;

    let result = shell(
        &*sandbox,
        "d/link; cat old; rm old; mkdir -p x/y; echo made > x/y/z; ln -s y/z x/l; chmod 600 d/e/tool",
    )
    .await;
    assert_eq!(result.stdout.text, "ran\nold", "{}", result.stderr.text);
    assert!(!root.join("old").try_exists().unwrap());
    assert_eq!(std::fs::read_to_string(root.join("x/l")).unwrap(), "made\n");
    assert_eq!(std::fs::metadata(root.join("d/e/tool")).unwrap().permissions().mode() & 0o777, 0o600);

    let overwrite = remuda_sandbox::WriteMode::Overwrite;
    sandbox.write_file("x/y/z", b"written\n".to_vec(), overwrite).await.unwrap();
    sandbox.remove_file("d/link").await.unwrap();
    let result = shell(&*sandbox, "cat x/y/z; ls d; echo again > x/y/z; rm -r d; touch d").await;
    assert_eq!(result.stdout.text, "written\ne\n", "{}", result.stderr.text);
    assert_eq!(std::fs::read_to_string(root.join("x/y/z")).unwrap(), "again\n");
    assert!(root.join("d").is_file(), "a directory that became a file");
    // Same size and nearly the same modification time.
    for number in 0..20 {
        sandbox.write_file("n", format!("{number:02}").into_bytes(), overwrite).await.unwrap();
        let result = shell(&*sandbox, &format!("cat n; echo -n {:02} > n", number + 50)).await;
        assert_eq!(result.stdout.text, format!("{number:02}"));
        assert_eq!(std::fs::read_to_string(root.join("n")).unwrap(), format!("{:02}", number + 50));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_and_many_files_are_copied() {
    let fixture = DockerFixture::new().await;
    let root = fixture.workspace();
    std::fs::create_dir_all(&root).unwrap();
    let large: Vec<u8> = (0..20_000_000u32).map(|number| (number % 251) as u8).collect();
    std::fs::write(root.join("large"), &large).unwrap();
    for number in 0..1500 {
        std::fs::write(root.join(format!("small-{number}")), number.to_string()).unwrap();
    }
    let sandbox = sandbox(&fixture).await;
    let result =
        shell(&*sandbox, "ls | wc -l; cat large large > twice; for i in small-*; do mv $i $i.moved; done")
            .await;
    assert_eq!(result.stdout.text.trim(), "1501", "{}", result.stderr.text);
    assert_eq!(std::fs::read(root.join("twice")).unwrap(), [large.clone(), large].concat());
    assert_eq!(std::fs::read_to_string(root.join("small-1499.moved")).unwrap(), "1499");
    assert_eq!(std::fs::read_dir(&root).unwrap().count(), 1502);
}

#[tokio::test(flavor = "multi_thread")]
async fn dangerous_entries_are_not_copied_back() {
    let fixture = DockerFixture::new().await;
    let root = fixture.workspace();
    let sandbox = sandbox(&fixture).await;
    let script =
        "ln -s /etc/passwd absolute; ln -s ../../outside escape; mkdir d; ln -s ../.. d/up; mkfifo fifo
        ln -s . inner; printf x > '.remuda-1.tmp'; printf ok > ok; chmod 4755 ok";
    shell(&*sandbox, script).await;
    let mut names: Vec<_> = std::fs::read_dir(&root)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["d", "inner", "ok"]);
    assert_eq!(std::fs::read_dir(root.join("d")).unwrap().count(), 0);
    assert_eq!(std::fs::metadata(root.join("ok")).unwrap().permissions().mode() & 0o7777, 0o755);
    // A link on the host that leaves the workspace is not followed when files are copied back.
    let outside = fixture.outside.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    symlink(&outside, root.join("trap")).unwrap();
    let error = run(&*sandbox, Command::shell("mkdir trap; echo x > trap/file", LONG)).await.unwrap_err();
    assert!(error.to_string().contains("cannot be copied back"), "{error}");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn copied_workspace_size_is_limited() {
    let fixture = DockerFixture::new().await;
    let mut request = copied(&fixture);
    request.policy.limits.scratch_bytes = 4 << 20;
    std::fs::create_dir_all(fixture.workspace()).unwrap();
    std::fs::write(fixture.workspace().join("large"), vec![0; 5 << 20]).unwrap();
    let sandbox = fixture.backend.acquire(&request).await.unwrap();
    let error = run(&*sandbox, Command::shell("true", LONG)).await.unwrap_err();
    assert_eq!((error.code(), error.field()), (Code::TooLarge, Some("workspace")));
    std::fs::remove_file(fixture.workspace().join("large")).unwrap();
    let kept = shell(&*sandbox, "head -c 6000000 /dev/zero > filled; stat -c %s filled").await.stdout.text;
    assert!(kept.trim().parse::<u64>().unwrap() <= 4 << 20, "{kept}");
    assert_eq!(std::fs::metadata(fixture.workspace().join("filled")).unwrap().len().to_string(), kept.trim());
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_copied_back_after_the_copier_was_killed() {
    let fixture = DockerFixture::new().await;
    let sandbox = sandbox(&fixture).await;
    run(&*sandbox, Command::shell("echo a > a; kill -9 -1", LONG)).await.unwrap();
    assert_eq!(std::fs::read_to_string(fixture.workspace().join("a")).unwrap(), "a\n");
    assert_eq!(shell(&*sandbox, "cat a").await.stdout.text, "a\n");
}

/// A registry that records the states of every sandbox.
#[derive(Debug, Default)]
struct RecordingRegistry(Mutex<Vec<(SandboxId, Option<SandboxState>, bool)>>);

#[async_trait]
impl SandboxRegistry for RecordingRegistry {
    async fn save(&self, record: &SandboxRecord) -> remuda_domain::Result<()> {
        self.0.lock().unwrap().push((record.id, Some(record.state), record.holder.is_some()));
        Ok(())
    }

    async fn forget(&self, sandbox: SandboxId) -> remuda_domain::Result<()> {
        self.0.lock().unwrap().push((sandbox, None, false));
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn spares_are_refilled_assigned_and_recorded() {
    let registry = Arc::new(RecordingRegistry::default());
    let wait_for_file = Arc::clone(&registry);
    let image =
        super::image::shared_busybox(&super::docker_fixture::client(&super::docker_fixture::host()).await)
            .await;
    let mut fixture = DockerFixture::with(|options| {
        options.registry = Some(wait_for_file);
        options.warm = vec![WarmTarget {
            image: image.name.clone(),
            count: 2,
            network: NO_NETWORK.to_owned(),
            limits: ResourceLimits::default(),
        }];
    })
    .await;
    assert_eq!(fixture.image.name, image.name);
    let spares = || async {
        let found = fixture.backend.list().await.unwrap();
        let spares =
            found.iter().filter(|it| it.kind == EngineResourceKind::Container && it.holder.is_none());
        spares.map(|spare| spare.sandbox).collect::<Vec<_>>()
    };
    eventually("two spares", || async { spares().await.len() == 2 }).await;
    let ready = spares().await;
    let request = copied(&fixture);
    let sandbox = fixture.backend.acquire(&request).await.unwrap();
    assert_eq!(shell(&*sandbox, "echo hi > f; cat f").await.stdout.text, "hi\n");
    let given = sandbox.execution_site().unwrap().sandbox;
    assert!(ready.contains(&given));
    eventually("its holder is known", || async {
        let found = fixture.backend.list().await.unwrap();
        let found = found.iter().find(|it| it.kind == EngineResourceKind::Container && it.sandbox == given);
        found
            .and_then(|it| it.holder)
            .is_some_and(|holder| holder.session == request.session && holder.epoch == 1)
    })
    .await;
    eventually("two spares again", || async { spares().await.len() == 2 }).await;
    // A session with a mounted workspace cannot use a spare.
    let mounted = fixture.sandbox().await;
    assert!(!spares().await.is_empty() && !ready.contains(&mounted.execution_site().unwrap().sandbox));
    drop((sandbox, mounted));
    fixture.close().await;

    let registry = registry.0.lock().unwrap();
    let states: Vec<_> = registry
        .iter()
        .filter(|(id, ..)| *id == given)
        .map(|(_, state, dependencies)| (*state, *dependencies))
        .collect();
    let expected = [
        (Some(SandboxState::Creating), false),
        (Some(SandboxState::Spare), false),
        (Some(SandboxState::Active), true),
        (None, false),
    ];
    assert_eq!(states, expected);
    for (id, ..) in registry.iter() {
        assert!(
            registry.iter().any(|(other, state, _)| other == id && state.is_none()),
            "{id} is not forgotten"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_registry_fails_the_acquisition_without_leftovers() {
    #[derive(Debug)]
    struct FailingRegistry;

    #[async_trait]
    impl SandboxRegistry for FailingRegistry {
        async fn save(&self, _record: &SandboxRecord) -> remuda_domain::Result<()> {
            Err(remuda_domain::Error::unavailable("closed"))
        }

        async fn forget(&self, _sandbox: SandboxId) -> remuda_domain::Result<()> {
            Ok(())
        }
    }

    let fixture = DockerFixture::with(|options| options.registry = Some(Arc::new(FailingRegistry))).await;
    assert_eq!(code(fixture.backend.acquire(&fixture.request()).await), Code::Unavailable);
    eventually("nothing is left", || async { fixture.containers().await.is_empty() }).await;
    tokio::time::timeout(Duration::from_secs(20), fixture.backend.check(&fixture.request()))
        .await
        .unwrap()
        .unwrap();
}
