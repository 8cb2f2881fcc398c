-- Keys that sign messages on the bus. See the PostgreSQL migration for the reasons.
CREATE TABLE bus_keys (
    id         BLOB PRIMARY KEY,
    secret     BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    retires_at INTEGER
) STRICT;

INSERT INTO bus_keys (id, secret, created_at)
VALUES (randomblob(16), randomblob(32), CAST(unixepoch('subsec') * 1000000 AS INTEGER));

ALTER TABLE workers ADD COLUMN bus_secret BLOB;
