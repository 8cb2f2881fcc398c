-- What `remuda top` and `remuda explain` look at. See the PostgreSQL migration for the reasons.

CREATE INDEX runs_live_by_tenant ON runs (tenant_id, id) WHERE state < 10;

CREATE TABLE tally (
    id            INTEGER PRIMARY KEY CHECK (id = 1),
    submitted     INTEGER NOT NULL,
    completed     INTEGER NOT NULL,
    failed        INTEGER NOT NULL,
    cancelled     INTEGER NOT NULL,
    timed_out     INTEGER NOT NULL,
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cost_micros   INTEGER NOT NULL
) STRICT;
INSERT INTO tally VALUES (1, 0, 0, 0, 0, 0, 0, 0, 0);

CREATE INDEX workers_live ON workers (pool, id) WHERE state < 2;

ALTER TABLE workers ADD COLUMN beat_at INTEGER;
ALTER TABLE workers ADD COLUMN running TEXT NOT NULL DEFAULT '[]';
ALTER TABLE workers ADD COLUMN free_since INTEGER;
