//! Errors and retries, for both wire formats.

use std::time::Duration;

use remuda_domain::{
    error::{Code, Error},
    model::FinishReason,
};
use remuda_models::{Delta, ModelOptions, Models};
use serde_json::json;

use crate::{
    fixtures::{
        KEY, Wire, assert_usual_response, call_model, call_with_options, call_with_replies, model, options,
        request, user,
    },
    test_server::{Reply, Server},
};

/// The error of a call that is not retried.
async fn error_of_single_attempt(wire: Wire, reply: Reply) -> Error {
    let (result, _, server) = call_with_replies(wire, [reply]).await;
    assert_eq!(server.requests().len(), 1, "{wire:?}");
    result.unwrap_err()
}

/// Checks that the failure is transient: the second attempt succeeds.
async fn succeeds_on_retry(wire: Wire, reply: Reply) {
    let (result, received, server) =
        call_with_replies(wire, [reply, Reply::stream(&wire.full_stream())]).await;
    let response = result.unwrap();
    assert_usual_response(&response);
    assert_eq!((response.attempts, server.requests().len()), (2, 2), "{wire:?}");
    assert_eq!(received.text(), "Grüß dich, Welt", "{wire:?}");
}

#[tokio::test]
async fn response_does_not_depend_on_chunk_sizes() {
    for wire in Wire::BOTH {
        for size in [1, 2, 3, 7, 64, usize::MAX] {
            let (result, received, _) =
                call_with_replies(wire, [Reply::stream(&wire.full_stream()).cut(size)]).await;
            let response = result.unwrap();
            assert_usual_response(&response);
            assert_eq!((response.finish, response.attempts), (FinishReason::ToolCalls, 1));
            let usage = response.usage;
            assert_eq!(
                (usage.input_tokens, usage.output_tokens, usage.cached_input_tokens),
                (11, 7, 4),
                "{wire:?}"
            );
            let expected = [
                Delta::Text("Grüß dich,".to_owned()),
                Delta::Text(" Welt".to_owned()),
                Delta::ToolRequested { name: "Read".to_owned() },
            ];
            assert_eq!(received.deltas(), expected, "{wire:?}");
        }
    }
}

#[tokio::test]
async fn all_line_endings_and_comments_are_accepted() {
    for wire in Wire::BOTH {
        let stream = wire.full_stream();
        let variants = [
            stream.replace('\n', "\r\n"),
            stream.replace('\n', "\r"),
            stream.replace("data: ", "data:"),
            format!(": hello\n\n{}", stream.replace("\n\n", "\n\n: keep-alive\n\n")),
            stream.trim_end().to_owned(),
            format!("\n\n{stream}"),
            format!("\u{feff}{stream}"),
            stream.replace("data: {", "id: 7\nretry: 100\ndata: {\ndata: "),
        ];
        for variant in variants {
            let (result, _, _) = call_with_replies(wire, [Reply::stream(&variant).cut(5)]).await;
            assert_usual_response(&result.unwrap());
        }
    }
}

#[tokio::test]
async fn truncated_stream_is_retried_after_a_restart_delta() {
    for wire in Wire::BOTH {
        for reply in [Reply::stream(&wire.partial_stream()), Reply::stream(&wire.partial_stream()).breaks()] {
            let (result, received, _) =
                call_with_replies(wire, [reply, Reply::stream(&wire.full_stream())]).await;
            let response = result.unwrap();
            assert_usual_response(&response);
            assert_eq!(response.attempts, 2);
            assert_eq!(received.restarts(), 1);
            assert_eq!(received.text(), "Grüß dich, Welt");
            let restarted = received.deltas().iter().position(|delta| *delta == Delta::Restarted).unwrap();
            assert_eq!(restarted, 1, "between the failed and the successful attempt");
        }
        // In the middle of an event, and before the first byte.
        let partial_stream = wire.partial_stream();
        succeeds_on_retry(wire, Reply::stream(&partial_stream[..partial_stream.len() - 9])).await;
        succeeds_on_retry(wire, Reply::stream("")).await;
        succeeds_on_retry(wire, Reply::stream("").breaks()).await;
    }
}

#[tokio::test]
async fn retry_without_earlier_deltas_emits_no_restart() {
    for wire in Wire::BOTH {
        let unavailable = Reply::json("503 Service Unavailable", &json!({}));
        let (result, received, _) =
            call_with_replies(wire, [unavailable, Reply::stream(&wire.full_stream())]).await;
        assert_usual_response(&result.unwrap());
        assert_eq!(received.restarts(), 0);
    }
}

