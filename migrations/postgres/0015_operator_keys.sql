-- Keys with the scope operator belong to no tenant, and no other key does. Existing keys stay: admin now means the administrator
-- of the key's own tenant.
ALTER TABLE api_keys ALTER COLUMN tenant_id DROP NOT NULL;
ALTER TABLE api_keys ADD CONSTRAINT api_keys_operator CHECK ((tenant_id IS NULL) = (scopes = 'operator'));
