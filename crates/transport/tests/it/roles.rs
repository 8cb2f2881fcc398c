//! What each role may do on a real server with the accounts that Remuda generates, and what is refused.

use std::{path::Path, time::Duration};

use async_nats::{Client, ConnectOptions, Event as NatsEvent, ServerError};
use futures::StreamExt as _;
use remuda_domain::Pool;
use remuda_testkit::{NatsServer, nats_binaries};
use remuda_transport::{BusRole, Nats, NatsAuth, NatsOptions, Transport};
use tokio::{sync::mpsc, time::timeout};

use crate::support::LONG;

/// A server with the accounts of an installation.
pub(crate) struct SecuredServer {
    pub(crate) server: NatsServer,
    auth: NatsAuth,
    directory: tempfile::TempDir,
}

impl SecuredServer {
    pub(crate) fn start(binary: &Path) -> Self {
        let auth = NatsAuth::with_keys("remuda").unwrap();
        let server = NatsServer::start_with(binary, &auth.server_config()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        for role in BusRole::ALL {
            let file = directory.path().join(role.as_str());
            std::fs::write(file, auth.credentials_file(role).unwrap()).unwrap();
        }
        Self { server, auth, directory }
    }

    pub(crate) fn options(&self, role: BusRole) -> NatsOptions {
        NatsOptions {
            servers: vec![self.server.url()],
            credentials_file: Some(self.directory.path().join(role.as_str())),
            manages_stream: matches!(role, BusRole::ControlPlane | BusRole::Admin),
            request_timeout: Duration::from_secs(2),
            ..NatsOptions::default()
        }
    }

    async fn probe(&self, role: BusRole) -> Probe {
        let file = self.auth.credentials_file(role).unwrap();
        let seed = file.lines().last().unwrap().to_owned();
        let inbox = format!("_INBOX.{}", nkeys::KeyPair::from_seed(&seed).unwrap().public_key());
        let (refused, refusals) = mpsc::unbounded_channel();
        let client = ConnectOptions::with_nkey(seed)
            .event_callback(move |event| {
                if let NatsEvent::ServerError(ServerError::Other(text)) = event {
                    refused.send(text).ok();
                }
                std::future::ready(())
            })
            .connect(self.server.url())
            .await
            .unwrap();
        Probe { client, refusals, inbox }
    }
}

/// A client that finds out what the server refuses.
struct Probe {
    client: Client,
    refusals: mpsc::UnboundedReceiver<String>,
    inbox: String,
}

impl Probe {
    /// The subjects of `subjects` that the server lets it publish to.
    async fn may_publish(&mut self, subjects: &[&str]) -> Vec<String> {
        for subject in subjects {
            // Without a body, no call of the API changes anything.
            self.client.publish((*subject).to_owned(), "".into()).await.unwrap();
        }
        self.not_refused(subjects).await
    }

    async fn may_subscribe(&mut self, subjects: &[&str]) -> Vec<String> {
        let mut subscribers = Vec::new();
        for subject in subjects {
            subscribers.push(self.client.subscribe((*subject).to_owned()).await.unwrap());
        }
        self.not_refused(subjects).await
    }

