-- Runs below runs, questions to people, and what may be spent. See the PostgreSQL migration for the reasons.

ALTER TABLE sessions ADD COLUMN permissions TEXT;
ALTER TABLE sessions ADD COLUMN depth INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN budget_id BLOB;
ALTER TABLE sessions ADD COLUMN ties INTEGER NOT NULL DEFAULT 0;

WITH RECURSIVE tree (id, depth) AS (
    SELECT id, 0 FROM sessions WHERE parent_id IS NULL
    UNION ALL
    SELECT s.id, t.depth + 1 FROM tree t JOIN sessions s ON s.parent_id = t.id
)
UPDATE sessions SET depth = t.depth FROM tree t WHERE t.id = sessions.id AND t.depth > 0;

DROP INDEX sessions_by_parent;
CREATE INDEX sessions_by_parent ON sessions (parent_id, id) WHERE parent_id IS NOT NULL;

ALTER TABLE runs ADD COLUMN parent_run BLOB;
ALTER TABLE runs ADD COLUMN budget_id BLOB;
ALTER TABLE runs ADD COLUMN wait_needed INTEGER;
ALTER TABLE runs ADD COLUMN wait_tokens INTEGER;
ALTER TABLE runs ADD COLUMN wait_micros INTEGER;
ALTER TABLE runs ADD COLUMN model_calls INTEGER;
ALTER TABLE runs ADD COLUMN input_tokens INTEGER;
ALTER TABLE runs ADD COLUMN output_tokens INTEGER;
ALTER TABLE runs ADD COLUMN cached_tokens INTEGER;
ALTER TABLE runs ADD COLUMN cache_write_tokens INTEGER;
ALTER TABLE runs ADD COLUMN reasoning_tokens INTEGER;
ALTER TABLE runs ADD COLUMN cost_micros INTEGER;
CREATE INDEX runs_by_parent ON runs (parent_run) WHERE parent_run IS NOT NULL;
CREATE INDEX runs_live_children ON runs (id) WHERE parent_run IS NOT NULL AND state < 10;
CREATE INDEX runs_parked ON runs (id) WHERE state = 2;
CREATE INDEX runs_parked_for_budget ON runs (budget_id) WHERE state = 2 AND parked = 'budget';
CREATE INDEX sessions_by_budget ON sessions (budget_id) WHERE budget_id IS NOT NULL;

CREATE TABLE waits (
    run_id    BLOB NOT NULL,
    awaited   BLOB NOT NULL,
    worked_ms INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, awaited)
) STRICT, WITHOUT ROWID;

CREATE TABLE approvals (
    id         BLOB PRIMARY KEY,
    tenant_id  BLOB NOT NULL,
    session_id BLOB NOT NULL,
    run_id     BLOB NOT NULL,
    state      TEXT NOT NULL,
    request    TEXT NOT NULL,
    decision   TEXT,
    created_at INTEGER NOT NULL,
    expires_at INTEGER
) STRICT;
CREATE INDEX approvals_by_tenant ON approvals (tenant_id, id);
CREATE INDEX approvals_by_session ON approvals (session_id, id);
CREATE INDEX approvals_by_run ON approvals (run_id, id);
CREATE INDEX approvals_pending ON approvals (tenant_id, id) WHERE state = 'pending';
CREATE INDEX approvals_by_expiry ON approvals (expires_at) WHERE state = 'pending' AND expires_at IS NOT NULL;

CREATE TABLE budgets (
    id           BLOB PRIMARY KEY,
    tenant_id    BLOB NOT NULL,
    parent_id    BLOB,
    limit_tokens INTEGER,
    limit_micros INTEGER,
    spent_tokens INTEGER NOT NULL DEFAULT 0,
    spent_micros INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX budgets_by_parent ON budgets (parent_id) WHERE parent_id IS NOT NULL;

CREATE TABLE reservations (
    step_id   BLOB NOT NULL,
    budget_id BLOB NOT NULL,
    run_id    BLOB NOT NULL,
    tokens    INTEGER NOT NULL,
    micros    INTEGER NOT NULL,
    PRIMARY KEY (step_id, budget_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX reservations_by_budget ON reservations (budget_id);
CREATE INDEX reservations_by_run ON reservations (run_id);

CREATE TABLE spent_steps (
    run_id  BLOB NOT NULL,
    step_id BLOB NOT NULL,
    PRIMARY KEY (run_id, step_id)
) STRICT, WITHOUT ROWID;
