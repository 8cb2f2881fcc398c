//! Where tools execute: the backend trait and the local backend.
