//! Logs panics.

use std::{backtrace::Backtrace, panic::PanicHookInfo};

/// Installs a panic hook that logs. The default hook's output is not a log line and may contain secrets.
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
