//! Landlock and seccomp.
