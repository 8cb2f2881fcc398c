//! Decides what agents may do: rules, modes, and what is hidden in shell commands.
