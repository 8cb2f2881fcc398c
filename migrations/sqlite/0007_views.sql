-- What operators may look at with SQL: the views of docs/sql.md, with the same columns as on PostgreSQL. Whoever can open the file can
-- read all of it, so there are no tenants' roles here. Times are texts, UTC.

-- Where the 26 digits of a printed id are in its bytes as a hexadecimal number with a 0 before it: the n-th of that and the next hold
-- the digit's five bits, followed by `shift` others. The long expressions below read them off.
CREATE VIEW id_digits (n, shift) AS
VALUES
    (1, 1), (2, 0), (4, 3), (5, 2), (6, 1), (7, 0), (9, 3), (10, 2), (11, 1), (12, 0), (14, 3), (15, 2), (16, 1), (17, 0),
    (19, 3), (20, 2), (21, 1), (22, 0), (24, 3), (25, 2), (26, 1), (27, 0), (29, 3), (30, 2), (31, 1), (32, 0);

-- Workers as they are now: one whose lease has ended is gone, whatever it said last.
CREATE VIEW worker_states AS
SELECT w.id, (w.state < 2 AND w.lease_until / 1000000.0 > (julianday('now') - 2440587.5) * 86400.0) AS alive,
    CASE WHEN w.state = 2 OR w.lease_until / 1000000.0 <= (julianday('now') - 2440587.5) * 86400.0 THEN 'gone' WHEN w.state = 1 THEN 'draining' ELSE 'active' END AS state
FROM workers w;

CREATE VIEW v_sessions AS
SELECT t.name AS tenant, CASE WHEN t.id IS NOT NULL THEN (SELECT 'ten_' || group_concat(substr('0123456789abcdefghjkmnpqrstvwxyz', 1 + (((instr('123456789ABCDEF', substr('0' || hex(t.id), n, 1)) << 4)
        | instr('123456789ABCDEF', substr('0' || hex(t.id), n + 1, 1))) >> shift & 31), 1), '') FROM id_digits) END AS tenant_id,
    CASE WHEN s.id IS NOT NULL THEN (SELECT 'ses_' || group_concat(substr('0123456789abcdefghjkmnpqrstvwxyz', 1 + (((instr('123456789ABCDEF', substr('0' || hex(s.id), n, 1)) << 4)
        | instr('123456789ABCDEF', substr('0' || hex(s.id), n + 1, 1))) >> shift & 31), 1), '') FROM id_digits) END AS session_id,
    s.name AS session_name,
    CASE WHEN s.parent_id IS NOT NULL THEN (SELECT 'ses_' || group_concat(substr('0123456789abcdefghjkmnpqrstvwxyz', 1 + (((instr('123456789ABCDEF', substr('0' || hex(s.parent_id), n, 1)) << 4)
        | instr('123456789ABCDEF', substr('0' || hex(s.parent_id), n + 1, 1))) >> shift & 31), 1), '') FROM id_digits) END AS parent_session_id,
    s.depth,
    CASE WHEN s.workspace_id IS NOT NULL THEN (SELECT 'ws_' || group_concat(substr('0123456789abcdefghjkmnpqrstvwxyz', 1 + (((instr('123456789ABCDEF', substr('0' || hex(s.workspace_id), n, 1)) << 4)
        | instr('123456789ABCDEF', substr('0' || hex(s.workspace_id), n + 1, 1))) >> shift & 31), 1), '') FROM id_digits) END AS workspace_id,
    k.name AS workspace, s.pool, s.agent, s.model,
    CASE WHEN s.closed THEN 'closed' ELSE 'open' END AS status,
    CASE WHEN s.pending = 0 THEN 'idle' WHEN w.alive THEN 'running' WHEN head.state = 2 THEN 'parked' ELSE 'runnable' END AS activity,
    s.pending AS unfinished_runs, s.last_seq AS runs, s.last_cursor AS events,
    CASE WHEN head.id IS NOT NULL THEN (SELECT 'run_' || group_concat(substr('0123456789abcdefghjkmnpqrstvwxyz', 1 + (((instr('123456789ABCDEF', substr('0' || hex(head.id), n, 1)) << 4)
        | instr('123456789ABCDEF', substr('0' || hex(head.id), n + 1, 1))) >> shift & 31), 1), '') FROM id_digits) END AS head_run_id,
    strftime('%Y-%m-%dT%H:%M:%fZ', head.created_at / 1000000.0, 'unixepoch') AS head_created_at,
    CASE WHEN s.owner IS NOT NULL THEN (SELECT 'wrk_' || group_concat(substr('0123456789abcdefghjkmnpqrstvwxyz', 1 + (((instr('123456789ABCDEF', substr('0' || hex(s.owner), n, 1)) << 4)
        | instr('123456789ABCDEF', substr('0' || hex(s.owner), n + 1, 1))) >> shift & 31), 1), '') FROM id_digits) END AS worker_id,
    s.epoch, strftime('%Y-%m-%dT%H:%M:%fZ', s.created_at / 1000000.0, 'unixepoch') AS created_at,
    b.limit_micros / 1000000.0 AS budget_usd, b.spent_micros / 1000000.0 AS budget_spent_usd,
    b.limit_tokens AS budget_tokens, b.spent_tokens AS budget_spent_tokens,
    s.id AS session_uuid, s.parent_id AS parent_session_uuid
