//! Connections: timeouts, limits, reuse, redirects and address rules.

use std::time::Duration;

use remuda_domain::error::Code;
use remuda_domain::model::{ModelRef, Registry};
use remuda_models::{AddressRule, ModelOptions, Models};

use crate::{
    fixtures::{
        KEY, Wire, assert_usual_response, call_model, call_with_options, call_with_replies, model, options,
        request, user,
    },
    test_server::{Reply, Server},
};

#[tokio::test]
async fn giant_lines_and_endless_responses_are_rejected() {
    let limits = || ModelOptions { max_event_bytes: 10_000, max_response_bytes: 100_000, ..options() };
    for wire in Wire::BOTH {
        let giant = Reply::stream(&format!("data: {}", "x".repeat(20_000)));
        let endless_line = Reply::stream("xxxxxxxxxxxxxxxx").endless();
        let endless_events = Reply::stream(": still there\n\n").endless();
        let endless_json = Reply::new("200 OK", "application/json", "{\"a\":1    ").endless();
        for reply in [giant, endless_line, endless_events, endless_json] {
            let (result, _, server) = call_with_options(wire, [reply], limits()).await;
            assert_eq!((result.unwrap_err().code(), server.requests().len()), (Code::ModelAnswerInvalid, 1));
        }
        // An error response counts although its body never ends.
        let options = ModelOptions { max_attempts: 1, ..limits() };
        let page = Reply::new("500 Internal Server Error", "text/plain", "no ").endless();
        assert_eq!(
            call_with_options(wire, [page], options).await.0.unwrap_err().code(),
            Code::ModelUnavailable
        );
    }
}

#[tokio::test]
async fn silent_servers_time_out() {
    for wire in Wire::BOTH {
        let partial_stream = wire.partial_stream();
        let table = [
            (Reply::silent(), 80, 60_000),
            (Reply::stream("").stalls(), 80, 60_000),
            (Reply::stream(&partial_stream).stalls(), 60_000, 80),
        ];
        for (reply, first_byte, idle) in table {
            let options = ModelOptions {
                first_byte_timeout: Duration::from_millis(first_byte),
                idle_timeout: Duration::from_millis(idle),
                max_attempts: 1,
                ..options()
            };
            let (result, _, server) = call_with_options(wire, [reply.clone()], options).await;
            assert_eq!(result.unwrap_err().code(), Code::ModelTimedOut);
            server.wait_for_disconnect().await;
        }
        // An attempt times out although it makes progress, and is not retried.
        let options = ModelOptions {
            attempt_timeout: Duration::from_millis(80),
            max_response_bytes: usize::MAX,
            ..options()
        };
        let (result, _, server) =
            call_with_options(wire, [Reply::stream(": there\n\n").endless()], options).await;
        assert_eq!((result.unwrap_err().code(), server.requests().len()), (Code::ModelTimedOut, 1));
    }
}

#[tokio::test]
async fn dropped_call_closes_its_connection() {
    for wire in Wire::BOTH {
        for reply in [Reply::silent(), Reply::stream(&wire.partial_stream()).stalls()] {
            let server = Server::start([reply]).await;
            let (models, model, request) =
                (Models::new(options()), model(wire, &server), request(vec![user("Hi")]));
            let call = call_model(&models, &model, &request);
            let request_received = async {
                while server.requests().is_empty() {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                _ = call => panic!("there is no answer"),
                () = request_received => {}
            }
            server.wait_for_disconnect().await;
        }
    }
}

#[tokio::test]
async fn unreachable_server_is_reported_without_secrets() {
    for wire in Wire::BOTH {
        let server = Server::start([Reply::silent()]).await;
        let mut definition = model(wire, &server);
        // A port that was free a moment ago and has no listener.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        definition.url = Some(format!("http://{free}/v1?token=another-secret"));
        let (result, _) = call_model(&Models::new(options()), &definition, &request(vec![user("Hi")])).await;
        let error = result.unwrap_err();
        assert_eq!(error.code(), Code::ModelUnavailable);
        assert!(error.message().starts_with(&format!("cannot reach {free}: ")), "{error}");
        assert!(!error.chain().contains("secret"), "{}", error.chain());
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    for wire in Wire::BOTH {
        let other = Server::start([Reply::stream(&wire.full_stream())]).await;
        for status in
            ["301 Moved Permanently", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"]
        {
            let to = other.url(&format!("/v1?key={KEY}"));
            let (result, _, server) =
                call_with_replies(wire, [Reply::new(status, "text/plain", "").header("location", &to)]).await;
            assert_eq!(server.requests().len(), 1);
            let error = result.unwrap_err();
            assert_eq!(error.code(), Code::ModelRequestRefused);
            assert!(error.message().contains(&other.address.to_string()), "{error}");
            assert!(!error.message().contains(KEY));
        }
        assert_eq!(other.requests().len(), 0);
    }
}

#[tokio::test]
async fn connections_are_reused() {
    for wire in Wire::BOTH {
        let server = Server::start([Reply::stream(&wire.full_stream())]).await;
        let (models, model, request) =
            (Models::new(options()), model(wire, &server), request(vec![user("Hi")]));
        for _ in 0..5 {
            assert_usual_response(&call_model(&models, &model, &request).await.0.unwrap());
        }
        assert_eq!((server.requests().len(), server.connections()), (5, 1));
    }
}

/// Tenants write workspace models, so they must not reach the operator's network.
#[tokio::test]
async fn address_rule_applies_to_workspace_models_only() {
    for wire in Wire::BOTH {
        let server =
            Server::start([Reply::stream(&wire.full_stream()), Reply::stream(&wire.full_stream())]).await;
        let rule = AddressRule::new(|_, address, _| !address.is_loopback());
        let models = Models::new(ModelOptions { workspace_rule: Some(rule), ..options() });
        let mut model = model(wire, &server);
        let url = model.url.clone().unwrap();
        for (registry, address) in
            [(Registry::Workspace, url.clone()), (Registry::Workspace, url.replace("127.0.0.1", "localhost"))]
        {
            (model.reference, model.url) = (ModelRef::new(registry, "m"), Some(address));
            let refused = models.generate(&model, &request(vec![user("hi")]), &|_| {}).await.unwrap_err();
            assert_eq!((refused.code(), refused.field()), (Code::AddressNotAllowed, Some("url")));
        }
        assert!(server.requests().is_empty());
        (model.reference, model.url) = (ModelRef::new(Registry::Platform, "m"), Some(url));
        models.generate(&model, &request(vec![user("hi")]), &|_| {}).await.unwrap();
    }
}
