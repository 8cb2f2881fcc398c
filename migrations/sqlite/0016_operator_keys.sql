-- Keys with the scope operator belong to no tenant, and no other key does. Existing keys stay: admin now means the administrator
-- of the key's own tenant. SQLite cannot drop NOT NULL from a column, so the table is written again.
CREATE TABLE api_keys_with_operators (
    id          BLOB PRIMARY KEY,
    tenant_id   BLOB REFERENCES tenants,
    name        TEXT NOT NULL,
    secret_hash BLOB NOT NULL UNIQUE,
    scopes      TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER,
    revoked_at  INTEGER,
    CHECK ((tenant_id IS NULL) = (scopes = 'operator'))
);
INSERT INTO api_keys_with_operators
SELECT id, tenant_id, name, secret_hash, scopes, created_at, expires_at, revoked_at FROM api_keys;
DROP TABLE api_keys;
ALTER TABLE api_keys_with_operators RENAME TO api_keys;
CREATE INDEX api_keys_by_tenant ON api_keys (tenant_id, id);
