//! What goes wrong on both wires.

use std::time::Duration;

use remuda_domain::{
    error::{Code, Error},
    model::FinishReason,
};
use remuda_models::{Delta, ModelOptions, Models};
use serde_json::json;

use crate::{
    bench::{KEY, Wire, ask, assert_good, model, options, play, play_with, request, user},
    server::{Reply, Server},
};

/// A failure of the first and only attempt.
async fn fails_at_once(wire: Wire, reply: Reply) -> Error {
    let (result, _, server) = play(wire, [reply]).await;
    assert_eq!(server.asked().len(), 1, "{wire:?}");
    result.unwrap_err()
}

/// A failure that passes: the second attempt succeeds.
async fn passes(wire: Wire, reply: Reply) {
    let (result, told, server) = play(wire, [reply, Reply::stream(&wire.good())]).await;
    let response = result.unwrap();
    assert_good(&response);
    assert_eq!((response.attempts, server.asked().len()), (2, 2), "{wire:?}");
    assert_eq!(told.text(), "Grüß dich, Welt", "{wire:?}");
}

#[tokio::test]
async fn plain_answers_in_any_pieces() {
    for wire in Wire::BOTH {
        for size in [1, 2, 3, 7, 64, usize::MAX] {
            let (result, told, _) = play(wire, [Reply::stream(&wire.good()).cut(size)]).await;
            let response = result.unwrap();
            assert_good(&response);
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
            assert_eq!(told.deltas(), expected, "{wire:?}");
        }
    }
}

#[tokio::test]
async fn other_line_ends_comments_and_no_last_line() {
    for wire in Wire::BOTH {
        let stream = wire.good();
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
            let (result, _, _) = play(wire, [Reply::stream(&variant).cut(5)]).await;
            assert_good(&result.unwrap());
        }
    }
}

#[tokio::test]
async fn a_stream_that_ends_too_early_is_asked_for_again() {
    for wire in Wire::BOTH {
        for reply in [Reply::stream(&wire.begun()), Reply::stream(&wire.begun()).breaks()] {
            let (result, told, _) = play(wire, [reply, Reply::stream(&wire.good())]).await;
            let response = result.unwrap();
            assert_good(&response);
            assert_eq!(response.attempts, 2);
            assert_eq!(told.restarts(), 1);
            assert_eq!(told.text(), "Grüß dich, Welt");
            let restarted = told.deltas().iter().position(|delta| *delta == Delta::Restarted).unwrap();
            assert_eq!(restarted, 1, "between what was for nothing and what counts");
        }
        // In the middle of an event, and before anything.
        let begun = wire.begun();
        passes(wire, Reply::stream(&begun[..begun.len() - 9])).await;
        passes(wire, Reply::stream("")).await;
        passes(wire, Reply::stream("").breaks()).await;
    }
}

#[tokio::test]
async fn nothing_is_restarted_that_had_not_begun() {
    for wire in Wire::BOTH {
        let unavailable = Reply::json("503 Service Unavailable", &json!({}));
        let (result, told, _) = play(wire, [unavailable, Reply::stream(&wire.good())]).await;
        assert_good(&result.unwrap());
        assert_eq!(told.restarts(), 0);
    }
}

#[tokio::test]
async fn errors_in_the_middle_of_a_stream() {
    let overloaded = json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}});
    let refused = json!({"type": "error", "error": {"type": "invalid_request_error", "message": format!("bad key {KEY}")}});
    for wire in Wire::BOTH {
        let begun = wire.begun();
        passes(wire, Reply::stream(&format!("{begun}event: error\ndata: {overloaded}\n\n"))).await;
        passes(wire, Reply::stream(&format!("{begun}data: {overloaded}\n\n"))).await;
        let error = fails_at_once(wire, Reply::stream(&format!("{begun}data: {refused}\n\n"))).await;
        assert_eq!(error.code(), Code::ModelRequestRefused);
        assert!(error.message().ends_with("bad key ***"), "{error}");
    }
}

#[tokio::test]
async fn passing_faults_are_tried_again() {
    for wire in Wire::BOTH {
        let page = "<html><body><h1>502 Bad Gateway</h1></body></html>";
        passes(wire, Reply::new("502 Bad Gateway", "text/html", page)).await;
        for status in [
            "408 Request Timeout",
            "409 Conflict",
            "429 Too Many Requests",
            "500 Internal Server Error",
            "503 Service Unavailable",
            "504 Gateway Timeout",
            "529 Overloaded",
        ] {
            passes(wire, Reply::json(status, &json!({"error": {"message": "later"}}))).await;
        }
    }
}

#[tokio::test]
async fn what_does_not_pass_ends_the_call() {
    for wire in Wire::BOTH {
        let page = Reply::new("502 Bad Gateway", "text/html", "<html>\u{7}</html>");
        let (result, _, server) = play(wire, [page]).await;
        let error = result.unwrap_err();
        assert_eq!((error.code(), server.asked().len()), (Code::ModelUnavailable, 3), "all attempts");
        assert!(error.message().ends_with("answered 502 Bad Gateway: a web page"), "{error}");

        let table = [
            ("400 Bad Request", Code::ModelRequestRefused),
            ("403 Forbidden", Code::ModelKeyRefused),
            ("404 Not Found", Code::ModelRequestRefused),
            ("422 Unprocessable Entity", Code::ModelRequestRefused),
        ];
        for (status, code) in table {
            let error = fails_at_once(
                wire,
                Reply::json(status, &json!({"error": {"message": "no\u{1b}[31m way\n"}})),
            )
            .await;
            assert_eq!(error.code(), code);
            assert!(error.message().ends_with("no [31m way"), "{error}");
        }
        let long = json!({"error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 5 maximum"}});
        let error = fails_at_once(wire, Reply::json("400 Bad Request", &long)).await;
        assert_eq!(error.code(), Code::ContextTooLong);
        let told_so = Reply::json("503 Service Unavailable", &json!({})).header("x-should-retry", "false");
        assert_eq!(fails_at_once(wire, told_so).await.code(), Code::ModelUnavailable);
    }
}

