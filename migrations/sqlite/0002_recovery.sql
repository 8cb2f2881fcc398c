-- What recovery needs to know of runs, sessions and workers.

-- `attempts` counts those that ended, by whatever cause; `lost_attempts` those whose worker was lost.
ALTER TABLE runs ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;
-- Why a parked run waits and since when; how long it was parked before.
ALTER TABLE runs ADD COLUMN parked TEXT;
ALTER TABLE runs ADD COLUMN parked_at INTEGER;
ALTER TABLE runs ADD COLUMN paused_ms INTEGER NOT NULL DEFAULT 0;
-- Receipts of a cancel: its worker knew, its last process was dead. The end of the run is the last one.
ALTER TABLE runs ADD COLUMN cancel_delivered_at INTEGER;
ALTER TABLE runs ADD COLUMN cancel_stopped_at INTEGER;
UPDATE runs SET attempts = lost_attempts + (state >= 10 AND started_at IS NOT NULL);

-- Runs that started and wait for another owner: few, and the only ones that can run out of time without one.
CREATE INDEX runs_waiting_again ON runs (id) WHERE state = 0 AND started_at IS NOT NULL;

-- The newest commit of an owner: a repeated one is answered, not done again.
ALTER TABLE sessions ADD COLUMN last_commit BLOB;
ALTER TABLE sessions ADD COLUMN parent_id BLOB;
CREATE INDEX sessions_by_parent ON sessions (parent_id) WHERE parent_id IS NOT NULL;

-- Everything that a gone worker owned is surely in other hands.
ALTER TABLE workers ADD COLUMN taken_back INTEGER NOT NULL DEFAULT 0;

-- Background tasks of the control plane with their last round, and their last that did something or failed.
CREATE TABLE tasks (
    name         TEXT PRIMARY KEY,
    rounds       INTEGER NOT NULL,
    failures     INTEGER NOT NULL,
    last_round   TEXT NOT NULL,
    last_notable TEXT
);
