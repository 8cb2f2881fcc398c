//! Strict extractors for bodies, queries and paths. Errors name the field.

use std::time::Duration;

use axum::{
    body::BodyDataStream,
    extract::{FromRequest, FromRequestParts, Path, Request, rejection::PathRejection},
};
use futures::StreamExt as _;
use hyper::{
    header::{CONTENT_LENGTH, CONTENT_TYPE},
    http::request::Parts,
};
use remuda_domain::{Code, Error, error::Result, limits::MAX_MESSAGE_BYTES};
use serde::{Deserialize, de::DeserializeOwned};

use crate::error::ApiError;

/// An oversized body up to this size is read and discarded.
const MAX_DISCARDED: u64 = 4 * MAX_MESSAGE_BYTES as u64;

/// A JSON body.
#[derive(Debug)]
pub struct Input<T>(pub T);

/// A JSON body that may be missing. All fields then have their default.
#[derive(Debug)]
pub struct MaybeInput<T>(pub T);

/// The query parameters.
#[derive(Debug)]
pub struct Params<T>(pub T);

/// The only path parameter.
#[derive(Debug)]
pub struct Segment(pub String);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Input<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let json = is_json(&request);
        let bytes = bytes(request).await?;
        if !json? {
            return Err(wrong_type().into());
        }
        Ok(Self(parse(&bytes)?))
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for MaybeInput<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let json = is_json(&request);
        let bytes = bytes(request).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        if !json? {
            return Err(wrong_type().into());
        }
        Ok(Self(parse(&bytes)?))
    }
}

fn wrong_type() -> Error {
    Error::new(Code::UnsupportedMediaType, "expected application/json").at("content-type")
}

/// Fails if the header is not text.
fn is_json(request: &Request) -> Result<bool> {
    let Some(value) = request.headers().get(CONTENT_TYPE) else { return Ok(false) };
    let value = value.to_str().map_err(|_| wrong_type())?;
    let essence = value.split(';').next().unwrap_or_default().trim();
    Ok(essence.eq_ignore_ascii_case("application/json"))
}

/// Reads the body. Most clients read no response before they have sent everything, so the rest of a refused body is read and
/// discarded. A far larger body is refused before it is sent.
async fn bytes(request: Request) -> Result<Vec<u8>> {
    let too_large = || {
        Error::new(Code::TooLarge, format!("expected a body of at most {MAX_MESSAGE_BYTES} bytes")).at("body")
    };
    let announced =
        request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let announced: u64 = announced.unwrap_or_default();
    let mut body = request.into_body().into_data_stream();
    if announced > MAX_MESSAGE_BYTES as u64 {
        if announced <= MAX_DISCARDED {
            discard(body).await;
        }
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    while let Some(piece) = body.next().await {
        match piece {
            Ok(piece) if bytes.len() + piece.len() > MAX_MESSAGE_BYTES => return Err(too_large()),
            Ok(piece) => bytes.extend_from_slice(&piece),
            Err(error) => {
                let broken = || Error::invalid("body", "the body could not be read to its end");
                let error = remuda_grpc::body_error(&error).unwrap_or_else(broken);
                if error.code() == Code::Overloaded {
                    drop(bytes);
                    discard(body).await;
                }
                return Err(error);
            }
        }
    }
    Ok(bytes)
}

/// Reads the rest of a body. The time that it may take is limited.
async fn discard(mut body: BodyDataStream) {
    let mut left = MAX_DISCARDED;
    while let Some(Ok(piece)) = body.next().await
        && left > 0
    {
        left = left.saturating_sub(piece.len() as u64);
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    // serde would also accept a list as the fields of an object, in declaration order.
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return Err(Error::invalid("body", "expected a JSON object, not a list"));
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let read = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let field = field_of(error.path());
        Error::invalid(field, plain(&error.into_inner()))
    })?;
    reader.end().map_err(|error| Error::invalid("body", plain(&error)))?;
    Ok(read)
}

fn field_of(path: &serde_path_to_error::Path) -> String {
    let path = path.to_string();
    if path == "." { "body".to_owned() } else { path }
}

/// A message for a JSON error.
fn plain(error: &serde_json::Error) -> String {
    use serde_json::error::Category;
    match error.classify() {
        Category::Data => format!("the value does not fit: {error}"),
        Category::Eof => format!("the JSON ends early: {error}"),
        Category::Io | Category::Syntax => format!("not valid JSON: {error}"),
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let query = parts.uri.query().unwrap_or_default();
        let reader = serde_html_form::Deserializer::new(form_urlencoded::parse(query.as_bytes()));
        let read = serde_path_to_error::deserialize(reader).map_err(|error| {
            let field = field_of(error.path());
            let field = if field == "body" { "query".to_owned() } else { field };
            Error::invalid(field, format!("expected another query: {}", error.inner()))
        });
        Ok(Self(read?))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Segment {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        #[derive(Deserialize)]
        struct One(String);
        let unreadable = |_: PathRejection| Error::invalid("path", "expected UTF-8, percent-encoded");
        let Path(One(segment)) = Path::from_request_parts(parts, state).await.map_err(unreadable)?;
        Ok(Self(segment))
    }
}

/// Parses a wait time: `30s`, `500ms`, or `30` for seconds. Longer times are cut to `max`.
pub fn wait_time(field: &str, text: &str, max: Duration) -> Result<Duration> {
    let seconds = text.parse().map(Duration::from_secs).ok();
    let time = seconds.or_else(|| humantime::parse_duration(text).ok());
    let time = time.ok_or_else(|| Error::invalid(field, "expected a time such as 30s or 500ms"))?;
    Ok(time.min(max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_times_are_parsed_with_and_without_a_unit() {
        let read = |text| wait_time("wait", text, Duration::from_secs(60));
        assert_eq!(read("30").unwrap(), Duration::from_secs(30));
        assert_eq!(read("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(read("2h").unwrap(), Duration::from_secs(60));
        for bad in ["", "-1", "soon", "1e9", "99999999999999999999"] {
            assert_eq!(read(bad).unwrap_err().field(), Some("wait"), "{bad}");
        }
    }

    #[test]
    fn body_errors_name_the_field() {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Outer {
            #[serde(rename = "inner")]
            _inner: Inner,
        }
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Inner {
            #[serde(rename = "count")]
            _count: u32,
        }
        let field = |text: &str| {
            let error = parse::<Outer>(text.as_bytes()).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument);
            error.field().map(str::to_owned).unwrap_or_default()
        };
        assert_eq!(field(r#"{"inner": {"count": -1}}"#), "inner.count");
        assert_eq!(field(r#"{"inner": {"count": 1, "other": 2}}"#), "inner.other");
        for text in ["", "[]", "[{\"count\": 1}]", "{} {}", "nonsense"] {
            assert_eq!(field(text), "body", "{text}");
        }
    }
}
