//! Workspace roots: which directories can be registered, and what happens to a workspace that is no longer allowed.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use remuda_domain::{Code, RunState};
use remuda_proto::v1;
use remuda_testkit::nats_binaries;
use serde_json::Value;
use sqlx::Connection as _;

use crate::{
    api::{bash, state, submission, wait_for_end},
    cluster::{Cluster, Services},
    harness::{Cli, Dev, temporary_directory},
};

/// The directory of the tenants' own workspaces.
fn own_directories(services: &Services) -> PathBuf {
    let found = services.variables.iter().find(|(name, _)| name == "REMUDA_WORKSPACES__ROOT");
    found.unwrap().1.clone().into()
}

async fn refusal(operator: &Cli, root: &Path) -> String {
    let add = ["workspace", "add", "site", root.to_str().unwrap(), "--tenant", "acme", "--json"];
    let refused = operator.run(&add).await;
    let expected = ("workspace_not_allowed".to_owned(), "root".to_owned());
    assert_eq!(refused.error(), expected, "{}: {}", root.display(), refused.stderr);
    refused.stderr
}

#[tokio::test]
async fn system_directories_and_directories_of_others_cannot_be_registered() {
    let cluster = Cluster::start(&nats_binaries()[0], 0).await;
    cluster.services.create_key("globex", &["write"]).await;
    let own = own_directories(&cluster.services);
    fs::create_dir_all(own.join("globex")).unwrap();
    let temp = temporary_directory();
    symlink("/etc", temp.path().join("etc")).unwrap();
    symlink(own.join("globex"), temp.path().join("globex")).unwrap();
    for root in [
        Path::new("/"),
        Path::new("/etc"),
        Path::new("/proc/self/root"),
        &own,
        &own.join("globex"),
        &own.join("globex/deep"),
        &temp.path().join("etc/new"),
        &temp.path().join("globex/new"),
    ] {
        refusal(&cluster.operator, root).await;
    }
    let told = refusal(&cluster.operator, Path::new("/elsewhere/project")).await;
    let allowed = [own.join("acme"), std::env::temp_dir()];
    assert!(allowed.iter().all(|path| told.contains(path.to_str().unwrap())), "{told}");

    for (name, root) in [("own", own.join("acme/docs")), ("allowed", temp.path().join("docs"))] {
        let add = ["workspace", "add", name, root.to_str().unwrap(), "--tenant", "acme"];
        cluster.operator.one(&add).await;
    }
    assert_eq!(cluster.cli.json(&["workspace", "list"]).await.len(), 3, "with the default one");
}

/// Submits a command and a message in a workspace, and returns the codes with which both fail.
async fn failures(cluster: &Cluster, workspace: &str, session: &str) -> [String; 2] {
    let client = cluster.client();
    let message = v1::MessageInput { text: "hello".to_owned(), ..Default::default() };
    let tools = submission(&format!("{session}-tools"), vec![bash("touch made")]);
    let message = v1::SubmitRunRequest {
        input: Some(v1::submit_run_request::Input::Message(message)),
        ..submission(&format!("{session}-message"), Vec::new())
    };
    let mut codes = Vec::new();
    for request in [tools, message] {
        let request = v1::SubmitRunRequest { workspace: workspace.to_owned(), ..request };
        let run = client.submit(request).await.unwrap().run.unwrap();
        let ended = wait_for_end(&client, &run.id).await;
        assert_eq!(state(&ended), RunState::Failed, "{ended:?}");
        let failure = ended.failure.unwrap();
        assert!(!failure.message.contains('/'), "a tenant sees no path: {}", failure.message);
        codes.push(failure.code);
    }
    codes.try_into().unwrap()
}

#[tokio::test]
async fn link_that_replaces_a_registered_directory_leads_nowhere() {
    let cluster = Cluster::start(&nats_binaries()[0], 1).await;
    let own = own_directories(&cluster.services);
    let (victim, site) = (own.join("globex"), own.join("acme/site"));
    fs::create_dir_all(&victim).unwrap();
    fs::create_dir_all(&site).unwrap();
    let add = ["workspace", "add", "site", site.to_str().unwrap(), "--tenant", "acme"];
    cluster.operator.one(&add).await;
    let run =
        ["run", "--tool", "Bash", "--arg", "command=touch made", "--workspace", "site", "--session", "s"];
    assert_eq!(cluster.cli.one(&run).await["state"], "completed");
    assert!(site.join("made").is_file());

    fs::remove_dir_all(&site).unwrap();
    symlink(&victim, &site).unwrap();
    assert_eq!(failures(&cluster, "site", "swapped").await, ["workspace_not_allowed"; 2]);
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 0);
}