FROM sessions s
JOIN tenants t ON t.id = s.tenant_id
JOIN workspaces k ON k.id = s.workspace_id
LEFT JOIN worker_states w ON w.id = s.owner
LEFT JOIN budgets b ON b.id = s.id
LEFT JOIN runs head ON s.pending > 0
    AND head.id = (SELECT r.id FROM runs r WHERE r.session_id = s.id AND r.state < 10 ORDER BY r.seq LIMIT 1);

-- A run that a worker has in hand is stored as queued: it is the current one of its session.
CREATE VIEW v_runs AS
SELECT t.name AS tenant, CASE WHEN t.id IS NOT NULL THEN (SELECT 'ten_' || group_concat(substr('0123456789abcdefghjkmnpqrstvwxyz', 1 + (((instr('123456789ABCDEF', substr('0' || hex(t.id), n, 1)) << 4)
        | instr('123456789ABCDEF', substr('0' || hex(t.id), n + 1, 1))) >> shift & 31), 1), '') FROM id_digits) END AS tenant_id,
    CASE WHEN r.id IS NOT NULL THEN (SELECT 'run_' || group_concat(substr('0123456789abcdefghjkmnpqrstvwxyz', 1 + (((instr('123456789ABCDEF', substr('0' || hex(r.id), n, 1)) << 4)
        | instr('123456789ABCDEF', substr('0' || hex(r.id), n + 1, 1))) >> shift & 31), 1), '') FROM id_digits) END AS run_id,
    CASE WHEN r.session_id IS NOT NULL THEN (SELECT 'ses_' || group_concat(substr('0123456789abcdefghjkmnpqrstvwxyz', 1 + (((instr('123456789ABCDEF', substr('0' || hex(r.session_id), n, 1)) << 4)
        | instr('123456789ABCDEF', substr('0' || hex(r.session_id), n + 1, 1))) >> shift & 31), 1), '') FROM id_digits) END AS session_id,
    s.name AS session_name, s.pool, r.seq, json_extract(r.input, '$.kind') AS kind,
    CASE r.state
        WHEN 0 THEN CASE WHEN s.current_run = r.id THEN 'running' ELSE 'queued' END
        WHEN 1 THEN 'running' WHEN 2 THEN 'parked'
        WHEN 10 THEN 'completed' WHEN 11 THEN 'failed' WHEN 12 THEN 'cancelled' WHEN 13 THEN 'timed_out'
    END AS state,
    r.state < 10 AS unfinished,
    r.parked AS waits_for, strftime('%Y-%m-%dT%H:%M:%fZ', r.parked_at / 1000000.0, 'unixepoch') AS waits_since,
    json_extract(r.failure, '$.code') AS failure_code,
    CASE WHEN s.current_run = r.id THEN CASE WHEN s.owner IS NOT NULL THEN (SELECT 'wrk_' || group_concat(substr('0123456789abcdefghjkmnpqrstvwxyz', 1 + (((instr('123456789ABCDEF', substr('0' || hex(s.owner), n, 1)) << 4)
        | instr('123456789ABCDEF', substr('0' || hex(s.owner), n + 1, 1))) >> shift & 31), 1), '') FROM id_digits) END END AS worker_id,
    r.attempts + CASE WHEN s.current_run = r.id THEN 1 ELSE 0 END AS attempts, r.lost_attempts,
    strftime('%Y-%m-%dT%H:%M:%fZ', r.created_at / 1000000.0, 'unixepoch') AS created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(r.started_at, CASE WHEN s.current_run = r.id THEN s.current_started_at END) / 1000000.0, 'unixepoch') AS started_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', r.finished_at / 1000000.0, 'unixepoch') AS finished_at,
    round(coalesce(coalesce(r.started_at, CASE WHEN s.current_run = r.id THEN s.current_started_at END) / 1000000.0, r.finished_at / 1000000.0,
        (julianday('now') - 2440587.5) * 86400.0) - r.created_at / 1000000.0, 3) AS queue_seconds,
    round(coalesce(r.finished_at / 1000000.0, (julianday('now') - 2440587.5) * 86400.0)
        - coalesce(r.started_at, CASE WHEN s.current_run = r.id THEN s.current_started_at END) / 1000000.0, 3) AS run_seconds,
    r.paused_ms / 1000.0 AS paused_seconds, r.timeout_ms / 1000.0 AS timeout_seconds,
    strftime('%Y-%m-%dT%H:%M:%fZ', r.cancel_at / 1000000.0, 'unixepoch') AS cancel_requested_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', r.cancel_delivered_at / 1000000.0, 'unixepoch') AS cancel_delivered_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', r.cancel_stopped_at / 1000000.0, 'unixepoch') AS cancel_stopped_at,
    round(coalesce(r.finished_at / 1000000.0, (julianday('now') - 2440587.5) * 86400.0) - r.cancel_at / 1000000.0, 3) AS cancel_seconds,
    CASE WHEN r.parent_run IS NOT NULL THEN (SELECT 'run_' || group_concat(substr('0123456789abcdefghjkmnpqrstvwxyz', 1 + (((instr('123456789ABCDEF', substr('0' || hex(r.parent_run), n, 1)) << 4)
        | instr('123456789ABCDEF', substr('0' || hex(r.parent_run), n + 1, 1))) >> shift & 31), 1), '') FROM id_digits) END AS parent_run_id,
    r.model_calls, r.input_tokens, r.output_tokens, r.cached_tokens, r.cache_write_tokens, r.reasoning_tokens,
    r.cost_micros / 1000000.0 AS cost_usd,
    CASE WHEN r.traceparent GLOB '[0-9a-f][0-9a-f]-*' THEN substr(r.traceparent, 4, 32) END AS trace_id,
    r.id AS run_uuid, r.session_id AS session_uuid, r.parent_run AS parent_run_uuid
