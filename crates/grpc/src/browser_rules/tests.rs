use tonic::codegen::http::Request;

use super::*;

const LOOPBACK: &str = "127.0.0.1";

fn rules(listen: &str, keys: bool, hosts: &[&str], origins: &[&str]) -> BrowserRules {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    BrowserRules::new(listen.parse().unwrap(), keys, owned(hosts), owned(origins))
}

/// `request` is a method, a target, and headers.
fn check(rules: &BrowserRules, request: &str, headers: &[(&str, &str)]) -> Result<()> {
    let (method, uri) = request.split_once(' ').unwrap();
    let request = Request::builder().method(method).uri(uri);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let request = request.body(()).unwrap();
    rules.check(request.method(), request.uri(), request.headers())
}

#[track_caller]
fn refused(rules: &BrowserRules, request: &str, headers: &[(&str, &str)], code: Code, field: &str) {
    let error = check(rules, request, headers).unwrap_err();
    assert_eq!((error.code(), error.field()), (code, Some(field)), "{request} {headers:?}");
}

#[test]
fn server_without_keys_answers_under_its_own_names() {
    let dev = rules(LOOPBACK, false, &["dev.example.com", "other.example.com:8080"], &[]);
    for host in [
        "localhost:7777",
        "LOCALHOST",
        "127.0.0.1:7777",
        "127.0.0.2:1",
        "[::1]:7777",
        "[::1]",
        "[::ffff:127.0.0.1]:7777",
        "dev.example.com",
        "Dev.Example.Com:7777",
        "other.example.com:8080",
    ] {
        for request in ["GET /api/v1/runs", "POST /api/v1/runs", "DELETE /api/v1/sessions/x"] {
            assert!(check(&dev, request, &[("host", host)]).is_ok(), "{host} {request}");
        }
        // gRPC sends it as `:authority`.
        assert!(check(&dev, &format!("POST http://{host}/x.Y/Z"), &[]).is_ok(), "{host}");
    }
    for host in [
        "evil.example:7777",
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example:7777",
        "192.0.2.1:7777",
        "0.0.0.0:7777",
        "other.example.com",
        "localhost@evil.example",
        "evil.example:localhost",
        "[::1].evil.example",
        "",
        "\u{e9}",
    ] {
        for request in ["GET /api/v1/runs", "GET /docs", "POST /api/v1/runs", "OPTIONS /api/v1/runs"] {
            refused(&dev, request, &[("host", host)], Code::HostNotAllowed, "host");
        }
        assert!(check(&dev, "GET /healthz", &[("host", host)]).is_ok());
    }
    refused(&dev, "GET /api/v1/runs", &[], Code::HostNotAllowed, "host");
    refused(&dev, "POST http://evil.example/x.Y/Z", &[], Code::HostNotAllowed, "host");
    // Every name counts, whichever another part would believe.
    refused(&dev, "GET http://evil.example/", &[("host", "localhost")], Code::HostNotAllowed, "host");
    refused(&dev, "GET http://localhost/", &[("host", "evil.example")], Code::HostNotAllowed, "host");
    refused(&dev, "GET /", &[("host", "localhost"), ("host", "evil.example")], Code::HostNotAllowed, "host");
}

#[test]
fn host_is_checked_without_keys_or_if_hosts_are_configured() {
    let foreign = [("host", "proxy.example")];
    for open in [rules(LOOPBACK, true, &[], &[]), rules(LOOPBACK, false, &["*"], &[])] {
        assert!(check(&open, "POST /api/v1/runs", &foreign).is_ok());
    }
    let strict = rules("192.0.2.1", true, &["api.example.com"], &[]);
    refused(&strict, "GET /api/v1/runs", &foreign, Code::HostNotAllowed, "host");
    assert!(check(&strict, "GET /api/v1/runs", &[("host", "api.example.com")]).is_ok());
    // Reached from elsewhere by an address, which a page cannot rebind.
    let public = rules("0.0.0.0", false, &[], &[]);
    assert!(check(&public, "GET /api/v1/runs", &[("host", "192.0.2.1:7777")]).is_ok());
    refused(&public, "GET /api/v1/runs", &foreign, Code::HostNotAllowed, "host");
}

