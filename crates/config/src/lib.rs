//! Configuration: defaults, file, environment, flags.
