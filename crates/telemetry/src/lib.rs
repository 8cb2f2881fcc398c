//! Logs and traces of every process.