    /// The server refuses in the order of the commands, so everything before the last one has been decided.
    async fn not_refused(&mut self, subjects: &[&str]) -> Vec<String> {
        self.client.publish(LAST, "".into()).await.unwrap();
        let mut refused = Vec::new();
        loop {
            let text = timeout(LONG, self.refusals.recv()).await.unwrap().unwrap();
            let subject = text.split('"').nth(1).unwrap_or_else(|| panic!("{text}")).to_owned();
            if subject == LAST {
                break;
            }
            refused.push(subject);
        }
        let allowed = subjects.iter().map(|subject| (*subject).to_owned());
        allowed.filter(|subject| !refused.contains(subject)).collect()
    }
}

/// A subject that no role but the administrator may publish to.
const LAST: &str = "refused.last";

const PUBLISH: [&str; 34] = [
    "remuda.ready.default.t.s",
    "remuda.grants.w",
    "remuda.control.w",
    "remuda.events.t.s",
    "remuda.deltas.t.s",
    "remuda.ends.p",
    "remuda.offers",
    "remuda.notices",
    "remuda.nobody",
    "remuda.other",
    "other.events.t.s",
    "_INBOX.x",
    "$JS.API.INFO",
    "$JS.API.STREAM.INFO.REMUDA_TOKENS",
    "$JS.API.STREAM.CREATE.REMUDA_TOKENS",
    "$JS.API.STREAM.UPDATE.REMUDA_TOKENS",
    "$JS.API.STREAM.DELETE.REMUDA_TOKENS",
    "$JS.API.STREAM.PURGE.REMUDA_TOKENS",
    "$JS.API.STREAM.MSG.GET.REMUDA_TOKENS",
    "$JS.API.STREAM.MSG.DELETE.REMUDA_TOKENS",
    "$JS.API.STREAM.CREATE.OTHER",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.LIST",
    "$JS.API.CONSUMER.LIST.REMUDA_TOKENS",
    "$JS.API.CONSUMER.NAMES.REMUDA_TOKENS",
    "$JS.API.CONSUMER.INFO.REMUDA_TOKENS.pool-default",
    "$JS.API.CONSUMER.CREATE.REMUDA_TOKENS.pool-default.remuda.ready.default",
    "$JS.API.CONSUMER.DURABLE.CREATE.REMUDA_TOKENS.pool-default",
    "$JS.API.CONSUMER.DELETE.REMUDA_TOKENS.pool-default",
    "$JS.API.CONSUMER.MSG.NEXT.REMUDA_TOKENS.pool-default",
    "$JS.API.CONSUMER.MSG.NEXT.OTHER.pool-default",
    "$JS.ACK.REMUDA_TOKENS.pool-default.1.2.3.4.5",
    "$JS.ACK.OTHER.pool-default.1.2.3.4.5",
    "$SYS.REQ.SERVER.PING",
];

const SUBSCRIBE: [&str; 19] = [
    ">",
    "remuda.>",
    "remuda.*.t.s",
    "remuda.events.>",
    "remuda.events.t.s",
    "remuda.deltas.>",
    "remuda.deltas.t.s",
    "remuda.grants.*",
    "remuda.grants.w",
    "remuda.control.w",
    "remuda.ends.p",
    "remuda.offers",
    "remuda.notices",
    "remuda.ready.>",
    "_INBOX.>",
    "_INBOX.other.>",
    "$JS.API.>",
    "$JS.ACK.>",
    "$SYS.>",
];

/// Common to all roles.
const HEALTH: [&str; 5] = [
    "remuda.nobody",
    "$JS.API.INFO",
    "$JS.API.STREAM.INFO.REMUDA_TOKENS",
    "$JS.API.CONSUMER.LIST.REMUDA_TOKENS",
    "$JS.API.CONSUMER.INFO.REMUDA_TOKENS.pool-default",
];
const CONSUMERS: [&str; 3] = [
    "$JS.API.CONSUMER.CREATE.REMUDA_TOKENS.pool-default.remuda.ready.default",
    "$JS.API.CONSUMER.DURABLE.CREATE.REMUDA_TOKENS.pool-default",
    "$JS.API.CONSUMER.DELETE.REMUDA_TOKENS.pool-default",
];

/// The subjects in the order of `all`.
fn sorted(all: &[&str], parts: &[&[&str]]) -> Vec<String> {
    let known: Vec<&str> = parts.concat();
    assert!(known.iter().all(|subject| all.contains(subject)));
    all.iter().filter(|subject| known.contains(subject)).map(|subject| (*subject).to_owned()).collect()
}

#[tokio::test]
async fn server_refuses_everything_that_a_role_does_not_need() {
    let expected: [(BusRole, Vec<String>, &[&str]); 3] = [
        (
            BusRole::ControlPlane,
            sorted(
                &PUBLISH,
                &[
                    &PUBLISH[..4],
                    &["remuda.ends.p", "remuda.notices"],
                    &[
                        "$JS.API.STREAM.CREATE.REMUDA_TOKENS",
                        "$JS.API.STREAM.UPDATE.REMUDA_TOKENS",
                        "$JS.API.STREAM.MSG.GET.REMUDA_TOKENS",
                        "$JS.API.STREAM.MSG.DELETE.REMUDA_TOKENS",
                        "$JS.API.CONSUMER.NAMES.REMUDA_TOKENS",
                    ],
                    &HEALTH,
                    &CONSUMERS,
                ],
            ),
            &[
                "remuda.events.>",
                "remuda.events.t.s",
                "remuda.deltas.>",
                "remuda.deltas.t.s",
                "remuda.ends.p",
                "remuda.offers",
                "remuda.notices",
            ],
        ),
        (
            BusRole::Worker,
            sorted(
                &PUBLISH,
                &[
                    &["remuda.ready.default.t.s", "remuda.control.w", "remuda.events.t.s"],
                    &["remuda.deltas.t.s", "remuda.ends.p", "remuda.offers", "remuda.notices"],
                    &[
                        "$JS.API.CONSUMER.MSG.NEXT.REMUDA_TOKENS.pool-default",
                        "$JS.ACK.REMUDA_TOKENS.pool-default.1.2.3.4.5",
                    ],
                    &HEALTH,
                    &CONSUMERS,
                ],
            ),
            &["remuda.grants.*", "remuda.grants.w", "remuda.control.w", "remuda.notices"],
        ),
        (
            BusRole::Stream,
            sorted(&PUBLISH, &[&["remuda.control.w", "remuda.notices"], &HEALTH]),
            &[
                "remuda.events.>",
                "remuda.events.t.s",
                "remuda.deltas.>",
                "remuda.deltas.t.s",
                "remuda.notices",
            ],
        ),
    ];
    for binary in nats_binaries() {
        let server = SecuredServer::start(&binary);
        for (role, publish, subscribe) in &expected {
            let mut probe = server.probe(*role).await;
            assert_eq!(probe.may_publish(&PUBLISH).await, *publish, "{role:?}");
            assert_eq!(probe.may_subscribe(&SUBSCRIBE).await, *subscribe, "{role:?}");
            let own = format!("{}.*", probe.inbox);
            assert_eq!(probe.may_subscribe(&[&own]).await, std::slice::from_ref(&own), "{role:?}");
        }
        let mut admin = server.probe(BusRole::Admin).await;
        let mut everything = admin.client.subscribe(">").await.unwrap();
        for subject in ["remuda.events.t.s", "remuda.grants.w", LAST] {
            admin.client.publish(subject, "".into()).await.unwrap();
            let received = timeout(LONG, everything.next()).await.unwrap().unwrap();
            assert_eq!(received.subject.as_str(), subject);
        }
        assert!(admin.refusals.try_recv().is_err());
    }
}

#[tokio::test]
async fn clients_without_credentials_are_refused() {
    for binary in nats_binaries() {
        let server = SecuredServer::start(&binary);
        let url = server.server.url();
        assert!(async_nats::connect(&url).await.is_err());
        assert!(async_nats::connect(url.replace("//", "//remuda-admin:x@")).await.is_err());
        let stranger = nkeys::KeyPair::new_user().seed().unwrap();
        assert!(ConnectOptions::with_nkey(stranger).connect(&url).await.is_err());
        let refused = NatsOptions { credentials_file: None, ..server.options(BusRole::Worker) };
        let refused = Nats::connect(refused).await.unwrap_err();
        assert!(refused.chain().contains("authorization violation"), "{}", refused.chain());
    }
}

#[tokio::test]
async fn passwords_are_accepted_in_the_address() {
    for binary in nats_binaries() {
        let auth = NatsAuth::with_passwords("remuda").unwrap();
        let server = NatsServer::start_with(&binary, &auth.server_config()).unwrap();
        let url = auth.url(BusRole::ControlPlane, server.address()).unwrap();
        let nats = Nats::connect(NatsOptions { servers: vec![url], ..NatsOptions::default() }).await.unwrap();
        nats.provision(&[Pool::default()]).await.unwrap();
        nats.ping().await.unwrap();
    }
}

#[tokio::test]
async fn connection_is_encrypted_if_the_authority_is_trusted() {
    let directory = tempfile::tempdir().unwrap();
    let certificate = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let [file, key] = ["cert.pem", "key.pem"].map(|name| directory.path().join(name));
    std::fs::write(&file, certificate.cert.pem()).unwrap();
    std::fs::write(&key, certificate.signing_key.serialize_pem()).unwrap();
    for binary in nats_binaries() {
        let auth = NatsAuth::with_keys("remuda").unwrap();
        let tls = format!("tls {{ cert_file: \"{}\", key_file: \"{}\" }}\n", file.display(), key.display());
        let server = NatsServer::start_with(&binary, &(tls + &auth.server_config())).unwrap();
        let options = NatsOptions {
            servers: vec![format!("tls://{}", server.address())],
            key: Some(auth.credentials_file(BusRole::ControlPlane).unwrap()),
            ..NatsOptions::default()
        };
        let refused = Nats::connect(options.clone()).await.unwrap_err();
        assert!(refused.chain().contains("certificate"), "{}", refused.chain());
        let nats = Nats::connect(NatsOptions { ca_file: Some(file.clone()), ..options }).await.unwrap();
        nats.provision(&[Pool::default()]).await.unwrap();
        nats.ping().await.unwrap();
    }
}