#[tokio::test]
async fn errors_in_the_middle_of_a_stream_are_classified() {
    let overloaded = json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}});
    let refused = json!({"type": "error", "error": {"type": "invalid_request_error", "message": format!("bad key {KEY}")}});
    for wire in Wire::BOTH {
        let partial_stream = wire.partial_stream();
        succeeds_on_retry(
            wire,
            Reply::stream(&format!("{partial_stream}event: error\ndata: {overloaded}\n\n")),
        )
        .await;
        succeeds_on_retry(wire, Reply::stream(&format!("{partial_stream}data: {overloaded}\n\n"))).await;
        let error =
            error_of_single_attempt(wire, Reply::stream(&format!("{partial_stream}data: {refused}\n\n")))
                .await;
        assert_eq!(error.code(), Code::ModelRequestRefused);
        assert!(error.message().ends_with("bad key ***"), "{error}");
    }
}

#[tokio::test]
async fn transient_errors_are_retried() {
    for wire in Wire::BOTH {
        let page = "<html><body><h1>502 Bad Gateway</h1></body></html>";
        succeeds_on_retry(wire, Reply::new("502 Bad Gateway", "text/html", page)).await;
        for status in [
            "408 Request Timeout",
            "409 Conflict",
            "429 Too Many Requests",
            "500 Internal Server Error",
            "503 Service Unavailable",
            "504 Gateway Timeout",
            "529 Overloaded",
        ] {
            succeeds_on_retry(wire, Reply::json(status, &json!({"error": {"message": "later"}}))).await;
        }
    }
}

#[tokio::test]
async fn permanent_errors_end_the_call() {
    for wire in Wire::BOTH {
        let page = Reply::new("502 Bad Gateway", "text/html", "<html>\u{7}</html>");
        let (result, _, server) = call_with_replies(wire, [page]).await;
        let error = result.unwrap_err();
        assert_eq!((error.code(), server.requests().len()), (Code::ModelUnavailable, 3), "all attempts");
        assert!(error.message().ends_with("answered 502 Bad Gateway: a web page"), "{error}");

        let table = [
            ("400 Bad Request", Code::ModelRequestRefused),
            ("403 Forbidden", Code::ModelKeyRefused),
            ("404 Not Found", Code::ModelRequestRefused),
            ("422 Unprocessable Entity", Code::ModelRequestRefused),
        ];
        for (status, code) in table {
            let error = error_of_single_attempt(
                wire,
                Reply::json(status, &json!({"error": {"message": "no\u{1b}[31m way\n"}})),
            )
            .await;
            assert_eq!(error.code(), code);
            assert!(error.message().ends_with("no [31m way"), "{error}");
        }
        let long = json!({"error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 5 maximum"}});
        let error = error_of_single_attempt(wire, Reply::json("400 Bad Request", &long)).await;
        assert_eq!(error.code(), Code::ContextTooLong);
        let told_so = Reply::json("503 Service Unavailable", &json!({})).header("x-should-retry", "false");
        assert_eq!(error_of_single_attempt(wire, told_so).await.code(), Code::ModelUnavailable);
    }
}

#[tokio::test]
async fn key_is_redacted_even_if_the_server_echoes_it() {
    for wire in Wire::BOTH {
        let echo = format!("the key {KEY} (Bearer {KEY}) is wrong");
        let replies = [
            Reply::json("401 Unauthorized", &json!({"error": {"message": echo, "code": KEY}})),
            Reply::new("401 Unauthorized", "text/plain", &echo),
            Reply::new("401 Unauthorized", "text/plain", &format!("{}{echo}", "x".repeat(495))),
        ];
        for reply in replies {
            let error = error_of_single_attempt(wire, reply).await;
            assert_eq!(error.code(), Code::ModelKeyRefused);
            let shown = format!("{error:?} {error} {}", error.chain());
            assert!(!shown.contains("secret") && !shown.contains("sk-very"), "{shown}");
        }
        let echoed = Reply::stream(&format!(
            "data: {{\"error\": {{\"message\": \"{KEY}\", \"type\": \"authentication_error\"}}}}\n\n"
        ));
        let error = error_of_single_attempt(wire, echoed).await;
        assert!(!format!("{error:?}").contains(KEY));
        let server = Server::start([Reply::stream(&wire.full_stream())]).await;
        let shown = format!("{:?} {:?}", Models::new(options()), model(wire, &server));
        assert!(!shown.contains(KEY));
    }
}

