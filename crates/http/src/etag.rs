//! ETags: changes that apply only to a revision that the caller has seen.

use axum::extract::FromRequestParts;
use hyper::{
    header::{HeaderValue, IF_MATCH},
    http::request::Parts,
};
use remuda_domain::Error;

use crate::error::ApiError;

/// The ETag of a revision.
#[must_use]
pub fn etag(revision: &str) -> HeaderValue {
    HeaderValue::try_from(format!("\"{revision}\"")).unwrap_or_else(|_| HeaderValue::from_static("\"\""))
}

/// The revisions in `If-Match`. Empty if the header is missing or matches any.
#[derive(Debug, PartialEq, Eq)]
pub struct IfMatch(pub Vec<String>);

fn read(text: &str) -> IfMatch {
    let tags: Vec<&str> = text.split(',').map(str::trim).collect();
    if tags.contains(&"*") {
        return IfMatch(Vec::new());
    }
    let bare = |tag: &str| tag.trim_start_matches("W/").trim_matches('"').to_owned();
    IfMatch(tags.into_iter().map(bare).collect())
}

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let Some(value) = parts.headers.get(IF_MATCH) else { return Ok(Self(Vec::new())) };
        let text =
            value.to_str().map_err(|_| Error::invalid("if-match", "expected the ETag of an answer"))?;
        Ok(read(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn if_match_lists_the_given_revisions() {
        let seen = |tags: &[&str]| IfMatch(tags.iter().map(|tag| (*tag).to_owned()).collect());
        assert_eq!(read(etag("ab12").to_str().unwrap()), seen(&["ab12"]));
        assert_eq!(read("W/\"a\", \"b\""), seen(&["a", "b"]));
        assert_eq!(read("\"a\", *"), seen(&[]));
        assert_eq!(read("nonsense"), seen(&["nonsense"]), "matches no revision");
    }
}