#[tokio::test]
async fn workspace_from_before_the_roots_is_refused_and_listed_by_doctor() {
    let cluster = Cluster::start(&nats_binaries()[0], 1).await;
    let mut database = sqlx::PgConnection::connect(&cluster.services.database.url()).await.unwrap();
    // Once, every directory could be registered.
    let moved = "UPDATE workspaces SET root = '/etc' WHERE name = 'default'";
    sqlx::query(moved).execute(&mut database).await.unwrap();
    assert_eq!(failures(&cluster, "", "old").await, ["workspace_not_allowed"; 2]);
    assert!(!Path::new("/etc/made").try_exists().unwrap());

    let doctor = cluster.services.run(&["doctor", "--mode", "split", "--json"]).await;
    let report: &Value = &doctor.documents()[0];
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == "workspaces allowed").unwrap();
    assert_eq!(check["level"], "warning", "{check}");
    let found = check["found"].as_str().unwrap();
    assert!(found.contains("1 of 1") && found.contains("default of acme (/etc)"), "{found}");
}

#[tokio::test]
async fn embedded_server_without_keys_works_in_any_directory_but_those_of_the_system() {
    let dev = Dev::start().await;
    let project = temporary_directory();
    let tool = ["run", "--tool", "Bash", "--arg", "command=touch made"];
    let within = async |root: &Path, session: &str| {
        let more = ["--dir", root.to_str().unwrap(), "--session", session, "--json"];
        dev.cli.run(&[&tool[..], &more].concat()).await
    };
    let done = within(project.path(), "project").await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(project.path().join("made").is_file());
    // Above the data directory, as a home directory is.
    assert_eq!(within(dev.directory.path(), "above").await.code, 0);
    for refused in [Path::new("/etc"), Path::new("/"), &dev.directory.path().join("data")] {
        let done = within(refused, "refused").await;
        assert_eq!(done.error().0, Code::WorkspaceNotAllowed.as_str(), "{}", refused.display());
    }
}

#[tokio::test]
async fn migrate_names_the_keys_that_no_longer_cover_the_fleet() {
    let services = Services::start(&nats_binaries()[0]);
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations/postgres");
    let mut files: Vec<PathBuf> = fs::read_dir(files).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let earlier = temporary_directory();
    let is_new = |file: &PathBuf| file.to_str().unwrap().ends_with("_operator_keys.sql");
    for file in files.iter().take_while(|file| !is_new(file)) {
        fs::copy(file, earlier.path().join(file.file_name().unwrap())).unwrap();
    }
    let mut database = sqlx::PgConnection::connect(&services.database.url()).await.unwrap();
    let migrator = sqlx::migrate::Migrator::new(earlier.path()).await.unwrap();
    migrator.run(&mut database).await.unwrap();
    let id = remuda_domain::TenantId::new().as_uuid();
    let tenant = "INSERT INTO tenants (id, name, created_at) VALUES ($1, 'acme', now())";
    sqlx::query(tenant).bind(id).execute(&mut database).await.unwrap();
    let key = "INSERT INTO api_keys (id, tenant_id, name, secret_hash, scopes, created_at, revoked_at) \
               VALUES ($1, $2, $3, $4, $5, now(), $6)";
    let mut ids = Vec::new();
    for (number, (name, scopes)) in
        [("ops", "write admin"), ("ci", "write"), ("gone", "admin")].into_iter().enumerate()
    {
        ids.push(remuda_domain::ApiKeyId::new());
        let insert = sqlx::query(key).bind(ids[number].as_uuid()).bind(id).bind(name);
        let insert = insert.bind(vec![u8::try_from(number).unwrap(); 32]).bind(scopes);
        let revoked = (name == "gone").then(chrono::Utc::now);
        insert.bind(revoked).execute(&mut database).await.unwrap();
    }
    let migrated = services.run(&["migrate"]).await;
    assert_eq!(migrated.code, 0, "{}", migrated.stderr);
    let told = &migrated.stdout;
    assert!(told.contains("1 key has the scope admin"), "{told}");
    assert!(told.contains(&format!("{} ops of tenant acme", ids[0])), "{told}");
    assert!(told.contains("remuda keys create --scope operator"), "{told}");
    assert!(!told.contains(&ids[1].to_string()) && !told.contains(&ids[2].to_string()), "{told}");
    let again = services.run(&["migrate"]).await;
    assert!(!again.stdout.contains("admin"), "{}", again.stdout);
}
