//! The parameters of lists.

use serde::Deserialize;
use utoipa::IntoParams;

/// Which page.
#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Paging {
    /// At most 500; 50 when left out.
    #[param(minimum = 0, maximum = 500)]
    pub(super) page_size: i32,
    /// `next_page_token` of the page before.
    pub(super) page_token: String,
}
