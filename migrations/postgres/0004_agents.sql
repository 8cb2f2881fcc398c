-- What agents need.

ALTER TABLE sessions
    -- The agent that leads it, and the model it was made with; nothing means the workspace's default.
    ADD COLUMN agent text,
    ADD COLUMN model text;

-- Messages are in the order in which they entered the transcript, which is not that of their ids: a user's message has its id
-- when it is submitted, and enters when its run starts.
ALTER TABLE messages
    ADD COLUMN position bigint NOT NULL DEFAULT 0,
    ADD COLUMN ordinal  integer NOT NULL DEFAULT 0,
    ADD COLUMN agent    text;
CREATE INDEX messages_in_order ON messages (session_id, position, ordinal, id);

-- Texts that are stored once, under their SHA-256: prompts, tool descriptions, versions of a workspace's definitions.
CREATE TABLE contents (
    tenant_id uuid NOT NULL,
    hash      bytea NOT NULL,
    body      text NOT NULL, -- a JSON string
    PRIMARY KEY (tenant_id, hash)
);
