//! The file tools, which share the sessions' read history.

use std::sync::Arc;

use super::{Edit, Glob, Grep, Read, TodoWrite, Write};
use crate::{read_history::ReadHistory, tool::Tool};

pub(crate) fn file_tools() -> [Arc<dyn Tool>; 6] {
    let history = ReadHistory::default();
    [
        Arc::new(Edit::new(history.clone())),
        Arc::new(Glob),
        Arc::new(Grep),
        Arc::new(Read::new(history.clone())),
        Arc::new(TodoWrite),
        Arc::new(Write::new(history)),
    ]
}
