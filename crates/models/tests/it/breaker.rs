//! Circuit breakers of endpoints.

use std::time::Duration;

use remuda_domain::{
    error::Code,
    model::{ModelDefinition, Secret},
};
use remuda_models::{ModelOptions, Models};
use serde_json::json;

use crate::{
    fixtures::{Wire, assert_usual_response, call_model, model, options, request, user},
    test_server::{Reply, Server},
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
        max_breaker_wait: Duration::ZERO,
        ..options()
    }
}

#[tokio::test]
async fn open_breaker_rejects_calls_without_a_request() {
    for wire in Wire::BOTH {
        let server = Server::start([unavailable()]).await;
        let (models, definition, request) =
            (Models::new(fragile()), model(wire, &server), request(vec![user("Hi")]));
        for _ in 0..2 {
            call_model(&models, &definition, &request).await.0.unwrap_err();
        }
        let error = call_model(&models.clone(), &definition, &request).await.0.unwrap_err();
        assert_eq!((error.code(), server.requests().len()), (Code::ModelUnavailable, 2));
        assert!(error.retry_delay().is_some_and(|delay| delay > Duration::from_secs(3500)));
        // A definition with another key has another breaker.
        let other = ModelDefinition { key: Some(Secret::new("another")), ..definition };
        call_model(&models, &other, &request).await.0.unwrap_err();
        assert_eq!(server.requests().len(), 3);
    }
}

#[tokio::test]
async fn successful_probe_closes_the_breaker() {
    let wire = Wire::OpenAi;
    let server = Server::start([unavailable(), unavailable(), Reply::stream(&wire.full_stream())]).await;
    // Open for no time: the next call may probe.
    let models = Models::new(ModelOptions { breaker_open: Duration::ZERO, ..fragile() });
    let (definition, request) = (model(wire, &server), request(vec![user("Hi")]));
    for _ in 0..2 {
        call_model(&models, &definition, &request).await.0.unwrap_err();
    }
    for _ in 0..3 {
        assert_usual_response(&call_model(&models, &definition, &request).await.0.unwrap());
    }
}

#[tokio::test]
async fn call_waits_for_a_breaker_that_opens_during_its_retries() {
    let wire = Wire::Anthropic;
    let server = Server::start([unavailable(), unavailable(), Reply::stream(&wire.full_stream())]).await;
    let models = Models::new(ModelOptions {
        max_attempts: 5,
        breaker_open: Duration::from_millis(50),
        max_breaker_wait: Duration::from_secs(60),
        ..fragile()
    });
    let response = call_model(&models, &model(wire, &server), &request(vec![user("Hi")])).await.0.unwrap();
    assert_usual_response(&response);
    assert_eq!((response.attempts, server.requests().len()), (3, 3));
}

#[tokio::test]
async fn refused_requests_do_not_open_the_breaker() {
    let refused = Reply::json("400 Bad Request", &json!({}));
    let limited = Reply::json("429 Too Many Requests", &json!({}));
    for reply in [refused, limited] {
        let server = Server::start([reply]).await;
        let (models, definition) = (Models::new(fragile()), model(Wire::OpenAi, &server));
        for _ in 0..5 {
            call_model(&models, &definition, &request(vec![user("Hi")])).await.0.unwrap_err();
        }
        assert_eq!(server.requests().len(), 5);
    }
}

#[tokio::test]
async fn least_recently_used_endpoint_is_evicted() {
    let server = Server::start([unavailable()]).await;
    let models = Models::new(ModelOptions { max_endpoints: 2, breaker_failures: 1, ..fragile() });
    let definition =
        |key: &str| ModelDefinition { key: Some(Secret::new(key)), ..model(Wire::OpenAi, &server) };
    for key in ["a", "b", "c"] {
        call_model(&models, &definition(key), &request(vec![user("Hi")])).await.0.unwrap_err();
    }
    assert_eq!(server.requests().len(), 3);
    call_model(&models, &definition("c"), &request(vec![user("Hi")])).await.0.unwrap_err();
    assert_eq!(server.requests().len(), 3, "the newest is remembered");
    call_model(&models, &definition("a"), &request(vec![user("Hi")])).await.0.unwrap_err();
    assert_eq!(server.requests().len(), 4, "the oldest was forgotten");
}
