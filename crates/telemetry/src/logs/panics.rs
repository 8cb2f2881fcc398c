//! Panics, as lines like all others.

use std::{backtrace::Backtrace, panic::PanicHookInfo};

/// Lets panics be logged. What standard error would get otherwise is no line of ours, and may hold anything.
pub(crate) fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let trace = Backtrace::capture();
        let trace = matches!(trace.status(), std::backtrace::BacktraceStatus::Captured).then_some(trace);
        let location = panic.location().map(ToString::to_string);
        tracing::error!(
            location,
            backtrace = trace.map(tracing::field::display),
            "a thread panicked: {}",
            message(panic)
        );
    }));
}

fn message<'a>(panic: &'a PanicHookInfo<'_>) -> &'a str {
    panic.payload_as_str().unwrap_or("(no message)")
}
