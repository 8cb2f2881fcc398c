//! Executes one run of an owned session, step by step.
