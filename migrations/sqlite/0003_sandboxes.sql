-- Where tools execute. See the PostgreSQL migration for the reasons.

ALTER TABLE sessions ADD COLUMN execution TEXT;

CREATE TABLE sandboxes (
    id         BLOB PRIMARY KEY,
    worker_id  BLOB NOT NULL,
    tenant_id  BLOB,
    session_id BLOB,
    epoch      INTEGER,
    backend    TEXT NOT NULL,
    engine     TEXT NOT NULL,
    handle     TEXT,
    image      TEXT NOT NULL,
    digest     TEXT NOT NULL,
    state      TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    used_at    INTEGER NOT NULL
) STRICT;
CREATE INDEX sandboxes_by_worker ON sandboxes (worker_id);

CREATE TABLE installation (id BLOB NOT NULL);
INSERT INTO installation VALUES (randomblob(16));
