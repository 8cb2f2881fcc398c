//! What Remuda is about, without I/O: ids, states, events, ownership rules, errors.
