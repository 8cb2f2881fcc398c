//! Cuts pages to the size limit of a response.

use prost::Message;
use remuda_domain::{limits::MAX_MESSAGE_BYTES, page::Page};

/// Half of the limit of a message: enough for many items, and leaves space for one item that is large by itself.
const PAGE_BYTES: usize = MAX_MESSAGE_BYTES / 2;

/// The items of a page in protobuf, and the token of the next page. Items can be large (a run or a message may hold
/// images): those that do not fit come with the next page. `key` must return an item's page token as the store
/// generates it.
pub(super) fn fit<T, M>(page: Page<T>, key: impl Fn(&M) -> String) -> (Vec<M>, String)
where
    M: Message + From<T>,
{
    let mut items: Vec<M> = Vec::with_capacity(page.items.len());
    let (count, mut bytes) = (page.items.len(), 0);
    for item in page.items {
        let item = M::from(item);
        bytes += item.encoded_len();
        if bytes > PAGE_BYTES && !items.is_empty() {
            break;
        }
        items.push(item);
    }
    let next = match items.last() {
        Some(last) if items.len() < count => Some(key(last)),
        _ => page.next,
    };
    (items, next.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use remuda_proto::v1::Delta;

    use super::*;

    fn page(sizes: &[usize]) -> Page<Delta> {
        let items = sizes.iter().zip(0..);
        let items = items
            .map(|(size, offset)| Delta { offset, text: "x".repeat(*size), ..Delta::default() })
            .collect();
        Page { items, next: Some("store".to_owned()) }
    }

    fn fitted(sizes: &[usize]) -> (usize, String) {
        let (items, next) = fit(page(sizes), |item: &Delta| item.offset.to_string());
        (items.len(), next)
    }

    #[test]
    fn items_that_do_not_fit_come_with_the_next_page() {
        assert_eq!(fitted(&[]), (0, "store".to_owned()));
        assert_eq!(fitted(&[10, 10]), (2, "store".to_owned()));
        let third = PAGE_BYTES / 3;
        assert_eq!(fitted(&[third, third, third, third]), (2, "1".to_owned()));
        // An item that is too large for any page is returned alone.
        assert_eq!(fitted(&[PAGE_BYTES + 1, 1]), (1, "0".to_owned()));
        assert_eq!(fitted(&[1, PAGE_BYTES]), (1, "0".to_owned()));
    }
}
