-- Who is told what happens in a session. A webhook is a durable reader: it has a place in the session's stream.

CREATE TABLE webhooks (
    id              uuid PRIMARY KEY,
    tenant_id       uuid NOT NULL,
    session_id      uuid NOT NULL,
    -- Only this run's events.
    run_id          uuid,
    url             text NOT NULL,
    -- A JSON list; empty means all.
    types           text NOT NULL,
    -- Deliveries are signed with it, so its hash would not do.
    secret          bytea NOT NULL,
    -- The secret before that, still used beside it for a while after a change.
    previous_secret bytea,
    previous_until  timestamptz,
    state           text NOT NULL,
    -- Everything up to here was delivered, given up or not wanted.
    cursor          bigint NOT NULL,
    -- Of the event that comes next.
    attempts        integer NOT NULL DEFAULT 0,
    next_attempt_at timestamptz,
    failure         text,
    failure_status  integer,
    delivered_at    timestamptz,
    -- Dead letters that made room for newer ones.
    dropped         bigint NOT NULL DEFAULT 0,
    created_at      timestamptz NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX webhooks_by_tenant ON webhooks (tenant_id, id);
CREATE INDEX webhooks_by_session ON webhooks (session_id, id);
CREATE INDEX webhooks_active ON webhooks (id) WHERE state = 'active';

-- Events that were given up. They are kept whole: the stream may be cut before someone wants them again.
CREATE TABLE dead_letters (
    webhook_id      uuid NOT NULL,
    cursor          bigint NOT NULL,
    id              uuid NOT NULL,
    event           text NOT NULL,
    attempts        integer NOT NULL,
    failure         text NOT NULL,
    failure_status  integer,
    died_at         timestamptz NOT NULL,
    -- Someone wants it delivered again.
    next_attempt_at timestamptz,
    PRIMARY KEY (webhook_id, cursor)
);
CREATE INDEX dead_letters_wanted ON dead_letters (next_attempt_at) WHERE next_attempt_at IS NOT NULL;
