-- Keys that sign messages on the bus. Those of the installation are rows here; each worker has one of its own in its row.
CREATE TABLE bus_keys (
    id         uuid PRIMARY KEY,
    secret     bytea NOT NULL,
    created_at timestamptz NOT NULL,
    -- Set when a newer key replaces it: it is accepted until then.
    retires_at timestamptz
);

-- Each of the two random ids has 122 random bits.
INSERT INTO bus_keys (id, secret, created_at)
VALUES (gen_random_uuid(), uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()), clock_timestamp());

ALTER TABLE workers ADD COLUMN bus_secret bytea;
