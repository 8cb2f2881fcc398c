//! What each call of the API requires, compared with `docs/keys.md`.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use prost_reflect::DescriptorPool;
use remuda_domain::{Code, identity::Scope};
use remuda_proto::status::from_status;
use remuda_testkit::nats_binaries;
use reqwest::{Method, StatusCode};
use serde_json::json;
use tonic::Request;

use crate::{
    cluster::Cluster,
    http_client::{HttpClient, send, with_json},
    raw_grpc::RawGrpc,
};

const DOCUMENT: &str = include_str!("../../../../docs/keys.md");

/// The scope of each gRPC method and of each HTTP operation, as documented. `None`: no key is needed.
fn documented() -> (BTreeMap<String, Option<Scope>>, BTreeMap<String, Option<Scope>>) {
    let (mut grpc, mut http) = (BTreeMap::new(), BTreeMap::new());
    let rows = DOCUMENT.lines().skip_while(|line| !line.starts_with("| gRPC |")).skip(2);
    for row in rows.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let [_, method, operation, scope, _] = cells[..] else { panic!("{row}") };
        let scope = (scope != "none").then(|| scope.parse().unwrap());
        if method != "–" {
            assert_eq!(grpc.insert(method.to_owned(), scope), None, "{row}");
        }
        assert_eq!(http.insert(operation.to_owned(), scope), None, "{row}");
    }
    (grpc, http)
}

/// The secrets of keys with one scope each.
async fn keys(cluster: &Cluster) -> Vec<(Scope, String)> {
    let mut keys = Vec::new();
    for scope in Scope::ALL {
        let secret = match scope {
            Scope::Operator => cluster.services.create_operator_key().await,
            _ => cluster.services.create_key("acme", &[scope.as_str()]).await.1,
        };
        keys.push((scope, secret));
    }
    keys
}

/// Whether a key with a scope may make a call, or, without a key, whether anyone may.
fn expected(held: Option<Scope>, needed: Option<Scope>) -> Result<(), Code> {
    match (held, needed) {
        (_, None) => Ok(()),
        (None, Some(_)) => Err(Code::Unauthenticated),
        (Some(held), Some(needed)) if held.includes(needed) => Ok(()),
        (Some(_), Some(_)) => Err(Code::PermissionDenied),
    }
}

/// What a refusal says about the key; any other failure is about the request, which is empty.
fn refusal(code: Code) -> Result<(), Code> {
    if matches!(code, Code::Unauthenticated | Code::PermissionDenied) { Err(code) } else { Ok(()) }
}

#[tokio::test]
async fn every_call_requires_its_documented_scope() {
    let cluster = Cluster::start(&nats_binaries()[0], 0).await;
    let keys = keys(&cluster).await;
    let callers: Vec<(Option<Scope>, Option<&str>)> = std::iter::once((None, None))
        .chain(keys.iter().map(|(scope, secret)| (Some(*scope), Some(secret.as_str()))))
        .collect();
    let (grpc, http) = documented();
    check_grpc(cluster.control_plane.endpoint(), &grpc, &callers).await;
    check_http(cluster.control_plane.endpoint(), &http, &callers).await;
    // The stream service serves its calls itself.
    let of_streams = grpc.into_iter().filter(|(method, _)| method.starts_with("StreamService/")).collect();
    call_grpc(cluster.stream.endpoint(), &of_streams, &callers).await;
}

async fn check_grpc(
    endpoint: &str,
    documented: &BTreeMap<String, Option<Scope>>,
    callers: &[(Option<Scope>, Option<&str>)],
) {
    let pool = DescriptorPool::decode(remuda_proto::FILE_DESCRIPTOR_SET).unwrap();
    let methods: BTreeSet<String> = pool
        .services()
        .filter(|service| service.package_name() == "remuda.v1")
        .flat_map(|service| service.methods().collect::<Vec<_>>())
        .map(|method| format!("{}/{}", method.parent_service().name(), method.name()))
        .collect();
    assert_eq!(methods, documented.keys().cloned().collect(), "docs/keys.md lists every method");
    call_grpc(endpoint, documented, callers).await;
}

/// Calls every method with an empty message.
async fn call_grpc(
    endpoint: &str,
    methods: &BTreeMap<String, Option<Scope>>,
    callers: &[(Option<Scope>, Option<&str>)],
) {
    let client = RawGrpc::connect(endpoint).await;
    for (method, needed) in methods {
        for (held, secret) in callers {
            let mut request = Request::new(Bytes::new());
            if let Some(secret) = secret {
                request.metadata_mut().insert("authorization", format!("Bearer {secret}").parse().unwrap());
            }
            // A stream of events that begins well is the answer; so its end is not awaited.
            let answer = client.open(&format!("remuda.v1.{method}"), request).await;
            let answer = answer.map(drop).or_else(|status| refusal(from_status(&status).code()));
            assert_eq!(answer, expected(*held, *needed), "{method} with {held:?}");
        }
    }
}

async fn check_http(
    endpoint: &str,
    documented: &BTreeMap<String, Option<Scope>>,
    callers: &[(Option<Scope>, Option<&str>)],
) {
    let web = HttpClient::new(endpoint);
    let api = web.get("//openapi.json").await.body;
    let mut operations = BTreeSet::new();
    for (path, item) in api["paths"].as_object().unwrap() {
        let path = match path.strip_prefix("/api/v1") {
            Some("") => "/".to_owned(),
            Some(path) => path.to_owned(),
            None => format!("/{path}"),
        };
        let methods = ["get", "put", "post", "patch", "delete"].into_iter();
        operations.extend(
            methods
                .filter(|method| item.get(method).is_some())
                .map(|method| format!("{} {path}", method.to_uppercase())),
        );
    }
    assert_eq!(operations, documented.keys().cloned().collect(), "docs/keys.md lists every operation");
    for (operation, needed) in documented {
        let (method, path) = operation.split_once(' ').unwrap();
        let method: Method = method.parse().unwrap();
        let path = if path == "/" { "" } else { path };
        let path: Vec<&str> =
            path.split('/').map(|part| if part.starts_with('{') { "unknown" } else { part }).collect();
        for (held, secret) in callers {
            let caller = secret.map_or_else(|| web.clone(), |secret| web.with_key(secret));
            let request = caller.request(method.clone(), &path.join("/"));
            let request = if method == Method::GET { request } else { with_json(request, &json!({})) };
            let answer = match send(request).await.status {
                StatusCode::UNAUTHORIZED => Err(Code::Unauthenticated),
                StatusCode::FORBIDDEN => Err(Code::PermissionDenied),
                _ => Ok(()),
            };
            assert_eq!(answer, expected(*held, *needed), "{operation} with {held:?}");
        }
    }
}
