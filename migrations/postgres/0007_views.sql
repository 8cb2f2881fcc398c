-- What operators may look at with SQL: docs/sql.md says what every column means. The views show who, where, when and how much, never
-- what was said: no input, message, output, reason or secret. They join or count, so nobody can write through them, and they are
-- security barriers, so that what a caller puts into a WHERE sees no row that the caller does not.

-- An id as the API prints it: remuda_id('run', id) is run_ and 26 characters of Crockford's base 32.
CREATE FUNCTION remuda_id(prefix text, id uuid) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    alphabet constant text := '0123456789abcdefghjkmnpqrstvwxyz';
    -- 26 digits are 130 bits: the number begins six bits into the first byte.
    bytes constant bytea := '\x00'::bytea || uuid_send(id) || '\x00'::bytea;
    printed text := prefix || '_';
    bit integer;
BEGIN
    FOR digit IN 0..25 LOOP
        bit := 5 * digit + 6;
        printed := printed || substr(alphabet, 1 + ((((get_byte(bytes, bit / 8) << 8)
            | get_byte(bytes, bit / 8 + 1)) >> (11 - bit % 8)) & 31), 1);
    END LOOP;
    RETURN printed;
END $$;

-- The other way round, for the uuid columns of the views, which have indexes: WHERE run_uuid = remuda_uuid('run_…').
CREATE FUNCTION remuda_uuid(printed text) RETURNS uuid
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    alphabet constant text := '0123456789abcdefghjkmnpqrstvwxyz';
    digits constant text := substring(printed from '^[a-z]+_([0-7][0-9a-hjkmnp-tv-z]{25})$');
    bits bit varying := '';
BEGIN
    IF digits IS NULL THEN
        RAISE EXCEPTION 'expected an id such as run_01h455vb4pex5vsknk084sn02q' USING ERRCODE = '22P02';
    END IF;
    FOR digit IN 1..26 LOOP
        bits := bits || (strpos(alphabet, substr(digits, digit, 1)) - 1)::bit(5);
    END LOOP;
    RETURN (lpad(to_hex(substring(bits from 3 for 64)::bit(64)::bigint), 16, '0')
        || lpad(to_hex(substring(bits from 67 for 64)::bit(64)::bigint), 16, '0'))::uuid;
END $$;

-- The tenants to which the caller is confined: those of the roles remuda_tenant_<tenant's name> that it is, or whose rights it has
-- as a member. Nothing for everybody else: they see all. Superusers have the rights of all roles and are confined to none. A name of 63
-- bytes may have been cut, and what is left of it may be another tenant's name: such a role is confined to NULL, which is nobody's.
CREATE FUNCTION remuda_confined_to() RETURNS text[]
LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT array_agg(CASE WHEN octet_length(tenant.rolname::text) < 63 THEN substr(tenant.rolname, length('remuda_tenant_') + 1) END)
    FROM pg_roles me, pg_roles tenant
    WHERE me.rolname = current_user AND NOT me.rolsuper
      AND starts_with(tenant.rolname, 'remuda_tenant_') AND pg_has_role(me.oid, tenant.oid, 'USAGE')
$$;

-- The one place that decides who sees what. Not for operators: the views below use it.
CREATE VIEW visible_tenants WITH (security_barrier) AS
SELECT id, name FROM tenants
WHERE (SELECT remuda_confined_to()) IS NULL OR name = ANY ((SELECT remuda_confined_to())::text[]);

-- Workers as they are now: one whose lease has ended is gone, whatever it said last. Not for operators either.
CREATE VIEW worker_states AS
SELECT id, state < 2 AND lease_until > statement_timestamp() AS alive,
    CASE WHEN state = 2 OR lease_until <= statement_timestamp() THEN 'gone' WHEN state = 1 THEN 'draining' ELSE 'active' END AS state
FROM workers;

CREATE VIEW v_sessions WITH (security_barrier) AS
SELECT t.name AS tenant, remuda_id('ten', t.id) AS tenant_id,
    remuda_id('ses', s.id) AS session_id, s.name AS session_name,
    remuda_id('ses', s.parent_id) AS parent_session_id, s.depth,
    remuda_id('ws', s.workspace_id) AS workspace_id, k.name AS workspace,
    s.pool, s.agent, s.model,
    CASE WHEN s.closed THEN 'closed' ELSE 'open' END AS status,
    CASE WHEN s.pending = 0 THEN 'idle' WHEN w.alive THEN 'running' WHEN head.state = 2 THEN 'parked' ELSE 'runnable' END AS activity,
    s.pending AS unfinished_runs, s.last_seq AS runs, s.last_cursor AS events,
    remuda_id('run', head.id) AS head_run_id,
    CASE WHEN s.pending > 0 THEN head.created_at END AS head_created_at,
    remuda_id('wrk', s.owner) AS worker_id, s.epoch, s.created_at,
    b.limit_micros / 1000000.0 AS budget_usd, b.spent_micros / 1000000.0 AS budget_spent_usd,
    b.limit_tokens AS budget_tokens, b.spent_tokens AS budget_spent_tokens,
    s.id AS session_uuid, s.parent_id AS parent_session_uuid
