-- Labels of runs: a JSON object in the run, and rows that find runs by label. Both never change; runs without labels have neither.
ALTER TABLE runs ADD COLUMN labels TEXT;

CREATE TABLE run_labels (
    tenant_id BLOB NOT NULL,
    key       text NOT NULL,
    value     text NOT NULL,
    run_id    BLOB NOT NULL,
    PRIMARY KEY (tenant_id, key, value, run_id)
) WITHOUT ROWID;

-- For retention, which deletes by run.
CREATE INDEX run_labels_by_run ON run_labels (run_id);

-- The last column is new.
DROP VIEW v_runs;
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
    r.id AS run_uuid, r.session_id AS session_uuid, r.parent_run AS parent_run_uuid,
    coalesce(r.labels, '{}') AS labels
FROM runs r
JOIN tenants t ON t.id = r.tenant_id
JOIN sessions s ON s.id = r.session_id;
