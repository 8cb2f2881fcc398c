use std::{collections::HashSet, net::SocketAddr};

use opentelemetry::{KeyValue, metrics::MeterProvider};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{registry::label, *};

fn scraped() -> (Exporter, SdkMeterProvider) {
    let settings = Settings { service_name: "remuda-test".to_owned(), ..Settings::default() };
    let (exporter, provider) = provider(settings).unwrap();
    (exporter.unwrap(), provider)
}

/// One request over its own connection, like a scraper.
async fn request(address: SocketAddr, line: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{line} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn recorded_metrics_can_be_scraped() {
    let (exporter, provider) = scraped();
    let meter = provider.meter(SCOPE);
    let rounds = registry::TASK_ROUNDS.counter(&meter);
    let labels = |result| [KeyValue::new(label::TASK, "take_back"), KeyValue::new(label::RESULT, result)];
    rounds.add(2, &labels("ok"));
    rounds.add(1, &labels("error"));
    registry::TASK_ITEMS
        .counter(&meter)
        .add(7, &[KeyValue::new(label::TASK, "take_back"), KeyValue::new(label::ITEM, "sessions")]);
    registry::TASK_LAST_SUCCESS
        .gauge(&meter)
        .record(1_700_000_000.5, &[KeyValue::new(label::TASK, "take_back")]);
    registry::SESSIONS_TAKEN_BACK.counter(&meter).add(7, &[]);
    registry::ORPHANED_TOKENS_HEALED.counter(&meter).add(0, &[]);

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
    tasks.spawn(exporter.serve(listener, None, stop.clone()));

    let scraped = request(address, "GET /metrics").await;
    assert!(scraped.starts_with("HTTP/1.1 200 OK\r\n"), "{scraped}");
    assert!(scraped.contains("content-type: text/plain; version=0.0.4"), "{scraped}");
    for line in [
        r#"remuda_task_rounds_total{result="error",task="take_back"} 1"#,
        r#"remuda_task_rounds_total{result="ok",task="take_back"} 2"#,
        r#"remuda_task_items_total{item="sessions",task="take_back"} 7"#,
        r#"remuda_task_last_success_timestamp_seconds{task="take_back"} 1700000000.5"#,
        "remuda_sessions_taken_back_total 7",
        "remuda_orphaned_tokens_healed_total 0",
        "# HELP remuda_sessions_taken_back_total Sessions reclaimed from workers whose lease expired",
    ] {
        assert!(scraped.lines().any(|found| found == line), "{line} in {scraped}");
    }
    let info = scraped.lines().find(|line| line.starts_with("target_info")).unwrap();
    assert!(info.contains(r#"service_name="remuda-test""#), "{info}");

    assert!(request(address, "GET /").await.starts_with("HTTP/1.1 404 "));
    assert!(request(address, "POST /metrics").await.starts_with("HTTP/1.1 405 "));
    // A silent client blocks neither other requests nor the shutdown.
    let silent = TcpStream::connect(address).await.unwrap();
    assert!(request(address, "GET /metrics").await.contains("remuda_sessions_taken_back_total 7"));
    drop(silent);
    stop.cancel();
    tasks.close();
    tasks.wait().await;
    assert!(TcpStream::connect(address).await.is_err());
}

#[test]
fn metric_names_are_unique_and_described() {
    let names: HashSet<_> = registry::ALL.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), registry::ALL.len());
    for metric in registry::ALL {
        assert!(metric.name.starts_with("remuda."), "{metric:?}");
        assert!(!metric.unit.is_empty() && !metric.description.is_empty(), "{metric:?}");
        assert_eq!(metric.labels.iter().collect::<HashSet<_>>().len(), metric.labels.len(), "{metric:?}");
    }
}

#[test]
fn instruments_do_nothing_without_an_exporter() {
    counter(&registry::TASK_ROUNDS).add(1, &[]);
    gauge(&registry::TASK_LAST_SUCCESS).record(1.0, &[]);
    histogram(&registry::QUEUE_WAIT).record(1.0, &[]);
    observe(&registry::STREAM_READERS, |readers| readers.observe(1.0, &[]));
}

/// Dashboard queries are checked against these names, so they must equal the scraped ones.
#[test]
fn prometheus_names_equal_the_served_names() {
    let (exporter, provider) = scraped();
    let meter = provider.meter(SCOPE);
    for metric in registry::ALL {
        match metric.kind {
            registry::Kind::Counter => metric.counter(&meter).add(1, &[]),
            registry::Kind::Gauge => metric.gauge(&meter).record(1.0, &[]),
            registry::Kind::Histogram => metric.histogram(&meter).record(1.0, &[]),
        }
    }
    let text = exporter.text().unwrap();
    for metric in registry::ALL {
        let kind = match metric.kind {
            registry::Kind::Counter => "counter",
            registry::Kind::Gauge => "gauge",
            registry::Kind::Histogram => "histogram",
        };
        let line = format!("# TYPE {} {kind}", metric.prometheus_name());
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
}
