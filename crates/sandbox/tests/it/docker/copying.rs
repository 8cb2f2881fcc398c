//! Workspaces that are copied instead of mounted, and containers made in advance.

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
    Backend, Command, ExistingKind, Sandbox, SandboxBook, SandboxRequest, docker::WarmTarget,
};

use super::lab::{Lab, eventually, run, shell};
use crate::bench::{LONG, code};

fn copied(lab: &Lab) -> SandboxRequest {
    let mut request = lab.request();
    request.policy.workspace = WorkspaceAccess::Copy;
    request
}

async fn sandbox(lab: &Lab) -> Arc<dyn Sandbox> {
    lab.backend.acquire(&copied(lab)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_travel_both_ways() {
    let lab = Lab::new().await;
    let root = lab.workspace();
    std::fs::create_dir_all(root.join("d/e")).unwrap();
    std::fs::write(root.join("d/e/tool"), "#!/bin/sh\necho ran\n").unwrap();
    std::fs::set_permissions(root.join("d/e/tool"), PermissionsExt::from_mode(0o755)).unwrap();
    symlink("e/tool", root.join("d/link")).unwrap();
    std::fs::write(root.join("old"), "old").unwrap();
    let sandbox = sandbox(&lab).await;

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
    // The same size and nearly the same time.
    for number in 0..20 {
        sandbox.write_file("n", format!("{number:02}").into_bytes(), overwrite).await.unwrap();
        let result = shell(&*sandbox, &format!("cat n; echo -n {:02} > n", number + 50)).await;
        assert_eq!(result.stdout.text, format!("{number:02}"));
        assert_eq!(std::fs::read_to_string(root.join("n")).unwrap(), format!("{:02}", number + 50));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_files_and_many_files_travel() {
    let lab = Lab::new().await;
    let root = lab.workspace();
    std::fs::create_dir_all(&root).unwrap();
    let large: Vec<u8> = (0..20_000_000u32).map(|number| (number % 251) as u8).collect();
    std::fs::write(root.join("large"), &large).unwrap();
    for number in 0..1500 {
        std::fs::write(root.join(format!("small-{number}")), number.to_string()).unwrap();
    }
    let sandbox = sandbox(&lab).await;
    let result =
        shell(&*sandbox, "ls | wc -l; cat large large > twice; for i in small-*; do mv $i $i.moved; done")
            .await;
    assert_eq!(result.stdout.text.trim(), "1501", "{}", result.stderr.text);
    assert_eq!(std::fs::read(root.join("twice")).unwrap(), [large.clone(), large].concat());
    assert_eq!(std::fs::read_to_string(root.join("small-1499.moved")).unwrap(), "1499");
    assert_eq!(std::fs::read_dir(&root).unwrap().count(), 1502);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_dangerous_does_not_come_back() {
    let lab = Lab::new().await;
    let root = lab.workspace();
    let sandbox = sandbox(&lab).await;
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
    // A link over here that leads out is not followed when something comes back to that place.
    let outside = lab.outside.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    symlink(&outside, root.join("trap")).unwrap();
    let error = run(&*sandbox, Command::shell("mkdir trap; echo x > trap/file", LONG)).await.unwrap_err();
    assert!(error.to_string().contains("cannot be copied back"), "{error}");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_have_a_size() {
    let lab = Lab::new().await;
    let mut request = copied(&lab);
    request.policy.limits.scratch_bytes = 4 << 20;
    std::fs::create_dir_all(lab.workspace()).unwrap();
    std::fs::write(lab.workspace().join("large"), vec![0; 5 << 20]).unwrap();
    let sandbox = lab.backend.acquire(&request).await.unwrap();
    let error = run(&*sandbox, Command::shell("true", LONG)).await.unwrap_err();
    assert_eq!((error.code(), error.field()), (Code::TooLarge, Some("workspace")));
    std::fs::remove_file(lab.workspace().join("large")).unwrap();
    let kept = shell(&*sandbox, "head -c 6000000 /dev/zero > filled; stat -c %s filled").await.stdout.text;
    assert!(kept.trim().parse::<u64>().unwrap() <= 4 << 20, "{kept}");
    assert_eq!(std::fs::metadata(lab.workspace().join("filled")).unwrap().len().to_string(), kept.trim());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_kills_the_porter_is_copied_back_all_the_same() {
    let lab = Lab::new().await;
    let sandbox = sandbox(&lab).await;
    run(&*sandbox, Command::shell("echo a > a; kill -9 -1", LONG)).await.unwrap();
    assert_eq!(std::fs::read_to_string(lab.workspace().join("a")).unwrap(), "a\n");
    assert_eq!(shell(&*sandbox, "cat a").await.stdout.text, "a\n");
}

/// A book that remembers the states of every sandbox.
#[derive(Debug, Default)]
struct Book(Mutex<Vec<(SandboxId, Option<SandboxState>, bool)>>);

#[async_trait]
impl SandboxBook for Book {
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
async fn spares_are_kept_given_away_and_written_down() {
    let book = Arc::new(Book::default());
    let written = Arc::clone(&book);
    let image = super::image::shared_busybox(&super::lab::client(&super::lab::host()).await).await;
    let mut lab = Lab::with(|options| {
        options.book = Some(written);
        options.warm = vec![WarmTarget {
            image: image.name.clone(),
            count: 2,
            network: NO_NETWORK.to_owned(),
            limits: ResourceLimits::default(),
        }];
    })
    .await;
    assert_eq!(lab.image.name, image.name);
    let spares = || async {
        let found = lab.backend.list().await.unwrap();
        let spares = found.iter().filter(|it| it.what == ExistingKind::Container && it.holder.is_none());
        spares.map(|spare| spare.sandbox).collect::<Vec<_>>()
    };
    eventually("two spares", || async { spares().await.len() == 2 }).await;
    let ready = spares().await;
    let request = copied(&lab);
    let sandbox = lab.backend.acquire(&request).await.unwrap();
    assert_eq!(shell(&*sandbox, "echo hi > f; cat f").await.stdout.text, "hi\n");
    let given = sandbox.place().unwrap().sandbox;
    assert!(ready.contains(&given));
    eventually("its holder is known", || async {
        let found = lab.backend.list().await.unwrap();
        let found = found.iter().find(|it| it.what == ExistingKind::Container && it.sandbox == given);
        found
            .and_then(|it| it.holder)
            .is_some_and(|holder| holder.session == request.session && holder.epoch == 1)
    })
    .await;
    eventually("two spares again", || async { spares().await.len() == 2 }).await;
    // A session whose workspace is mounted cannot have one.
    let mounted = lab.sandbox().await;
    assert!(!spares().await.is_empty() && !ready.contains(&mounted.place().unwrap().sandbox));
    drop((sandbox, mounted));
    lab.close().await;

    let book = book.0.lock().unwrap();
    let states: Vec<_> =
        book.iter().filter(|(id, ..)| *id == given).map(|(_, state, held)| (*state, *held)).collect();
    let expected = [
        (Some(SandboxState::Creating), false),
        (Some(SandboxState::Spare), false),
        (Some(SandboxState::Active), true),
        (None, false),
    ];
    assert_eq!(states, expected);
    for (id, ..) in book.iter() {
        assert!(book.iter().any(|(other, state, _)| other == id && state.is_none()), "{id} is not forgotten");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_book_that_cannot_be_written_is_an_error_and_leaves_nothing() {
    #[derive(Debug)]
    struct Closed;

    #[async_trait]
    impl SandboxBook for Closed {
        async fn save(&self, _record: &SandboxRecord) -> remuda_domain::Result<()> {
            Err(remuda_domain::Error::unavailable("closed"))
        }

        async fn forget(&self, _sandbox: SandboxId) -> remuda_domain::Result<()> {
            Ok(())
        }
    }

    let lab = Lab::with(|options| options.book = Some(Arc::new(Closed))).await;
    assert_eq!(code(lab.backend.acquire(&lab.request()).await), Code::Unavailable);
    eventually("nothing is left", || async { lab.containers().await.is_empty() }).await;
    tokio::time::timeout(Duration::from_secs(20), lab.backend.check(&lab.request())).await.unwrap().unwrap();
}
