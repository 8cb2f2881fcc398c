//! Where and with what an endpoint is asked.

use remuda_domain::{
    error::{Error, Result},
    model::{ModelDefinition, Secret},
};
use reqwest::{
    Url,
    header::{HeaderMap, HeaderName, HeaderValue},
};

/// Headers that belong to the connection rather than to the request.
const NOT_GIVEN: [&str; 3] = ["connection", "content-length", "transfer-encoding"];

/// The base address of an endpoint, checked.
pub(crate) fn base(text: &str) -> Result<Url> {
    let wrong = |expected: &str| Error::invalid("url", expected);
    let url = Url::parse(text).map_err(|_| wrong("expected an address like https://host/v1"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
        return Err(wrong("expected an address that begins with https:// or http://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("expected no user and password: give them as key or header"));
    }
    Ok(url)
}

/// The address under a base whose path is made by `path`. A query stays.
pub(crate) fn under(mut base: Url, path: impl FnOnce(&str) -> String) -> Url {
    let path = path(base.path().trim_end_matches('/'));
    base.set_path(&path);
    base.set_fragment(None);
    base
}

/// A header whose value is not shown.
pub(crate) fn secret_header(field: &str, text: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| Error::invalid(field, "expected characters that an HTTP header can hold"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The definition's own headers, over those that are sent anyway.
pub(crate) fn add_headers(headers: &mut HeaderMap, model: &ModelDefinition) -> Result<()> {
    for (name, value) in &model.headers {
        let field = format!("headers.{name}");
        let parsed = HeaderName::from_bytes(name.as_bytes());
        let parsed = parsed.ok().filter(|name| !NOT_GIVEN.contains(&name.as_str()));
        let parsed = parsed.ok_or_else(|| Error::invalid(&field, "expected the name of a request header"))?;
        headers.insert(parsed, secret_header(&field, Secret::expose(value))?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bases_are_checked() {
        for good in ["https://host", "http://127.0.0.1:8000/v1/", "https://host/x?api-version=1"] {
            assert!(base(good).is_ok(), "{good}");
        }
        for bad in
            ["", "host", "host:80/v1", "ftp://host", "https://", "https://user:secret@host", "file:///etc"]
        {
            let error = base(bad).unwrap_err();
            assert_eq!(error.field(), Some("url"), "{bad}");
            assert!(!error.chain().contains("secret"));
        }
    }

    #[test]
    fn paths_are_added_and_queries_kept() {
        let url = under(base("https://host/a//?x=1#part").unwrap(), |path| format!("{path}/b"));
        assert_eq!(url.as_str(), "https://host/a/b?x=1");
    }
}
