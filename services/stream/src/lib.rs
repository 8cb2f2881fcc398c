//! Streams the events of sessions and runs.