#[tokio::test]
async fn retry_after_headers_are_respected_up_to_a_limit() {
    let limited = || Reply::json("429 Too Many Requests", &json!({"error": {"message": "slow down"}}));
    for wire in Wire::BOTH {
        succeeds_on_retry(wire, limited().header("retry-after", "0")).await;
        succeeds_on_retry(wire, limited().header("retry-after-ms", "1")).await;
        succeeds_on_retry(wire, limited().header("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT")).await;
        // Too long to wait for: the delay is passed to the caller.
        let error = error_of_single_attempt(wire, limited().header("retry-after", "61")).await;
        assert_eq!(
            (error.code(), error.retry_delay()),
            (Code::ModelOverloaded, Some(Duration::from_secs(61)))
        );
        let options = ModelOptions { max_attempts: 1, ..options() };
        let (result, _, _) = call_with_options(wire, [limited().header("retry-after", "5")], options).await;
        assert_eq!(result.unwrap_err().retry_delay(), Some(Duration::from_secs(5)), "out of attempts");
    }
}

#[tokio::test]
async fn call_waits_as_long_as_the_server_asks() {
    let limited = Reply::json("429 Too Many Requests", &json!({})).header("retry-after-ms", "150");
    let start = std::time::Instant::now();
    succeeds_on_retry(Wire::OpenAi, limited).await;
    assert!(start.elapsed() >= Duration::from_millis(150));
}

#[tokio::test]
async fn invalid_responses_are_retried_and_then_reported() {
    for wire in Wire::BOTH {
        let broken = format!("{}data: {{\"not\": json}}\n\n", wire.partial_stream());
        succeeds_on_retry(wire, Reply::stream(&broken)).await;
        for reply in [
            Reply::stream(&broken),
            Reply::new("200 OK", "application/json", "{\"choices\": ["),
            Reply::json("200 OK", &json!({"hello": 1})),
        ] {
            let (result, _, server) = call_with_replies(wire, [reply]).await;
            assert_eq!(
                (result.unwrap_err().code(), server.requests().len()),
                (Code::ModelAnswerInvalid, 3),
                "{wire:?}"
            );
        }
        let error =
            error_of_single_attempt(wire, Reply::new("200 OK", "text/html", "<!doctype html><p>Sign in"))
                .await;
        assert_eq!(error.code(), Code::ModelAnswerInvalid);
    }
}

#[tokio::test]
async fn invalid_definitions_are_rejected_without_a_request() {
    for wire in Wire::BOTH {
        let server = Server::start([Reply::stream(&wire.full_stream())]).await;
        let full_stream = model(wire, &server);
        let secret = |text: &str| remuda_domain::model::Secret::new(text);
        let mut table = Vec::new();
        for url in ["nonsense", "ftp://host", "https://user:pass@host/"] {
            table.push((
                "url",
                remuda_domain::model::ModelDefinition { url: Some(url.to_owned()), ..full_stream.clone() },
            ));
        }
        table.push((
            "key",
            remuda_domain::model::ModelDefinition { key: Some(secret("two\nlines")), ..full_stream.clone() },
        ));
        for (name, value) in [("bad name", "x"), ("content-length", "5"), ("x-fine", "not\nfine")] {
            let headers = [(name.to_owned(), secret(value))].into();
            table
                .push(("headers.", remuda_domain::model::ModelDefinition { headers, ..full_stream.clone() }));
        }
        for extra in [json!([1]), json!({"messages": []}), json!({"stream": false})] {
            let metadata = [("extra_body".to_owned(), extra)].into_iter().collect();
            table.push((
                "metadata.extra_body",
                remuda_domain::model::ModelDefinition { metadata, ..full_stream.clone() },
            ));
        }
        for (field, definition) in table {
            let error = call_model(&Models::new(options()), &definition, &request(vec![user("Hi")]))
                .await
                .0
                .unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{error}");
            assert!(error.field().unwrap().starts_with(field), "{error}");
            assert!(
                !error.chain().contains("lines") && !error.chain().contains("pass@"),
                "{}",
                error.chain()
            );
        }
        assert_eq!(server.requests().len(), 0);
    }
}
