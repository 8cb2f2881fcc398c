//! Keyset pagination: a page starts after the last item of the previous one, so inserts never shift it.

use crate::error::Error;

/// Request for one page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    pub size: u32,
    /// The opaque token of the previous page; `None` for the first page.
    pub token: Option<String>,
}

impl PageRequest {
    pub const DEFAULT_SIZE: u32 = 50;
    pub const MAX_SIZE: u32 = 500;

    /// Parses the two fields of a list request. Size 0 means the default.
    pub fn parse(size: i32, token: &str) -> Result<Self, Error> {
        let size = match u32::try_from(size) {
            Ok(0) => Self::DEFAULT_SIZE,
            Ok(size) if size <= Self::MAX_SIZE => size,
            _ => return Err(Error::invalid("page_size", "expected 0 to 500")),
        };
        Ok(Self { size, token: (!token.is_empty()).then(|| token.to_owned()) })
    }

    /// Parses the token as the key after which the page starts.
    pub fn after<T: std::str::FromStr>(&self) -> Result<Option<T>, Error> {
        let bad = || Error::invalid("page_token", "expected the next_page_token of an earlier response");
        self.token.as_deref().map(|token| token.parse().map_err(|_| bad())).transpose()
    }
}

/// One page of items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Token of the next page; `None` on the last.
    pub next: Option<String>,
}

impl<T> Page<T> {
    /// Creates a page from up to `size + 1` rows: the extra row only shows that there is a next page.
    #[must_use]
    pub fn from_rows(mut rows: Vec<T>, size: u32, key: impl Fn(&T) -> String) -> Self {
        let size = size as usize;
        let more = rows.len() > size;
        rows.truncate(size);
        let next = if more { rows.last().map(key) } else { None };
        Self { items: rows, next }
    }
}