FROM sessions s
JOIN visible_tenants t ON t.id = s.tenant_id
JOIN workspaces k ON k.id = s.workspace_id
LEFT JOIN worker_states w ON w.id = s.owner
LEFT JOIN budgets b ON b.id = s.id
LEFT JOIN LATERAL (
    SELECT r.id, r.state, r.created_at FROM runs r WHERE r.session_id = s.id AND r.state < 10 ORDER BY r.seq LIMIT 1
) head ON s.pending > 0;

-- A run that a worker has in hand is stored as queued: it is the current one of its session.
CREATE VIEW v_runs WITH (security_barrier) AS
SELECT t.name AS tenant, remuda_id('ten', t.id) AS tenant_id,
    remuda_id('run', r.id) AS run_id, remuda_id('ses', r.session_id) AS session_id, s.name AS session_name, s.pool,
    r.seq, substring(substr(r.input, 1, 40) from '^\{"kind":"([a-z_]+)"') AS kind,
    CASE r.state
        WHEN 0 THEN CASE WHEN s.current_run = r.id THEN 'running' ELSE 'queued' END
        WHEN 1 THEN 'running' WHEN 2 THEN 'parked'
        WHEN 10 THEN 'completed' WHEN 11 THEN 'failed' WHEN 12 THEN 'cancelled' WHEN 13 THEN 'timed_out'
    END AS state,
    r.state < 10 AS unfinished,
    r.parked AS waits_for, r.parked_at AS waits_since,
    substring(substr(r.failure, 1, 80) from '^\{"code":"([a-z_]+)"') AS failure_code,
    CASE WHEN s.current_run = r.id THEN remuda_id('wrk', s.owner) END AS worker_id,
    r.attempts + CASE WHEN s.current_run = r.id THEN 1 ELSE 0 END AS attempts, r.lost_attempts,
    r.created_at, started.at AS started_at, r.finished_at,
    round(extract(epoch FROM coalesce(started.at, r.finished_at, statement_timestamp()) - r.created_at)::numeric, 3) AS queue_seconds,
    round(extract(epoch FROM coalesce(r.finished_at, statement_timestamp()) - started.at)::numeric, 3) AS run_seconds,
    round(r.paused_ms / 1000.0, 3) AS paused_seconds, round(r.timeout_ms / 1000.0, 3) AS timeout_seconds,
    r.cancel_at AS cancel_requested_at, r.cancel_delivered_at, r.cancel_stopped_at,
    round(extract(epoch FROM coalesce(r.finished_at, statement_timestamp()) - r.cancel_at)::numeric, 3) AS cancel_seconds,
    remuda_id('run', r.parent_run) AS parent_run_id,
    r.model_calls, r.input_tokens, r.output_tokens, r.cached_tokens, r.cache_write_tokens, r.reasoning_tokens,
    r.cost_micros / 1000000.0 AS cost_usd,
    substring(r.traceparent from '^[0-9a-f]{2}-([0-9a-f]{32})-') AS trace_id,
    r.id AS run_uuid, r.session_id AS session_uuid, r.parent_run AS parent_run_uuid
FROM runs r
JOIN visible_tenants t ON t.id = r.tenant_id
JOIN sessions s ON s.id = r.session_id
CROSS JOIN LATERAL (
    SELECT coalesce(r.started_at, CASE WHEN s.current_run = r.id THEN s.current_started_at END) AS at
) started;

-- By tenant and pool, as a tenant must not learn how long the lines of others are. The first unfinished run of a session decides
-- what the session waits for.
CREATE VIEW v_queue WITH (security_barrier) AS
SELECT t.name AS tenant, remuda_id('ten', t.id) AS tenant_id, s.pool,
    count(*) FILTER (WHERE r.is_head AND r.state = 0 AND w.alive IS NOT TRUE) AS runnable_sessions,
    count(*) FILTER (WHERE s.current_run = r.id AND w.alive) AS running_sessions,
    count(*) FILTER (WHERE r.state = 0 AND (s.current_run = r.id AND w.alive) IS NOT TRUE) AS queued_runs,
    count(*) FILTER (WHERE r.state = 2) AS parked_runs,
    min(r.created_at) FILTER (WHERE r.is_head AND r.state = 0 AND w.alive IS NOT TRUE) AS oldest_runnable_at,
    round(coalesce(extract(epoch FROM statement_timestamp()
        - min(r.created_at) FILTER (WHERE r.is_head AND r.state = 0 AND w.alive IS NOT TRUE)), 0)::numeric, 3) AS oldest_runnable_seconds
