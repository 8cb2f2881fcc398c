-- The truth of Remuda. JSON is kept as text: it is written and read whole by the services, never searched, and unlike
-- jsonb it can hold any string that JSON can (PostgreSQL refuses \u0000 in jsonb).

CREATE TABLE tenants (
    id          uuid PRIMARY KEY,
    name        text NOT NULL UNIQUE,
    created_at  timestamptz NOT NULL
);

-- Only the hash of a key's secret is here.
CREATE TABLE api_keys (
    id          uuid PRIMARY KEY,
    tenant_id   uuid NOT NULL REFERENCES tenants,
    name        text NOT NULL,
    secret_hash bytea NOT NULL UNIQUE,
    scopes      text NOT NULL,
    created_at  timestamptz NOT NULL,
    expires_at  timestamptz,
    revoked_at  timestamptz
);
CREATE INDEX api_keys_by_tenant ON api_keys (tenant_id, id);

CREATE TABLE workspaces (
    id          uuid PRIMARY KEY,
    tenant_id   uuid NOT NULL REFERENCES tenants,
    name        text NOT NULL,
    root        text NOT NULL,
    created_at  timestamptz NOT NULL,
    UNIQUE (tenant_id, name)
);

CREATE TABLE workers (
    id          uuid PRIMARY KEY,
    host        text NOT NULL,
    version     text NOT NULL,
    pool        text NOT NULL,
    slots       integer NOT NULL,
    busy        integer NOT NULL DEFAULT 0,
    -- 0 active, 1 draining, 2 gone. A claim over an ended lease writes 2, and a gone worker cannot renew: so either the
    -- renewal or the takeover happens, never both.
    state       smallint NOT NULL DEFAULT 0,
    started_at  timestamptz NOT NULL,
    lease_until timestamptz NOT NULL
);

-- The head of a session changes with every run. No index names a column that changes, and pages keep room, so that these
-- updates stay in place (HOT).
CREATE TABLE sessions (
    id                 uuid PRIMARY KEY,
    tenant_id          uuid NOT NULL REFERENCES tenants,
    workspace_id       uuid NOT NULL REFERENCES workspaces,
    name               text,
    title              text NOT NULL,
    pool               text NOT NULL,
    closed             boolean NOT NULL DEFAULT false,
    created_at         timestamptz NOT NULL,
    epoch              bigint NOT NULL DEFAULT 0,
    owner              uuid,
    current_run        uuid,
    current_started_at timestamptz,
    pending            bigint NOT NULL DEFAULT 0,
    last_seq           bigint NOT NULL DEFAULT 0,
    last_cursor        bigint NOT NULL DEFAULT 0,
    UNIQUE (tenant_id, name)
) WITH (fillfactor = 70);
CREATE INDEX sessions_by_tenant ON sessions (tenant_id, id);

-- The head run of an owned session is the running one; no write says so. `state` here is queued (0), parked (2) or
-- terminal (10 and up), see RunState::to_db.
CREATE TABLE runs (
    id               uuid PRIMARY KEY,
    tenant_id        uuid NOT NULL,
    session_id       uuid NOT NULL,
    seq              bigint NOT NULL,
    state            smallint NOT NULL,
    input            text NOT NULL,
    timeout_ms       bigint NOT NULL,
    -- Owners that started the run before the present one.
    lost_attempts    integer NOT NULL DEFAULT 0,
    created_at       timestamptz NOT NULL,
    started_at       timestamptz,
    finished_at      timestamptz,
    failure          text,
    -- The steps that were committed together with the end: a small run needs no rows in `steps`.
    last_steps       text,
    cancel_at        timestamptz,
    cancel_reason    text,
    idempotency_key  text,
    traceparent      text
);
CREATE UNIQUE INDEX runs_by_session ON runs (session_id, seq);
CREATE INDEX runs_live ON runs (session_id, seq) WHERE state < 10;
CREATE INDEX runs_by_tenant ON runs (tenant_id, id);

CREATE TABLE idempotency_keys (
    tenant_id    uuid NOT NULL,
    key          text NOT NULL,
    request_hash bytea NOT NULL,
    run_id       uuid NOT NULL,
    expires_at   timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, key)
);
CREATE INDEX idempotency_keys_by_expiry ON idempotency_keys (expires_at);

-- A step holds its tool call and, once there, the outcome.
CREATE TABLE steps (
    run_id    uuid NOT NULL,
    id        uuid NOT NULL,
    position  integer NOT NULL,
    step      text NOT NULL,
    PRIMARY KEY (run_id, id)
);

CREATE TABLE messages (
    session_id uuid NOT NULL,
    id         uuid NOT NULL,
    run_id     uuid,
    role       text NOT NULL,
    parts      text NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (session_id, id)
);

-- One row per commit, not per event.
CREATE TABLE events (
    session_id  uuid NOT NULL,
    last_cursor bigint NOT NULL,
    chunk       text NOT NULL,
    PRIMARY KEY (session_id, last_cursor)
);

-- Leases of the control planes, by name.
CREATE TABLE leases (
    name        text PRIMARY KEY,
    holder      text NOT NULL,
    lease_until timestamptz NOT NULL
);
