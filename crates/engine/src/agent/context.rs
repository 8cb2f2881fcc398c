//! How long a conversation grows, and what is left out before it is too long for its model.
//!
//! The transcript keeps everything; here is decided what of it a model sees. Four things happen, one after the other:
//!
//! 1. [`view`]: what was summed up is replaced by its summary.
//! 2. [`clear`]: from a share of the room on, old results of tools are replaced by a note.
//! 3. [`cut`]: from a higher share on, the older part is to be summed up: by a model ([`summary_request`]), or if none can
//!    ([`fallback`]) by what can be told without one.
//! 4. [`squeeze`]: what is left and still too long are results of the newest answer, whose longest are cut.
//!
//! A call is never parted from its result, and what the user said last is never lost: when its message is summed up, its words go
//! along with the summary. Nothing here reads or writes anything but what it is given. [`fit`] does the steps 2 and 3 at once.

mod clear;
mod cut;
mod excerpt;
mod fallback;
mod groups;
mod offload;
mod room;
mod squeeze;
mod summary;
#[cfg(test)]
mod tests;
pub(super) mod tokens;
mod view;

use remuda_domain::MessageId;

use super::transcript::Outgoing;

pub(crate) use self::offload::{Overlong, too_long};
pub(super) use self::{
    clear::clear,
    cut::{Cut, cut},
    fallback::fallback,
    room::Gauge,
    squeeze::squeeze,
    summary::{SummaryRequest, introduce, summary_message, summary_request},
    view::view,
};

/// What will be sent, and what has to be done before.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fitted {
    pub(super) outgoing: Vec<Outgoing>,
    /// The last message whose results are left out.
    pub(super) cleared: Option<MessageId>,
    /// What is to be summed up before anything is sent, because it is too long otherwise.
    pub(super) cut: Option<Cut>,
}

/// Leaves out what has to be left out. `cleared` is what the last question said of itself; `forced` says that the provider found
/// it too long, whatever was estimated.
pub(super) fn fit(
    mut outgoing: Vec<Outgoing>,
    cleared: Option<MessageId>,
    gauge: &Gauge,
    forced: bool,
) -> Fitted {
    let cleared = clear(&mut outgoing, cleared, gauge, forced);
    let cut = cut(&outgoing, gauge, forced);
    Fitted { outgoing, cleared, cut }
}