FROM (
    SELECT id, tenant_id, session_id, state, created_at, row_number() OVER (PARTITION BY session_id ORDER BY seq) = 1 AS is_head
    FROM runs WHERE state < 10
) r
JOIN visible_tenants t ON t.id = r.tenant_id
JOIN sessions s ON s.id = r.session_id
LEFT JOIN worker_states w ON w.id = s.owner
GROUP BY t.id, t.name, s.pool;

-- Workers are nobody's, and how busy they are says something of everybody: a tenant's role sees none.
CREATE VIEW v_workers WITH (security_barrier) AS
SELECT remuda_id('wrk', w.id) AS worker_id, w.host, w.version, w.pool, now.state, w.slots, w.busy,
    CASE WHEN now.state = 'active' THEN greatest(w.slots - w.busy, 0) ELSE 0 END AS free,
    w.started_at, w.lease_until,
    round(extract(epoch FROM w.lease_until - statement_timestamp())::numeric, 3) AS lease_seconds,
    w.id AS worker_uuid
FROM workers w JOIN worker_states now ON now.id = w.id
WHERE (SELECT remuda_confined_to()) IS NULL;

-- A spare sandbox is nobody's yet: a tenant's role does not see it.
CREATE VIEW v_sandboxes WITH (security_barrier) AS
SELECT t.name AS tenant, remuda_id('ten', x.tenant_id) AS tenant_id,
    remuda_id('sbx', x.id) AS sandbox_id, remuda_id('ses', x.session_id) AS session_id, remuda_id('wrk', x.worker_id) AS worker_id,
    coalesce(w.alive, false) AS worker_alive, x.state, x.backend, x.engine, x.handle, x.image, x.digest, x.epoch,
    x.created_at, x.used_at,
    round(extract(epoch FROM statement_timestamp() - x.created_at)::numeric, 3) AS age_seconds,
    round(extract(epoch FROM statement_timestamp() - x.used_at)::numeric, 3) AS idle_seconds,
    x.id AS sandbox_uuid, x.session_id AS session_uuid
FROM sandboxes x
LEFT JOIN visible_tenants t ON t.id = x.tenant_id
LEFT JOIN worker_states w ON w.id = x.worker_id
WHERE t.id IS NOT NULL OR (x.tenant_id IS NULL AND (SELECT remuda_confined_to()) IS NULL);

-- A run counts whole on the day it was submitted, UTC.
CREATE VIEW v_costs WITH (security_barrier) AS
SELECT t.name AS tenant, remuda_id('ten', t.id) AS tenant_id, r.day,
    remuda_id('ses', s.id) AS session_id, s.name AS session_name, s.pool, s.agent, s.model,
    r.runs, r.model_calls, r.input_tokens, r.output_tokens, r.cached_tokens, r.cache_write_tokens, r.reasoning_tokens,
    r.cost_micros / 1000000.0 AS cost_usd,
    s.id AS session_uuid
FROM (
    SELECT tenant_id, session_id, (created_at AT TIME ZONE 'UTC')::date AS day, count(*) AS runs,
        sum(model_calls)::bigint AS model_calls, sum(input_tokens)::bigint AS input_tokens, sum(output_tokens)::bigint AS output_tokens,
        sum(cached_tokens)::bigint AS cached_tokens, sum(cache_write_tokens)::bigint AS cache_write_tokens,
        sum(reasoning_tokens)::bigint AS reasoning_tokens, sum(cost_micros)::bigint AS cost_micros
    FROM runs WHERE model_calls IS NOT NULL
    GROUP BY tenant_id, session_id, (created_at AT TIME ZONE 'UTC')::date
) r
JOIN visible_tenants t ON t.id = r.tenant_id
JOIN sessions s ON s.id = r.session_id;

-- For looks at a stretch of time. It costs next to nothing to keep: runs come in the order of their creation, and that never changes.
CREATE INDEX runs_by_time ON runs USING brin (created_at, ((created_at AT TIME ZONE 'UTC')::date))
    WITH (pages_per_range = 32, autosummarize = on);