FROM runs r
JOIN tenants t ON t.id = r.tenant_id
JOIN sessions s ON s.id = r.session_id;

-- The first unfinished run of a session decides what the session waits for.
CREATE VIEW v_queue AS
SELECT t.name AS tenant, CASE WHEN t.id IS NOT NULL THEN (SELECT 'ten_' || group_concat(substr('0123456789abcdefghjkmnpqrstvwxyz', 1 + (((instr('123456789ABCDEF', substr('0' || hex(t.id), n, 1)) << 4)
        | instr('123456789ABCDEF', substr('0' || hex(t.id), n + 1, 1))) >> shift & 31), 1), '') FROM id_digits) END AS tenant_id,
    s.pool,
    count(*) FILTER (WHERE r.is_head AND r.state = 0 AND coalesce(w.alive, 0) = 0) AS runnable_sessions,
    count(*) FILTER (WHERE s.current_run = r.id AND w.alive) AS running_sessions,
    count(*) FILTER (WHERE r.state = 0 AND (s.current_run = r.id AND w.alive) IS NOT TRUE) AS queued_runs,
    count(*) FILTER (WHERE r.state = 2) AS parked_runs,
    strftime('%Y-%m-%dT%H:%M:%fZ', min(r.created_at) FILTER (WHERE r.is_head AND r.state = 0 AND coalesce(w.alive, 0) = 0) / 1000000.0, 'unixepoch')
        AS oldest_runnable_at,
    coalesce(round((julianday('now') - 2440587.5) * 86400.0 - min(r.created_at) FILTER (WHERE r.is_head AND r.state = 0 AND coalesce(w.alive, 0) = 0) / 1000000.0, 3), 0.0)
        AS oldest_runnable_seconds
FROM (
    SELECT id, tenant_id, session_id, state, created_at, row_number() OVER (PARTITION BY session_id ORDER BY seq) = 1 AS is_head
    FROM runs WHERE state < 10
) r
JOIN tenants t ON t.id = r.tenant_id
JOIN sessions s ON s.id = r.session_id
LEFT JOIN worker_states w ON w.id = s.owner
GROUP BY t.id, t.name, s.pool;

CREATE VIEW v_workers AS
SELECT CASE WHEN w.id IS NOT NULL THEN (SELECT 'wrk_' || group_concat(substr('0123456789abcdefghjkmnpqrstvwxyz', 1 + (((instr('123456789ABCDEF', substr('0' || hex(w.id), n, 1)) << 4)
        | instr('123456789ABCDEF', substr('0' || hex(w.id), n + 1, 1))) >> shift & 31), 1), '') FROM id_digits) END AS worker_id,
    w.host, w.version, w.pool, now.state, w.slots, w.busy,
    CASE WHEN now.state = 'active' THEN max(w.slots - w.busy, 0) ELSE 0 END AS free,
    strftime('%Y-%m-%dT%H:%M:%fZ', w.started_at / 1000000.0, 'unixepoch') AS started_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', w.lease_until / 1000000.0, 'unixepoch') AS lease_until,
    round(w.lease_until / 1000000.0 - (julianday('now') - 2440587.5) * 86400.0, 3) AS lease_seconds,
    w.id AS worker_uuid
FROM workers w JOIN worker_states now ON now.id = w.id;

