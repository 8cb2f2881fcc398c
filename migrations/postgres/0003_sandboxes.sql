-- Where tools execute.

-- What a session asked for, as JSON; nothing means its tenant's default.
ALTER TABLE sessions ADD COLUMN execution text;

-- Containers and the like, written before they are made and deleted after they are gone. What is left here of a worker that
-- is no more has to be looked for.
CREATE TABLE sandboxes (
    id         uuid PRIMARY KEY,
    worker_id  uuid NOT NULL,
    -- Missing for a spare one, which is nobody's yet.
    tenant_id  uuid,
    session_id uuid,
    epoch      bigint,
    backend    text NOT NULL,
    engine     text NOT NULL,
    handle     text,
    image      text NOT NULL,
    digest     text NOT NULL,
    state      text NOT NULL,
    created_at timestamptz NOT NULL,
    used_at    timestamptz NOT NULL
);
CREATE INDEX sandboxes_by_worker ON sandboxes (worker_id);

-- What tells the containers of this installation from those of another on the same engine.
CREATE TABLE installation (id uuid NOT NULL);
INSERT INTO installation VALUES (gen_random_uuid());