#[test]
fn pages_of_other_sites_change_nothing() {
    let origins = ["https://app.example.com"];
    let (dev, keyed) = (rules(LOOPBACK, false, &[], &origins), rules("192.0.2.1", true, &[], &origins));
    let host = ("host", "localhost:7777");
    for server in [&dev, &keyed] {
        for method in ["POST", "PUT", "PATCH", "DELETE", "BREW"] {
            let request = format!("{method} /api/v1/runs/x/cancel");
            for origin in
                ["http://evil.example", "null", "http://localhost:3000", "", "http://localhost:7777.evil"]
            {
                refused(server, &request, &[host, ("origin", origin)], Code::OriginNotAllowed, "origin");
            }
            for site in ["cross-site", "same-site", "x"] {
                let headers = [host, ("sec-fetch-site", site), ("sec-fetch-mode", "navigate")];
                refused(server, &request, &headers, Code::OriginNotAllowed, "sec-fetch-site");
            }
            let both = [host, ("origin", "https://app.example.com"), ("origin", "http://evil.example")];
            refused(server, &request, &both, Code::OriginNotAllowed, "origin");
            for fine in [
                &[host][..],
                &[host, ("origin", "http://localhost:7777")],
                &[host, ("origin", "https://localhost:7777")],
                &[host, ("origin", "https://app.example.com"), ("sec-fetch-site", "cross-site")],
                &[host, ("sec-fetch-site", "same-origin")],
                &[host, ("sec-fetch-site", "none")],
            ] {
                assert!(check(server, &request, fine).is_ok(), "{fine:?}");
            }
        }
        let grpc = "POST http://localhost:7777/remuda.v1.RunService/SubmitRun";
        refused(server, grpc, &[("origin", "http://evil.example")], Code::OriginNotAllowed, "origin");
    }
}

#[test]
fn pages_of_other_sites_read_nothing_without_keys() {
    let (dev, keyed) = (rules(LOOPBACK, false, &[], &[]), rules(LOOPBACK, true, &[], &[]));
    let (host, get) = (("host", "localhost:7777"), "GET /api/v1/runs");
    let evil = [host, ("origin", "http://evil.example")];
    refused(&dev, get, &evil, Code::OriginNotAllowed, "origin");
    refused(&dev, get, &[host, ("sec-fetch-site", "cross-site")], Code::OriginNotAllowed, "sec-fetch-site");
    assert!(check(&keyed, get, &evil).is_ok(), "the page has no key, and CORS hides the response");
    let link = [host, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
    assert!(check(&dev, "GET /docs", &link).is_ok(), "a person follows a link");
    assert!(check(&dev, "OPTIONS /api/v1/runs", &evil).is_ok(), "the CORS layer answers preflights");
    let any = rules(LOOPBACK, false, &[], &["*"]);
    assert!(check(&any, get, &evil).is_ok());
}

#[test]
fn own_pages_work_behind_a_proxy_that_changes_the_host() {
    let headers = [
        ("host", "127.0.0.1:7777"),
        ("origin", "https://api.example.com"),
        ("sec-fetch-site", "same-origin"),
    ];
    assert!(check(&rules(LOOPBACK, true, &[], &[]), "POST /api/v1/runs", &headers).is_ok());
    let dev = rules(LOOPBACK, false, &[], &[]);
    refused(&dev, "POST /api/v1/runs", &headers, Code::OriginNotAllowed, "origin");
}

#[test]
fn errors_say_what_to_configure() {
    let dev = rules(LOOPBACK, false, &[], &[]);
    let host = "evil.example".repeat(100);
    let error = check(&dev, "GET /", &[("host", &host)]).unwrap_err();
    assert!(error.message().contains("server.allowed_hosts") && error.message().len() < 300, "{error}");
    let headers = [("host", "localhost"), ("origin", "http://evil.example")];
    let error = check(&dev, "POST /", &headers).unwrap_err();
    assert!(
        error.message().contains("server.cors_origins") && error.message().contains("evil.example"),
        "{error}"
    );
}
