//! Fetches lists page by page.

use std::future::Future;

use remuda_domain::{error::Result, page::PageRequest};

/// How much of a list to show.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct PageArgs {
    /// Show at most this many entries.
    #[arg(long, short = 'n', default_value_t = 50, value_name = "COUNT")]
    limit: usize,
    /// Show all entries.
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

impl PageArgs {
    /// At most `limit` entries.
    pub(super) const fn first(limit: usize) -> Self {
        Self { limit, all: false }
    }

    /// Fetches page after page and passes each entry to `show`. Returns whether there are more entries.
    pub(super) async fn each<T, F, A>(self, fetch: F, mut show: impl FnMut(T)) -> Result<bool>
    where
        F: Fn(i32, String) -> A,
        A: Future<Output = Result<(Vec<T>, String)>>,
    {
        let mut left = if self.all { usize::MAX } else { self.limit };
        let mut token = String::new();
        let most = usize::try_from(PageRequest::MAX_SIZE).unwrap_or(usize::MAX);
        while left > 0 {
            let size = i32::try_from(left.min(most)).unwrap_or(i32::MAX);
            let (items, next) = fetch(size, token).await?;
            for item in items.into_iter().take(left) {
                show(item);
                left -= 1;
            }
            if next.is_empty() {
                return Ok(false);
            }
            token = next;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn count_to(total: i32, args: PageArgs) -> (Vec<i32>, bool) {
        let mut seen = Vec::new();
        let fetch = |size: i32, token: String| async move {
            let first: i32 = token.parse().unwrap_or(0);
            let last = (first + size).min(total);
            let next = if last < total { last.to_string() } else { String::new() };
            Ok(((first..last).collect(), next))
        };
        let more = args.each(fetch, |item| seen.push(item)).await.unwrap();
        (seen, more)
    }

    #[tokio::test]
    async fn pages_are_joined_up_to_the_limit() {
        let all = PageArgs { limit: 50, all: true };
        assert_eq!(count_to(1234, all).await, ((0..1234).collect(), false));
        let some = PageArgs { limit: 700, all: false };
        assert_eq!(count_to(1234, some).await, ((0..700).collect(), true));
        assert_eq!(count_to(3, some).await, ((0..3).collect(), false));
        assert_eq!(count_to(3, PageArgs { limit: 0, all: false }).await, (vec![], true));
    }
}
