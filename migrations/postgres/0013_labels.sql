-- Labels of runs: a JSON object in the run, and rows that find runs by label. Both never change; runs without labels have neither.
ALTER TABLE runs ADD COLUMN labels text;

CREATE TABLE run_labels (
    tenant_id uuid NOT NULL,
    key       text NOT NULL,
    value     text NOT NULL,
    run_id    uuid NOT NULL,
    PRIMARY KEY (tenant_id, key, value, run_id)
);

-- For retention, which deletes by run.
CREATE INDEX run_labels_by_run ON run_labels (run_id);

-- The last column is new.
CREATE OR REPLACE VIEW v_runs WITH (security_barrier) AS
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
    r.id AS run_uuid, r.session_id AS session_uuid, r.parent_run AS parent_run_uuid,
    coalesce(r.labels, '{}')::jsonb AS labels
FROM runs r
JOIN visible_tenants t ON t.id = r.tenant_id
JOIN sessions s ON s.id = r.session_id
CROSS JOIN LATERAL (
    SELECT coalesce(r.started_at, CASE WHEN s.current_run = r.id THEN s.current_started_at END) AS at
) started;
