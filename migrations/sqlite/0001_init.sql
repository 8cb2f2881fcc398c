-- The truth of Remuda in the embedded mode: the same tables as on PostgreSQL. Times are microseconds since 1970, UTC.

CREATE TABLE tenants (
    id          BLOB PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE,
    created_at  INTEGER NOT NULL
);

-- Only the hash of a key's secret is here.
CREATE TABLE api_keys (
    id          BLOB PRIMARY KEY,
    tenant_id   BLOB NOT NULL REFERENCES tenants,
    name        TEXT NOT NULL,
    secret_hash BLOB NOT NULL UNIQUE,
    scopes      TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER,
    revoked_at  INTEGER
);
CREATE INDEX api_keys_by_tenant ON api_keys (tenant_id, id);

CREATE TABLE workspaces (
    id          BLOB PRIMARY KEY,
    tenant_id   BLOB NOT NULL REFERENCES tenants,
    name        TEXT NOT NULL,
    root        TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    UNIQUE (tenant_id, name)
);

CREATE TABLE workers (
    id          BLOB PRIMARY KEY,
    host        TEXT NOT NULL,
    version     TEXT NOT NULL,
    pool        TEXT NOT NULL,
    slots       INTEGER NOT NULL,
    busy        INTEGER NOT NULL DEFAULT 0,
    -- 0 active, 1 draining, 2 gone. A claim over an ended lease writes 2, and a gone worker cannot renew: so either the
    -- renewal or the takeover happens, never both.
    state       INTEGER NOT NULL DEFAULT 0,
    started_at  INTEGER NOT NULL,
    lease_until INTEGER NOT NULL
);

-- The head of a session changes with every run: no index names a column that changes.
CREATE TABLE sessions (
    id                 BLOB PRIMARY KEY,
    tenant_id          BLOB NOT NULL REFERENCES tenants,
    workspace_id       BLOB NOT NULL REFERENCES workspaces,
    name               TEXT,
    title              TEXT NOT NULL,
    pool               TEXT NOT NULL,
    closed             INTEGER NOT NULL DEFAULT 0,
    created_at         INTEGER NOT NULL,
    epoch              INTEGER NOT NULL DEFAULT 0,
    owner              BLOB,
    current_run        BLOB,
    current_started_at INTEGER,
    pending            INTEGER NOT NULL DEFAULT 0,
    last_seq           INTEGER NOT NULL DEFAULT 0,
    last_cursor        INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant_id, name)
);
CREATE INDEX sessions_by_tenant ON sessions (tenant_id, id);

-- The head run of an owned session is the running one; no write says so. `state` here is queued (0), parked (2) or
-- terminal (10 and up), see RunState::to_db.
CREATE TABLE runs (
    id               BLOB PRIMARY KEY,
    tenant_id        BLOB NOT NULL,
    session_id       BLOB NOT NULL,
    seq              INTEGER NOT NULL,
    state            INTEGER NOT NULL,
    input            TEXT NOT NULL,
    timeout_ms       INTEGER NOT NULL,
    -- Owners that started the run before the present one.
    lost_attempts    INTEGER NOT NULL DEFAULT 0,
    created_at       INTEGER NOT NULL,
    started_at       INTEGER,
    finished_at      INTEGER,
    failure          TEXT,
    -- The steps that were committed together with the end: a small run needs no rows in `steps`.
    last_steps       TEXT,
    cancel_at        INTEGER,
    cancel_reason    TEXT,
    idempotency_key  TEXT,
    traceparent      TEXT
);
CREATE UNIQUE INDEX runs_by_session ON runs (session_id, seq);
CREATE INDEX runs_live ON runs (session_id, seq) WHERE state < 10;
CREATE INDEX runs_by_tenant ON runs (tenant_id, id);

CREATE TABLE idempotency_keys (
    tenant_id    BLOB NOT NULL,
    key          TEXT NOT NULL,
    request_hash BLOB NOT NULL,
    run_id       BLOB NOT NULL,
    expires_at   INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, key)
) WITHOUT ROWID;
CREATE INDEX idempotency_keys_by_expiry ON idempotency_keys (expires_at);

-- A step holds its tool call and, once there, the outcome.
CREATE TABLE steps (
    run_id    BLOB NOT NULL,
    id        BLOB NOT NULL,
    position  INTEGER NOT NULL,
    step      TEXT NOT NULL,
    PRIMARY KEY (run_id, id)
) WITHOUT ROWID;

CREATE TABLE messages (
    session_id BLOB NOT NULL,
    id         BLOB NOT NULL,
    run_id     BLOB,
    role       TEXT NOT NULL,
    parts      TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (session_id, id)
) WITHOUT ROWID;

-- One row per commit, not per event.
CREATE TABLE events (
    session_id  BLOB NOT NULL,
    last_cursor INTEGER NOT NULL,
    chunk       TEXT NOT NULL,
    PRIMARY KEY (session_id, last_cursor)
) WITHOUT ROWID;

-- Leases of the control planes, by name.
CREATE TABLE leases (
    name        TEXT PRIMARY KEY,
    holder      TEXT NOT NULL,
    lease_until INTEGER NOT NULL
);
