//! Which files other users of the machine may read.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use nix::sys::signal::Signal;
use remuda_testkit::wait_for;
use serde_json::{Value, json};

use crate::{
    harness::{CommandOutput, Dev, Server, TIMEOUT, temporary_directory},
    http_client::HttpClient,
};

/// All files and directories beneath a directory, and itself, with their modes. Sockets and workspaces' contents, which
/// tools create, are left out.
fn modes(directory: &Path) -> Vec<(PathBuf, u32)> {
    let mut found = vec![(directory.to_owned(), mode(directory))];
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(modes(&path));
        } else {
            found.push((path.clone(), mode(&path)));
        }
    }
    found
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn data_and_workspaces_are_for_their_owner_alone() {
    let dev = Dev::start().await;
    let data = dev.directory.path().join("data");
    let http = HttpClient::new(dev.server.endpoint());
    let run = http.submit("s", &json!([{ "tool": "Glob", "arguments": { "pattern": "*" } }])).await;
    wait_for("the run to end", TIMEOUT, || async {
        http.get(&format!("/runs/{run}")).await.body["state"] == "completed"
    })
    .await;
    let found = modes(&data);
    for (path, mode) in &found {
        let expected = if path.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(*mode, expected, "{}: {mode:o}", path.display());
    }
    for name in ["remuda.db", "remuda.db-wal", "remuda.db-shm", "lock", "workspaces/default"] {
        assert!(found.iter().any(|(path, _)| path.ends_with(name)), "no {name} in {found:?}");
    }
}

#[tokio::test]
async fn existing_data_is_restricted_by_a_start_and_reported_by_the_doctor() {
    let directory = temporary_directory();
    let data = directory.path().join("data");
    let mut dev = Dev::start_in(directory, &[]).await;
    dev.server.process.signal(Signal::SIGTERM);
    assert_eq!(dev.server.process.exit_code().await, 0);
    let Dev { directory, .. } = dev;
    // As an earlier version left it.
    fs::create_dir_all(data.join("workspaces")).unwrap();
    for name in ["", "workspaces"] {
        set_mode(&data.join(name), 0o755);
    }
    set_mode(&data.join("remuda.db"), 0o644);

    let modes = modes_according_to_the_doctor(&data).await;
    assert_eq!(modes["level"], "warning", "{modes}");
    for part in [data.to_str().unwrap(), "0755", "remuda.db", "0644"] {
        assert!(modes["found"].as_str().unwrap().contains(part), "{modes}");
    }
    assert!(modes["mend"].as_str().unwrap().contains("chmod"), "{modes}");

    let dev = Dev::start_in(directory, &[]).await;
    assert_eq!(mode(&data), 0o700);
    assert_eq!(mode(&data.join("workspaces")), 0o700);
    assert_eq!(mode(&data.join("remuda.db")), 0o600);
    assert_eq!(modes_according_to_the_doctor(&data).await["level"], "ok");
    drop(dev);
}

/// A directory that others may write to, such as /tmp, is not taken from them.
#[tokio::test]
async fn shared_directory_is_left_alone_and_said() {
    let directory = temporary_directory();
    let data = directory.path().join("data");
    fs::create_dir(&data).unwrap();
    set_mode(&data, 0o1777);
    let arguments = ["dev", "--data-dir", data.to_str().unwrap(), "--listen", "127.0.0.1:0"];
    let server = Server::start(&arguments, &[]).await;
    assert_eq!(mode(&data), 0o1777);
    assert_eq!(mode(&data.join("remuda.db")), 0o600);
    server.process.wait_for_stderr("other users of this machine may read this").await;
}

async fn modes_according_to_the_doctor(data: &Path) -> Value {
    let set = format!("data_dir={}", data.display());
    let arguments = ["doctor", "--json", "--set", &set];
    let report = CommandOutput::run(&arguments, &[]).await.documents().remove(0);
    let checks = report["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == "file modes").unwrap_or_else(|| panic!("{report}")).clone()
}
