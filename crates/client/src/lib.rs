//! Typed client: submit, follow with automatic resume, wait, cancel.
