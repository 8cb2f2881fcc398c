-- What recovery needs to know of runs, sessions and workers.

-- `attempts` counts those that ended, by whatever cause; `lost_attempts` those whose worker was lost.
ALTER TABLE runs
    ADD COLUMN attempts            integer NOT NULL DEFAULT 0,
    -- Why a parked run waits and since when; how long it was parked before.
    ADD COLUMN parked              text,
    ADD COLUMN parked_at           timestamptz,
    ADD COLUMN paused_ms           bigint NOT NULL DEFAULT 0,
    -- Receipts of a cancel: its worker knew, its last process was dead. The end of the run is the last one.
    ADD COLUMN cancel_delivered_at timestamptz,
    ADD COLUMN cancel_stopped_at   timestamptz;
UPDATE runs SET attempts = lost_attempts + CASE WHEN state >= 10 AND started_at IS NOT NULL THEN 1 ELSE 0 END;

-- Runs that started and wait for another owner: few, and the only ones that can run out of time without one.
CREATE INDEX runs_waiting_again ON runs (id) WHERE state = 0 AND started_at IS NOT NULL;

ALTER TABLE sessions
    -- The newest commit of an owner: a repeated one is answered, not done again.
    ADD COLUMN last_commit uuid,
    ADD COLUMN parent_id   uuid;
CREATE INDEX sessions_by_parent ON sessions (parent_id) WHERE parent_id IS NOT NULL;

-- Everything that a gone worker owned is surely in other hands.
ALTER TABLE workers ADD COLUMN taken_back boolean NOT NULL DEFAULT false;

-- Background tasks of the control plane with their last round, and their last that did something or failed.
CREATE TABLE tasks (
    name         text PRIMARY KEY,
    rounds       bigint NOT NULL,
    failures     bigint NOT NULL,
    last_round   text NOT NULL,
    last_notable text
);
