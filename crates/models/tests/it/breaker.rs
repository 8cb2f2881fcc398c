//! Endpoints that fail are left alone for a while.

use std::time::Duration;

use remuda_domain::{
    error::Code,
    model::{ModelDefinition, Secret},
};
use remuda_models::{ModelOptions, Models};
use serde_json::json;

use crate::{
    bench::{Wire, ask, assert_good, model, options, request, user},
    server::{Reply, Server},
};

fn unavailable() -> Reply {
    Reply::json("503 Service Unavailable", &json!({}))
}

/// Opens after two failures; one attempt per call.
fn fragile() -> ModelOptions {
    ModelOptions {
        max_attempts: 1,
        breaker_failures: 2,
        breaker_open: Duration::from_secs(3600),
        breaker_patience: Duration::ZERO,
        ..options()
    }
}

#[tokio::test]
async fn an_open_breaker_asks_nobody() {
    for wire in Wire::BOTH {
        let server = Server::start([unavailable()]).await;
        let (models, definition, request) =
            (Models::new(fragile()), model(wire, &server), request(vec![user("Hi")]));
        for _ in 0..2 {
            ask(&models, &definition, &request).await.0.unwrap_err();
        }
        let error = ask(&models.clone(), &definition, &request).await.0.unwrap_err();
        assert_eq!((error.code(), server.asked().len()), (Code::ModelUnavailable, 2));
        assert!(error.retry_delay().is_some_and(|delay| delay > Duration::from_secs(3500)));
        // Another key is another matter.
        let other = ModelDefinition { key: Some(Secret::new("another")), ..definition };
        ask(&models, &other, &request).await.0.unwrap_err();
        assert_eq!(server.asked().len(), 3);
    }
}

#[tokio::test]
async fn one_call_tries_again_and_closes_it() {
    let wire = Wire::OpenAi;
    let server = Server::start([unavailable(), unavailable(), Reply::stream(&wire.good())]).await;
    // Open for no time at all: the next call may try.
    let models = Models::new(ModelOptions { breaker_open: Duration::ZERO, ..fragile() });
    let (definition, request) = (model(wire, &server), request(vec![user("Hi")]));
    for _ in 0..2 {
        ask(&models, &definition, &request).await.0.unwrap_err();
    }
    for _ in 0..3 {
        assert_good(&ask(&models, &definition, &request).await.0.unwrap());
    }
}

#[tokio::test]
async fn a_call_waits_for_a_breaker_that_opens_under_it() {
    let wire = Wire::Anthropic;
    let server = Server::start([unavailable(), unavailable(), Reply::stream(&wire.good())]).await;
    let models = Models::new(ModelOptions {
        max_attempts: 5,
        breaker_open: Duration::from_millis(50),
        breaker_patience: Duration::from_secs(60),
        ..fragile()
    });
    let response = ask(&models, &model(wire, &server), &request(vec![user("Hi")])).await.0.unwrap();
    assert_good(&response);
    assert_eq!((response.attempts, server.asked().len()), (3, 3));
}

#[tokio::test]
async fn refusals_do_not_open_it() {
    let refused = Reply::json("400 Bad Request", &json!({}));
    let limited = Reply::json("429 Too Many Requests", &json!({}));
    for reply in [refused, limited] {
        let server = Server::start([reply]).await;
        let (models, definition) = (Models::new(fragile()), model(Wire::OpenAi, &server));
        for _ in 0..5 {
            ask(&models, &definition, &request(vec![user("Hi")])).await.0.unwrap_err();
        }
        assert_eq!(server.asked().len(), 5);
    }
}

#[tokio::test]
async fn no_more_endpoints_are_remembered_than_allowed() {
    let server = Server::start([unavailable()]).await;
    let models = Models::new(ModelOptions { max_endpoints: 2, breaker_failures: 1, ..fragile() });
    let definition =
        |key: &str| ModelDefinition { key: Some(Secret::new(key)), ..model(Wire::OpenAi, &server) };
    for key in ["a", "b", "c"] {
        ask(&models, &definition(key), &request(vec![user("Hi")])).await.0.unwrap_err();
    }
    assert_eq!(server.asked().len(), 3);
    ask(&models, &definition("c"), &request(vec![user("Hi")])).await.0.unwrap_err();
    assert_eq!(server.asked().len(), 3, "the newest is remembered");
    ask(&models, &definition("a"), &request(vec![user("Hi")])).await.0.unwrap_err();
    assert_eq!(server.asked().len(), 4, "the oldest was forgotten");
}
