//! Connections: how long they are kept, and where they lead.

use std::time::Duration;

use remuda_domain::error::Code;
use remuda_domain::model::{ModelRef, Registry};
use remuda_models::{AddressRule, ModelOptions, Models};

use crate::{
    bench::{KEY, Wire, ask, assert_good, model, options, play, play_with, request, user},
    server::{Reply, Server},
};

#[tokio::test]
async fn giant_lines_and_endless_answers_are_cut_off() {
    let limits = || ModelOptions { max_event_bytes: 10_000, max_response_bytes: 100_000, ..options() };
    for wire in Wire::BOTH {
        let giant = Reply::stream(&format!("data: {}", "x".repeat(20_000)));
        let endless_line = Reply::stream("xxxxxxxxxxxxxxxx").endless();
        let endless_events = Reply::stream(": still there\n\n").endless();
        let endless_json = Reply::new("200 OK", "application/json", "{\"a\":1    ").endless();
        for reply in [giant, endless_line, endless_events, endless_json] {
            let (result, _, server) = play_with(wire, [reply], limits()).await;
            assert_eq!((result.unwrap_err().code(), server.asked().len()), (Code::ModelAnswerInvalid, 1));
        }
        // An error page does not have to end to be one.
        let options = ModelOptions { max_attempts: 1, ..limits() };
        let page = Reply::new("500 Internal Server Error", "text/plain", "no ").endless();
        assert_eq!(play_with(wire, [page], options).await.0.unwrap_err().code(), Code::ModelUnavailable);
    }
}

#[tokio::test]
async fn silence_has_limits() {
    for wire in Wire::BOTH {
        let begun = wire.begun();
        let table = [
            (Reply::silent(), 80, 60_000),
            (Reply::stream("").stalls(), 80, 60_000),
            (Reply::stream(&begun).stalls(), 60_000, 80),
        ];
        for (reply, first_byte, idle) in table {
            let options = ModelOptions {
                first_byte_timeout: Duration::from_millis(first_byte),
                idle_timeout: Duration::from_millis(idle),
                max_attempts: 1,
                ..options()
            };
            let (result, _, server) = play_with(wire, [reply.clone()], options).await;
            assert_eq!(result.unwrap_err().code(), Code::ModelTimedOut);
            server.left().await;
        }
        // However lively, an attempt ends; it is not made again.
        let options = ModelOptions {
            attempt_timeout: Duration::from_millis(80),
            max_response_bytes: usize::MAX,
            ..options()
        };
        let (result, _, server) = play_with(wire, [Reply::stream(": there\n\n").endless()], options).await;
        assert_eq!((result.unwrap_err().code(), server.asked().len()), (Code::ModelTimedOut, 1));
    }
}

#[tokio::test]
async fn a_call_that_is_dropped_closes_its_connection() {
    for wire in Wire::BOTH {
        for reply in [Reply::silent(), Reply::stream(&wire.begun()).stalls()] {
            let server = Server::start([reply]).await;
            let (models, model, request) =
                (Models::new(options()), model(wire, &server), request(vec![user("Hi")]));
            let call = ask(&models, &model, &request);
            let asked = async {
                while server.asked().is_empty() {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                _ = call => panic!("there is no answer"),
                () = asked => {}
            }
            server.left().await;
        }
    }
}

#[tokio::test]
async fn nobody_there() {
    for wire in Wire::BOTH {
        let server = Server::start([Reply::silent()]).await;
        let mut definition = model(wire, &server);
        // A port that was free a moment ago, with nobody behind it.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        definition.url = Some(format!("http://{free}/v1?token=another-secret"));
        let (result, _) = ask(&Models::new(options()), &definition, &request(vec![user("Hi")])).await;
        let error = result.unwrap_err();
        assert_eq!(error.code(), Code::ModelUnavailable);
        assert!(error.message().starts_with(&format!("cannot reach {free}: ")), "{error}");
        assert!(!error.chain().contains("secret"), "{}", error.chain());
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    for wire in Wire::BOTH {
        let other = Server::start([Reply::stream(&wire.good())]).await;
        for status in
            ["301 Moved Permanently", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"]
        {
            let to = other.url(&format!("/v1?key={KEY}"));
            let (result, _, server) =
                play(wire, [Reply::new(status, "text/plain", "").header("location", &to)]).await;
            assert_eq!(server.asked().len(), 1);
            let error = result.unwrap_err();
            assert_eq!(error.code(), Code::ModelRequestRefused);
            assert!(error.message().contains(&other.address.to_string()), "{error}");
            assert!(!error.message().contains(KEY));
        }
        assert_eq!(other.asked().len(), 0);
    }
}

#[tokio::test]
async fn connections_are_used_again() {
    for wire in Wire::BOTH {
        let server = Server::start([Reply::stream(&wire.good())]).await;
        let (models, model, request) =
            (Models::new(options()), model(wire, &server), request(vec![user("Hi")]));
        for _ in 0..5 {
            assert_good(&ask(&models, &model, &request).await.0.unwrap());
        }
        assert_eq!((server.asked().len(), server.connections()), (5, 1));
    }
}

/// Who writes a workspace's models does not decide where the operator's network is entered.
#[tokio::test]
async fn a_rule_holds_for_models_of_workspaces_only() {
    for wire in Wire::BOTH {
        let server = Server::start([Reply::stream(&wire.good()), Reply::stream(&wire.good())]).await;
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
        assert!(server.asked().is_empty());
        (model.reference, model.url) = (ModelRef::new(Registry::Platform, "m"), Some(url));
        models.generate(&model, &request(vec![user("hi")]), &|_| {}).await.unwrap();
    }
}
