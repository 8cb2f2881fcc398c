//! Endpoint URLs and request headers.

use remuda_domain::{
    error::{Error, Result},
    model::{ModelDefinition, Secret},
};
use reqwest::{
    Url,
    header::{HeaderMap, HeaderName, HeaderValue},
};

/// Headers that belong to the connection and cannot be set.
const CONNECTION_HEADERS: [&str; 3] = ["connection", "content-length", "transfer-encoding"];

/// Parses and checks the base URL of an endpoint.
pub(crate) fn base_url(text: &str) -> Result<Url> {
    let invalid = |expected: &str| Error::invalid("url", expected);
    let url = Url::parse(text).map_err(|_| invalid("expected an address like https://host/v1"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
        return Err(invalid("expected an address that begins with https:// or http://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("expected no user and password: give them as key or header"));
    }
    Ok(url)
}

/// Replaces the path of a base URL by the result of `path`. The query is kept.
pub(crate) fn with_path(mut base_url: Url, path: impl FnOnce(&str) -> String) -> Url {
    let path = path(base_url.path().trim_end_matches('/'));
    base_url.set_path(&path);
    base_url.set_fragment(None);
    base_url
}

/// A header value that is never logged.
pub(crate) fn secret_header(field: &str, text: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| Error::invalid(field, "expected characters that an HTTP header can hold"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Adds the definition's headers. They override the default ones.
pub(crate) fn add_headers(headers: &mut HeaderMap, model: &ModelDefinition) -> Result<()> {
    for (name, value) in &model.headers {
        let field = format!("headers.{name}");
        let parsed = HeaderName::from_bytes(name.as_bytes());
        let parsed = parsed.ok().filter(|name| !CONNECTION_HEADERS.contains(&name.as_str()));
        let parsed = parsed.ok_or_else(|| Error::invalid(&field, "expected the name of a request header"))?;
        headers.insert(parsed, secret_header(&field, Secret::expose(value))?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_urls_are_checked() {
        for good in ["https://host", "http://127.0.0.1:8000/v1/", "https://host/x?api-version=1"] {
            assert!(base_url(good).is_ok(), "{good}");
        }
        for bad in
            ["", "host", "host:80/v1", "ftp://host", "https://", "https://user:secret@host", "file:///etc"]
        {
            let error = base_url(bad).unwrap_err();
            assert_eq!(error.field(), Some("url"), "{bad}");
            assert!(!error.chain().contains("secret"));
        }
    }

    #[test]
    fn paths_are_replaced_and_queries_kept() {
        let url = with_path(base_url("https://host/a//?x=1#part").unwrap(), |path| format!("{path}/b"));
        assert_eq!(url.as_str(), "https://host/a/b?x=1");
    }
}
