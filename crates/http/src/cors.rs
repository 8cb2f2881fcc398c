//! CORS: which web pages may call the API.

use std::time::Duration;

use hyper::{
    Method,
    header::{AUTHORIZATION, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, IF_MATCH, LOCATION, RETRY_AFTER},
};
use remuda_domain::{Error, error::Result};
use tower_http::cors::{AllowOrigin, CorsLayer};

/// Allows pages of these origins: `https://app.example.com`, or `*` for all.
pub fn cors(origins: &[String]) -> Result<CorsLayer> {
    let allowed = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        let read = |origin: &String| {
            let plain = origin.starts_with("http://") || origin.starts_with("https://");
            let bare = plain && origin.matches('/').count() == 2;
            let value = HeaderValue::from_str(origin).ok().filter(|_| bare);
            let message =
                format!("expected an origin such as https://app.example.com, or *; {origin:?} is none");
            value.ok_or_else(|| Error::invalid("server.cors_origins", message))
        };
        AllowOrigin::list(origins.iter().map(read).collect::<Result<Vec<_>>>()?)
    };
    let header = HeaderName::from_static;
    Ok(CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE])
        .allow_headers([
            AUTHORIZATION,
            CONTENT_TYPE,
            IF_MATCH,
            header("idempotency-key"),
            header("last-event-id"),
            header("traceparent"),
            header("x-request-id"),
        ])
        .expose_headers([ETAG, LOCATION, RETRY_AFTER, header("x-request-id")])
        .max_age(Duration::from_secs(600)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_checked() {
        let read = |origin: &str| cors(&[origin.to_owned()]);
        for good in ["*", "https://app.example.com", "http://localhost:3000"] {
            assert!(read(good).is_ok(), "{good}");
        }
        for bad in ["", "app.example.com", "https://app.example.com/", "https://a/b", "https://a\n"] {
            assert_eq!(read(bad).unwrap_err().field(), Some("server.cors_origins"), "{bad}");
        }
        assert!(cors(&[]).is_ok());
    }
}
