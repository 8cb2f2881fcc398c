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
            let error =
                fails_at_once(wire, Reply::new(status, "text/plain", "").header("location", &to)).await;
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
