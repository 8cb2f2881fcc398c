//! The native tools.
