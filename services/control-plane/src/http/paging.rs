//! Query parameters of paged lists.

use serde::Deserialize;
use utoipa::IntoParams;

/// The requested page.
#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PageQuery {
    /// Page size: at most 500; 50 if omitted.
    #[param(minimum = 0, maximum = 500)]
    pub(super) page_size: i32,
    /// `next_page_token` of the previous page.
    pub(super) page_token: String,
}
