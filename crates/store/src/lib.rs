//! The truth: one trait, PostgreSQL and SQLite.