CREATE VIEW v_sandboxes AS
SELECT t.name AS tenant, CASE WHEN x.tenant_id IS NOT NULL THEN (SELECT 'ten_' || group_concat(substr('0123456789abcdefghjkmnpqrstvwxyz', 1 + (((instr('123456789ABCDEF', substr('0' || hex(x.tenant_id), n, 1)) << 4)
        | instr('123456789ABCDEF', substr('0' || hex(x.tenant_id), n + 1, 1))) >> shift & 31), 1), '') FROM id_digits) END AS tenant_id,
    CASE WHEN x.id IS NOT NULL THEN (SELECT 'sbx_' || group_concat(substr('0123456789abcdefghjkmnpqrstvwxyz', 1 + (((instr('123456789ABCDEF', substr('0' || hex(x.id), n, 1)) << 4)
        | instr('123456789ABCDEF', substr('0' || hex(x.id), n + 1, 1))) >> shift & 31), 1), '') FROM id_digits) END AS sandbox_id,
    CASE WHEN x.session_id IS NOT NULL THEN (SELECT 'ses_' || group_concat(substr('0123456789abcdefghjkmnpqrstvwxyz', 1 + (((instr('123456789ABCDEF', substr('0' || hex(x.session_id), n, 1)) << 4)
        | instr('123456789ABCDEF', substr('0' || hex(x.session_id), n + 1, 1))) >> shift & 31), 1), '') FROM id_digits) END AS session_id,
    CASE WHEN x.worker_id IS NOT NULL THEN (SELECT 'wrk_' || group_concat(substr('0123456789abcdefghjkmnpqrstvwxyz', 1 + (((instr('123456789ABCDEF', substr('0' || hex(x.worker_id), n, 1)) << 4)
        | instr('123456789ABCDEF', substr('0' || hex(x.worker_id), n + 1, 1))) >> shift & 31), 1), '') FROM id_digits) END AS worker_id,
    coalesce(w.alive, 0) AS worker_alive, x.state, x.backend, x.engine, x.handle, x.image, x.digest, x.epoch,
    strftime('%Y-%m-%dT%H:%M:%fZ', x.created_at / 1000000.0, 'unixepoch') AS created_at, strftime('%Y-%m-%dT%H:%M:%fZ', x.used_at / 1000000.0, 'unixepoch') AS used_at,
    round((julianday('now') - 2440587.5) * 86400.0 - x.created_at / 1000000.0, 3) AS age_seconds,
    round((julianday('now') - 2440587.5) * 86400.0 - x.used_at / 1000000.0, 3) AS idle_seconds,
    x.id AS sandbox_uuid, x.session_id AS session_uuid
FROM sandboxes x
LEFT JOIN tenants t ON t.id = x.tenant_id
LEFT JOIN worker_states w ON w.id = x.worker_id;

-- A run counts whole on the day it was submitted, UTC.
CREATE VIEW v_costs AS
SELECT t.name AS tenant, CASE WHEN t.id IS NOT NULL THEN (SELECT 'ten_' || group_concat(substr('0123456789abcdefghjkmnpqrstvwxyz', 1 + (((instr('123456789ABCDEF', substr('0' || hex(t.id), n, 1)) << 4)
        | instr('123456789ABCDEF', substr('0' || hex(t.id), n + 1, 1))) >> shift & 31), 1), '') FROM id_digits) END AS tenant_id,
    r.day, CASE WHEN s.id IS NOT NULL THEN (SELECT 'ses_' || group_concat(substr('0123456789abcdefghjkmnpqrstvwxyz', 1 + (((instr('123456789ABCDEF', substr('0' || hex(s.id), n, 1)) << 4)
        | instr('123456789ABCDEF', substr('0' || hex(s.id), n + 1, 1))) >> shift & 31), 1), '') FROM id_digits) END AS session_id,
    s.name AS session_name, s.pool, s.agent, s.model,
    r.runs, r.model_calls, r.input_tokens, r.output_tokens, r.cached_tokens, r.cache_write_tokens, r.reasoning_tokens,
    r.cost_micros / 1000000.0 AS cost_usd,
    s.id AS session_uuid
FROM (
    SELECT tenant_id, session_id, date(created_at / 1000000, 'unixepoch') AS day, count(*) AS runs,
        sum(model_calls) AS model_calls, sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens,
        sum(cached_tokens) AS cached_tokens, sum(cache_write_tokens) AS cache_write_tokens,
        sum(reasoning_tokens) AS reasoning_tokens, sum(cost_micros) AS cost_micros
    FROM runs WHERE model_calls IS NOT NULL
    GROUP BY tenant_id, session_id, date(created_at / 1000000, 'unixepoch')
) r
JOIN tenants t ON t.id = r.tenant_id
JOIN sessions s ON s.id = r.session_id;
