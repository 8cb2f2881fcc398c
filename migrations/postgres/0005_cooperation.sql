-- Runs below runs, questions to people, and what may be spent.

ALTER TABLE sessions
    -- What was said about permissions, as JSON; nothing means nothing.
    ADD COLUMN permissions text,
    -- How many sessions are above it.
    ADD COLUMN depth       integer NOT NULL DEFAULT 0,
    -- The nearest budget that covers it: its own (then it has the session's id), or one of a session above.
    ADD COLUMN budget_id   uuid,
    -- Something may hang on a run of it: a parent, children, approvals, spending. While this is false, the end of a run needs to
    -- look for none of them. It is set once and never taken back.
    ADD COLUMN ties        boolean NOT NULL DEFAULT false;

WITH RECURSIVE tree (id, depth) AS (
    SELECT id, 0 FROM sessions WHERE parent_id IS NULL
    UNION ALL
    SELECT s.id, t.depth + 1 FROM tree t JOIN sessions s ON s.parent_id = t.id
)
UPDATE sessions s SET depth = t.depth FROM tree t WHERE t.id = s.id AND t.depth > 0;

-- In order, to be listed.
DROP INDEX sessions_by_parent;
CREATE INDEX sessions_by_parent ON sessions (parent_id, id) WHERE parent_id IS NOT NULL;

ALTER TABLE runs
    -- The run that it works for.
    ADD COLUMN parent_run         uuid,
    -- The nearest budget of a run that covers it: its own (then it has the run's id), or one of a run above.
    ADD COLUMN budget_id          uuid,
    -- Of a parked run: how many of its `waits` have to come, or what could not be reserved.
    ADD COLUMN wait_needed        integer,
    ADD COLUMN wait_tokens        bigint,
    ADD COLUMN wait_micros        bigint,
    -- What it spent, without the runs below it. Nothing for a run that never asked a model.
    ADD COLUMN model_calls        bigint,
    ADD COLUMN input_tokens       bigint,
    ADD COLUMN output_tokens      bigint,
    ADD COLUMN cached_tokens      bigint,
    ADD COLUMN cache_write_tokens bigint,
    ADD COLUMN reasoning_tokens   bigint,
    ADD COLUMN cost_micros        bigint;
CREATE INDEX runs_by_parent ON runs (parent_run) WHERE parent_run IS NOT NULL;
-- Gone through some at a time: for orphans, which are few among many with a parent that lives, and for waits that are over.
CREATE INDEX runs_live_children ON runs (id) WHERE parent_run IS NOT NULL AND state < 10;
CREATE INDEX runs_parked ON runs (id) WHERE state = 2;
-- From a budget that was raised to those that wait for it.
CREATE INDEX runs_parked_for_budget ON runs (budget_id) WHERE state = 2 AND parked = 'budget';
CREATE INDEX sessions_by_budget ON sessions (budget_id) WHERE budget_id IS NOT NULL;

-- What a parked run waits for: ids of runs and of approvals. Deleted when it goes on, and when it ends.
CREATE TABLE waits (
    run_id    uuid NOT NULL,
    awaited   uuid NOT NULL,
    -- What a run had worked when the wait for it began: only what it works from then on is time of the one that waits.
    worked_ms bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, awaited)
);

CREATE TABLE approvals (
    id         uuid PRIMARY KEY,
    tenant_id  uuid NOT NULL,
    session_id uuid NOT NULL,
    run_id     uuid NOT NULL,
    state      text NOT NULL,
    request    text NOT NULL,
    decision   text,
    created_at timestamptz NOT NULL,
    expires_at timestamptz
);
CREATE INDEX approvals_by_tenant ON approvals (tenant_id, id);
CREATE INDEX approvals_by_session ON approvals (session_id, id);
CREATE INDEX approvals_by_run ON approvals (run_id, id);
CREATE INDEX approvals_pending ON approvals (tenant_id, id) WHERE state = 'pending';
CREATE INDEX approvals_by_expiry ON approvals (expires_at) WHERE state = 'pending' AND expires_at IS NOT NULL;

-- A budget has the id of the run or session that it was made for. What is reserved is the sum of `reservations`, so that it cannot drift.
CREATE TABLE budgets (
    id           uuid PRIMARY KEY,
    tenant_id    uuid NOT NULL,
    -- The next budget above, which covers all that this one does.
    parent_id    uuid,
    limit_tokens bigint,
    limit_micros bigint,
    spent_tokens bigint NOT NULL DEFAULT 0,
    spent_micros bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70);
CREATE INDEX budgets_by_parent ON budgets (parent_id) WHERE parent_id IS NOT NULL;

-- What is held for a step's question, in each budget that covered its run then.
CREATE TABLE reservations (
    step_id   uuid NOT NULL,
    budget_id uuid NOT NULL,
    run_id    uuid NOT NULL,
    tokens    bigint NOT NULL,
    micros    bigint NOT NULL,
    PRIMARY KEY (step_id, budget_id)
);
CREATE INDEX reservations_by_budget ON reservations (budget_id);
CREATE INDEX reservations_by_run ON reservations (run_id);

-- Steps of unfinished runs whose cost was counted: a new owner may tell of one again.
CREATE TABLE spent_steps (
    run_id  uuid NOT NULL,
    step_id uuid NOT NULL,
    PRIMARY KEY (run_id, step_id)
);
