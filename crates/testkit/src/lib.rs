//! Real servers for tests: PostgreSQL and nats-server as child processes.
