-- What agents need. See the PostgreSQL migration for the reasons.

ALTER TABLE sessions ADD COLUMN agent TEXT;
ALTER TABLE sessions ADD COLUMN model TEXT;

ALTER TABLE messages ADD COLUMN position INTEGER NOT NULL DEFAULT 0;
ALTER TABLE messages ADD COLUMN ordinal INTEGER NOT NULL DEFAULT 0;
ALTER TABLE messages ADD COLUMN agent TEXT;
CREATE INDEX messages_in_order ON messages (session_id, position, ordinal, id);

CREATE TABLE contents (
    tenant_id BLOB NOT NULL,
    hash      BLOB NOT NULL,
    body      TEXT NOT NULL,
    PRIMARY KEY (tenant_id, hash)
) STRICT, WITHOUT ROWID;