#[tokio::test]
async fn the_key_is_never_told_even_if_the_server_does() {
    for wire in Wire::BOTH {
        let echo = format!("the key {KEY} (Bearer {KEY}) is wrong");
        let replies = [
            Reply::json("401 Unauthorized", &json!({"error": {"message": echo, "code": KEY}})),
            Reply::new("401 Unauthorized", "text/plain", &echo),
            Reply::new("401 Unauthorized", "text/plain", &format!("{}{echo}", "x".repeat(495))),
        ];
        for reply in replies {
            let error = fails_at_once(wire, reply).await;
            assert_eq!(error.code(), Code::ModelKeyRefused);
            let shown = format!("{error:?} {error} {}", error.chain());
            assert!(!shown.contains("secret") && !shown.contains("sk-very"), "{shown}");
        }
        let echoed = Reply::stream(&format!(
            "data: {{\"error\": {{\"message\": \"{KEY}\", \"type\": \"authentication_error\"}}}}\n\n"
        ));
        let error = fails_at_once(wire, echoed).await;
        assert!(!format!("{error:?}").contains(KEY));
        let server = Server::start([Reply::stream(&wire.good())]).await;
        let shown = format!("{:?} {:?}", Models::new(options()), model(wire, &server));
        assert!(!shown.contains(KEY));
    }
}

#[tokio::test]
async fn servers_say_when_to_come_back() {
    let limited = || Reply::json("429 Too Many Requests", &json!({"error": {"message": "slow down"}}));
    for wire in Wire::BOTH {
        passes(wire, limited().header("retry-after", "0")).await;
        passes(wire, limited().header("retry-after-ms", "1")).await;
        passes(wire, limited().header("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT")).await;
        // Too long to wait for: whoever asked may.
        let error = fails_at_once(wire, limited().header("retry-after", "61")).await;
        assert_eq!(
            (error.code(), error.retry_delay()),
            (Code::ModelOverloaded, Some(Duration::from_secs(61)))
        );
        let options = ModelOptions { max_attempts: 1, ..options() };
        let (result, _, _) = play_with(wire, [limited().header("retry-after", "5")], options).await;
        assert_eq!(result.unwrap_err().retry_delay(), Some(Duration::from_secs(5)), "out of attempts");
    }
}

#[tokio::test]
async fn the_wait_that_a_server_asks_for_is_kept() {
    let limited = Reply::json("429 Too Many Requests", &json!({})).header("retry-after-ms", "150");
    let start = std::time::Instant::now();
    passes(Wire::OpenAi, limited).await;
    assert!(start.elapsed() >= Duration::from_millis(150));
}

#[tokio::test]
async fn nonsense_is_asked_for_again_and_then_reported() {
    for wire in Wire::BOTH {
        let broken = format!("{}data: {{\"not\": json}}\n\n", wire.begun());
        passes(wire, Reply::stream(&broken)).await;
        for reply in [
            Reply::stream(&broken),
            Reply::new("200 OK", "application/json", "{\"choices\": ["),
            Reply::json("200 OK", &json!({"hello": 1})),
        ] {
            let (result, _, server) = play(wire, [reply]).await;
            assert_eq!(
                (result.unwrap_err().code(), server.asked().len()),
                (Code::ModelAnswerInvalid, 3),
                "{wire:?}"
            );
        }
        let error = fails_at_once(wire, Reply::new("200 OK", "text/html", "<!doctype html><p>Sign in")).await;
        assert_eq!(error.code(), Code::ModelAnswerInvalid);
    }
}

#[tokio::test]
async fn bad_definitions_are_refused_without_asking() {
    for wire in Wire::BOTH {
        let server = Server::start([Reply::stream(&wire.good())]).await;
        let good = model(wire, &server);
        let secret = |text: &str| remuda_domain::model::Secret::new(text);
        let mut table = Vec::new();
        for url in ["nonsense", "ftp://host", "https://user:pass@host/"] {
            table.push((
                "url",
                remuda_domain::model::ModelDefinition { url: Some(url.to_owned()), ..good.clone() },
            ));
        }
        table.push((
            "key",
            remuda_domain::model::ModelDefinition { key: Some(secret("two\nlines")), ..good.clone() },
        ));
        for (name, value) in [("bad name", "x"), ("content-length", "5"), ("x-fine", "not\nfine")] {
            let headers = [(name.to_owned(), secret(value))].into();
            table.push(("headers.", remuda_domain::model::ModelDefinition { headers, ..good.clone() }));
        }
        for extra in [json!([1]), json!({"messages": []}), json!({"stream": false})] {
            let metadata = [("extra_body".to_owned(), extra)].into_iter().collect();
            table.push((
                "metadata.extra_body",
                remuda_domain::model::ModelDefinition { metadata, ..good.clone() },
            ));
        }
        for (field, definition) in table {
            let error =
                ask(&Models::new(options()), &definition, &request(vec![user("Hi")])).await.0.unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{error}");
            assert!(error.field().unwrap().starts_with(field), "{error}");
            assert!(
                !error.chain().contains("lines") && !error.chain().contains("pass@"),
                "{}",
                error.chain()
            );
        }
        assert_eq!(server.asked().len(), 0);
    }
}
