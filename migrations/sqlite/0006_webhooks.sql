-- Who is told what happens in a session. See the PostgreSQL migration for the reasons.

CREATE TABLE webhooks (
    id              BLOB PRIMARY KEY,
    tenant_id       BLOB NOT NULL,
    session_id      BLOB NOT NULL,
    run_id          BLOB,
    url             TEXT NOT NULL,
    types           TEXT NOT NULL,
    secret          BLOB NOT NULL,
    previous_secret BLOB,
    previous_until  INTEGER,
    state           TEXT NOT NULL,
    cursor          INTEGER NOT NULL,
    attempts        INTEGER NOT NULL DEFAULT 0,
    next_attempt_at INTEGER,
    failure         TEXT,
    failure_status  INTEGER,
    delivered_at    INTEGER,
    dropped         INTEGER NOT NULL DEFAULT 0,
    created_at      INTEGER NOT NULL
) STRICT;
CREATE INDEX webhooks_by_tenant ON webhooks (tenant_id, id);
CREATE INDEX webhooks_by_session ON webhooks (session_id, id);
CREATE INDEX webhooks_active ON webhooks (id) WHERE state = 'active';

CREATE TABLE dead_letters (
    webhook_id      BLOB NOT NULL,
    cursor          INTEGER NOT NULL,
    id              BLOB NOT NULL,
    event           TEXT NOT NULL,
    attempts        INTEGER NOT NULL,
    failure         TEXT NOT NULL,
    failure_status  INTEGER,
    died_at         INTEGER NOT NULL,
    next_attempt_at INTEGER,
    PRIMARY KEY (webhook_id, cursor)
) STRICT;
CREATE INDEX dead_letters_wanted ON dead_letters (next_attempt_at) WHERE next_attempt_at IS NOT NULL;
