-- What `remuda top` and `remuda explain` look at.

-- The unfinished runs of a tenant in the order of their submission, however many others it has.
CREATE INDEX runs_live_by_tenant ON runs (tenant_id, id) WHERE state < 10;

-- What happened in the whole installation since its beginning. Each process adds to it every few seconds what it has seen, and
-- what a process saw last before it was killed is missing: this is for rates, not for books.
CREATE TABLE tally (
    id            smallint PRIMARY KEY CHECK (id = 1),
    submitted     bigint NOT NULL,
    completed     bigint NOT NULL,
    failed        bigint NOT NULL,
    cancelled     bigint NOT NULL,
    timed_out     bigint NOT NULL,
    input_tokens  bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cost_micros   bigint NOT NULL
) WITH (fillfactor = 10);
INSERT INTO tally VALUES (1, 0, 0, 0, 0, 0, 0, 0, 0);

-- Workers that are not gone, of whom there are few among all that ever started. Heartbeats change nothing that it names.
CREATE INDEX workers_live ON workers (pool, id) WHERE state < 2;

-- Last, because heartbeats wait for as long as the lock on workers is held, and the indexes may take long.
ALTER TABLE workers
    -- When it was last heard of, and the runs that it executed then: a JSON list of ids.
    ADD COLUMN beat_at timestamptz,
    ADD COLUMN running text NOT NULL DEFAULT '[]',
    -- Since when each of its heartbeats told of a free slot.
    ADD COLUMN free_since timestamptz;
