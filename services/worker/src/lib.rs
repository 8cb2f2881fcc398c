//! Takes sessions and executes their runs.
