#!/usr/bin/env python3
"""Generates the Grafana dashboards in grafana/dashboards/ from the panels below. `--check` writes nothing and fails if a
dashboard is out of date.

To change a panel, edit this file, run it, and commit both. A test (crates/telemetry/tests) checks every metric and label
against the metric registry, and that every metric of the registry is on a panel.

The leading control plane reports the gauges of the whole installation. Query them with `max`: for a moment, two control
planes may both act as the leader. Query the metrics of single processes with `sum`.
"""

import json
import sys
from pathlib import Path

OUTPUT = Path(__file__).resolve().parent / "grafana" / "dashboards"
WIDTH = 24  # columns of Grafana's grid
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

POOL = 'pool=~"$pool"'
TENANT = 'tenant=~"$tenant"'


def rate(metric, by="", matchers="", window="$__rate_interval"):
    """Query: rate of a counter per second, summed over processes."""
    selector = f"{metric}{{{matchers}}}" if matchers else metric
    return f"sum{group(by)} (rate({selector}[{window}]))"


def ratio(metric, subset, by="", matchers=""):
    """Query: share of a counter's events that match `subset`."""
    both = ", ".join(part for part in (matchers, subset) if part)
    return f"{rate(metric, by, both)} / {rate(metric, by, matchers)}"


def quantiles(metric, by="", matchers="", levels=(0.5, 0.95, 0.99)):
    """Targets for quantiles of a histogram, with legends."""
    grouping = f"le, {by}" if by else "le"
    name = " ".join(f"{{{{{label.strip()}}}}}" for label in by.split(",")) + " " if by else ""
    return [
        (f"histogram_quantile({q}, {rate(metric + '_bucket', grouping, matchers)})", f"{name}p{q * 100:g}") for q in levels
    ]


def group(by):
    return f" by ({by})" if by else ""


class Board:
    """One dashboard. Panels are placed from left to right, then from top to bottom."""

    def __init__(self, uid, title, description, tenant=False, pool=True):
        self.uid, self.title, self.description = uid, title, description
        self.variables = [datasource_variable()]
        if pool:
            self.variables.append(label_variable("pool", "Pool", "remuda_sessions_runnable"))
        if tenant:
            self.variables.append(label_variable("tenant", "Tenant", "remuda_runs_submitted_total"))
        self.panels, self.x, self.y, self.row_height = [], 0, 0, 0

    def grid_position(self, width, height):
        """The next free grid position; starts a new grid row if the panel does not fit."""
        if self.x + width > WIDTH:
            self.next_grid_row()
        position = {"h": height, "w": width, "x": self.x, "y": self.y}
        self.x, self.row_height = self.x + width, max(self.row_height, height)
        return position

    def next_grid_row(self):
        self.x, self.y, self.row_height = 0, self.y + self.row_height, 0

    def row(self, title):
        """A heading above the panels that follow."""
        if self.x:
            self.next_grid_row()
        position = self.grid_position(WIDTH, 1)
        self.next_grid_row()
        self.panels.append({"type": "row", "title": title, "collapsed": False, "gridPos": position, "panels": []})

    def panel(self, kind, title, description, targets, unit, width, height, defaults, options):
        self.panels.append({
            "type": kind,
            "title": title,
            "description": description,
            "datasource": DATASOURCE,
            "gridPos": self.grid_position(width, height),
            "fieldConfig": {"defaults": {"unit": unit, **defaults}, "overrides": []},
            "options": options,
            "targets": [target(index, *item) for index, item in enumerate(targets)],
        })

    def stat(self, title, description, expr, unit, steps=None, width=4):
        """One number. `steps` are its colour thresholds: [(from, colour)]."""
        steps = [{"color": "green", "value": None}] + [{"color": colour, "value": value} for value, colour in steps or []]
        self.panel(
            "stat", title, description, [(expr, "")], unit, width, 4,
            {"thresholds": {"mode": "absolute", "steps": steps}, "color": {"mode": "thresholds"}, "noValue": "–"},
            {
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
                "colorMode": "value", "graphMode": "area", "justifyMode": "auto", "textMode": "value",
            },
        )

    def graph(self, title, description, targets, unit="short", width=12, height=8, stack=False, limit=None, log=False):
        """A time series. `limit` draws a horizontal threshold line."""
        custom = {
            "drawStyle": "line", "lineWidth": 1, "fillOpacity": 25 if stack else 8, "showPoints": "never", "spanNulls": False,
            "stacking": {"mode": "normal" if stack else "none", "group": "A"},
            "scaleDistribution": {"type": "log", "log": 10} if log else {"type": "linear"},
            "thresholdsStyle": {"mode": "line" if limit is not None else "off"},
        }
        steps = [{"color": "green", "value": None}] + ([{"color": "red", "value": limit}] if limit is not None else [])
        self.panel(
            "timeseries", title, description, targets, unit, width, height,
            {"custom": custom, "color": {"mode": "palette-classic"}, "thresholds": {"mode": "absolute", "steps": steps}, "min": 0},
            {
                "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["mean", "max", "lastNotNull"], "showLegend": True},
                "tooltip": {"mode": "multi", "sort": "desc"},
            },
        )

    def heatmap(self, title, description, metric, matchers="", width=12, height=8):
        """The distribution of a histogram of seconds over time."""
        self.panel(
            "heatmap", title, description, [(rate(metric + "_bucket", "le", matchers), "{{le}}")], "s", width, height, {},
            {
                "calculate": False, "cellGap": 1, "yAxis": {"axisPlacement": "left", "unit": "s", "reverse": False},
                "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "reverse": False, "exponent": 0.5, "fill": "dark-orange"},
                "tooltip": {"mode": "single", "yHistogram": True}, "legend": {"show": True}, "rowsFrame": {"layout": "auto"},
                "filterValues": {"le": 1e-9}, "showValue": "never",
            },
        )
        self.panels[-1]["targets"][0]["format"] = "heatmap"

    def alerts(self, title, width=8, height=8):
        self.panels.append({
            "type": "alertlist", "title": title, "description": "Pending and firing alerts of deploy/observability/rules.yml. The runbooks are in docs/observability.md.",
            "gridPos": self.grid_position(width, height),
            "options": {
                "alertName": "Remuda", "viewMode": "list", "groupMode": "default", "sortOrder": 1, "maxItems": 20, "dashboardAlerts": False,
                "stateFilter": {"firing": True, "pending": True, "noData": False, "normal": False, "error": True},
            },
        })

    def json(self):
        for number, panel in enumerate(self.panels, 1):
            panel["id"] = number
        return {
            "uid": self.uid, "title": self.title, "description": self.description, "tags": ["remuda"],
            "schemaVersion": 39, "version": 1, "editable": True, "graphTooltip": 1, "refresh": "30s", "timezone": "browser",
            "time": {"from": "now-3h", "to": "now"}, "timepicker": {}, "fiscalYearStartMonth": 0, "liveNow": False,
            "annotations": {"list": [lease_loss_annotation()]},
            "links": [{
                "type": "dashboards", "title": "Remuda", "tags": ["remuda"], "asDropdown": True, "includeVars": True, "keepTime": True,
                "targetBlank": False, "icon": "external link", "tooltip": "", "url": "",
            }],
            "templating": {"list": self.variables},
            "panels": self.panels,
        }


def target(index, expr, legend):
    return {
        "refId": chr(ord("A") + index), "datasource": DATASOURCE, "expr": expr, "legendFormat": legend or "__auto",
        "editorMode": "code", "range": True, "instant": False,
    }


def lease_loss_annotation():
    """Marks the times at which workers lost their leases, because lost leases explain many other changes."""
    return {
        "name": "Leases lost", "datasource": DATASOURCE, "enable": True, "hide": False, "iconColor": "red",
        "expr": "sum(increase(remuda_worker_lives_lost_total[1m])) > 0", "titleFormat": "a worker lost its lease", "step": "60s",
    }


def datasource_variable():
    return {
        "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "regex": "", "hide": 0,
        "includeAll": False, "multi": False, "refresh": 1, "skipUrlSync": False, "options": [], "current": {},
    }


def label_variable(name, label, metric):
    return {
        "name": name, "label": label, "type": "query", "datasource": DATASOURCE, "definition": f"label_values({metric}, {name})",
        "query": {"query": f"label_values({metric}, {name})", "refId": name}, "regex": "", "sort": 1, "hide": 0,
        # `.*` also matches series without the label: metrics have a tenant label only if the configuration enables it.
        "includeAll": True, "allValue": ".*", "multi": True, "refresh": 2, "skipUrlSync": False, "options": [],
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def overview():
    board = Board("remuda-overview", "Remuda / Overview", "Health of the installation, and which dashboard to open next.")
    board.stat("Oldest runnable", "Waiting time of the oldest run that could start now. The objective is one minute.",
               f"max(remuda_queue_oldest_age_seconds{{{POOL}}})", "s", [(60, "orange"), (600, "red")])
    board.stat("Runnable sessions", "Sessions with a run that could start now and that wait for a worker.", f"sum(max by (pool) (remuda_sessions_runnable{{{POOL}}}))", "short")
    board.stat("Running sessions", "Sessions owned by a worker.", f"sum(max by (pool) (remuda_sessions_running{{{POOL}}}))", "short")
    board.stat("Slots in use", "Share of all worker slots that are in use.",
               f"sum(remuda_worker_busy{{{POOL}}}) / sum(remuda_worker_slots{{{POOL}}})", "percentunit", [(0.8, "orange"), (0.95, "red")])
    board.stat("Failed runs, 1 h", "Share of runs that failed or timed out in the last hour. The objective is at most 1 %.",
               "remuda:run_errors:ratio1h", "percentunit", [(0.01, "orange"), (0.144, "red")])
    board.stat("API errors", "Share of API calls that end as internal, unavailable or deadline_exceeded. The alert threshold is 1 %.",
               ratio("remuda_request_duration_seconds_count", 'code=~"internal|unavailable|deadline_exceeded"'), "percentunit",
               [(0.001, "orange"), (0.01, "red")])
    board.stat("Processes", "Control planes, workers and stream services that Prometheus can scrape.", 'sum(up{job=~"remuda-.*"})', "short")
    board.stat("Processes down", "Processes that Prometheus cannot scrape.", 'count(up{job=~"remuda-.*"} == 0) or vector(0)', "short", [(1, "red")])
    board.stat("Oldest task success", "Longest time since the last success of a background task. Excludes the infrequent delete_expired_keys, trim_events and gc.",
               'max(time() - max by (task) (remuda_task_last_success_timestamp_seconds{task!~"delete_expired_keys|trim_events|gc"}))', "s",
               [(30, "orange"), (60, "red")])
    board.stat("Cost, 24 h", "Cost of model calls in the last 24 hours, for models with a price.",
               "sum(increase(remuda_model_cost_usd_total[24h]))", "currencyUSD")
    board.stat("Parked runs", "Runs that wait for an approval, child runs, a budget or an external result. They hold no worker.", "sum(max by (reason) (remuda_runs_parked))", "short")
    board.stat("Readers", "Connected readers of event streams.", "sum(remuda_stream_readers)", "short")
    board.row("Objectives")
    board.alerts("Alerts")
    board.graph("Failed or timed out", "Share of runs, by window. The critical alert fires if the 5-minute and the 1-hour share both exceed 14.4 times the objective.",
                [("remuda:run_errors:ratio5m", "5 minutes"), ("remuda:run_errors:ratio1h", "1 hour"), ("remuda:run_errors:ratio6h", "6 hours")],
                "percentunit", width=8, limit=0.01)
    board.graph("Oldest runnable by pool", "Waiting time of the oldest run that could start now. The line marks the objective.",
                [(f"max by (pool) (remuda_queue_oldest_age_seconds{{{POOL}}})", "{{pool}}")], "s", width=8, limit=60)
    board.row("Traffic")
    board.graph("Runs ended", "Per second, by final state.", [(rate("remuda_runs_ended_total", "state"), "{{state}}")], "cps", stack=True)
    board.graph("Queue wait", "Time from the submission of a run to its first start.",
                quantiles("remuda_queue_wait_seconds", matchers=POOL), "s", log=True)
    board.graph("API calls", "Per second, by protocol.",
                [(rate("remuda_request_duration_seconds_count", "protocol"), "{{protocol}}")], "reqps", stack=True)
    board.graph("API latency", "Time until the response, or its first part, was ready.", quantiles("remuda_request_duration_seconds"), "s", log=True)
    return board


def runs():
    board = Board("remuda-runs", "Remuda / Runs and queues", "Submitted, queued, running and ended runs, and their durations.", tenant=True)
    board.row("Runs")
    board.graph("Submitted", "Accepted runs per second, by kind.",
                [(rate("remuda_runs_submitted_total", "kind", f"{POOL}, {TENANT}"), "{{kind}}")], "cps", width=8, stack=True)
    board.graph("Submitted by tenant", "Accepted runs per second of the ten busiest tenants. Needs telemetry.tenant_label.",
                [(f'topk(10, {rate("remuda_runs_submitted_total", "tenant", f"{POOL}, {TENANT}")})', "{{tenant}}")], "cps", width=8)
    board.graph("Started and ended", "Per second. A run starts again after a wait, a hand-over or a crash.",
                [(rate("remuda_runs_started_total", "", POOL), "started"), (rate("remuda_runs_ended_total", "state", TENANT), "{{state}}")],
                "cps", width=8)
    board.graph("Run duration", "Time from start to end, including waits.", quantiles("remuda_run_duration_seconds", "kind", levels=(0.5, 0.95)), "s", log=True)
    board.heatmap("Run durations", "Distribution over all ended runs, including waits.", "remuda_run_duration_seconds")
    board.graph("Step duration", "Duration of model calls and tool calls.",
                quantiles("remuda_step_duration_seconds", "kind", levels=(0.5, 0.95, 0.99)), "s", log=True)
    board.graph("Steps", "Per second, by kind and status.",
                [(rate("remuda_step_duration_seconds_count", "kind, status"), "{{kind}} {{status}}")], "cps", stack=True)
    board.row("Queues")
    board.graph("Runnable sessions", "Sessions with a run that could start now. Use this metric for autoscaling.",
                [(f"max by (pool) (remuda_sessions_runnable{{{POOL}}})", "{{pool}}")], width=8, stack=True)
    board.graph("Running sessions", "Sessions owned by a worker, by pool.", [(f"max by (pool) (remuda_sessions_running{{{POOL}}})", "{{pool}}")], width=8, stack=True)
    board.graph("Queued runs", "All queued runs, including those behind other runs of their session.",
                [(f"max by (pool) (remuda_runs_queued{{{POOL}}})", "{{pool}}")], width=8, stack=True)
    board.graph("Oldest runnable", "Waiting time of the oldest run that could start now. The line marks the objective.",
                [(f"max by (pool) (remuda_queue_oldest_age_seconds{{{POOL}}})", "{{pool}}")], "s", width=8, limit=60)
    board.heatmap("Queue wait", "Distribution of the time from submission to the first start.", "remuda_queue_wait_seconds", POOL, width=8)
    board.graph("Parked runs", "Runs that hold no worker, by what they wait for.", [("max by (reason) (remuda_runs_parked)", "{{reason}}")], width=8, stack=True)
    board.row("Session tokens and claims")
    board.graph("Tokens published", "Per second, by result. already_scheduled is a success: the session already has a token.",
                [(rate("remuda_tokens_published_total", "result"), "{{result}}")], "cps", width=8, stack=True)
    board.graph("Tokens delivered", "Deliveries per second, and how many of them are redeliveries.",
                [(rate("remuda_tokens_delivered_total", "pool", POOL), "{{pool}}"),
                 (rate("remuda_tokens_redelivered_total", "pool", POOL), "{{pool}} redelivered")], "cps", width=8)
    board.graph("Claims", "Per second, by result. refused: another worker owns the session. taken_back: the session was reclaimed from a lost worker.",
                [(rate("remuda_claims_total", "result"), "{{result}}")], "cps", width=8, stack=True)
    board.row("Cancellations")
    board.graph("Cancellation stages", "Time from the request to each stage. delivered: the worker knows. stopped: the processes are dead. ended: the run has ended.",
                quantiles("remuda_cancel_receipt_seconds", "receipt", levels=(0.5, 0.95)), "s", log=True)
    board.graph("Cancellations", "Per second, by stage reached.", [(rate("remuda_cancel_receipt_seconds_count", "receipt"), "{{receipt}}")], "cps")
    return board


def models():
    board = Board("remuda-models", "Remuda / Models, tokens and cost", "Cost, tokens, latency and errors of models and tools.", tenant=True, pool=False)
    board.row("Cost")
    board.stat("Cost, 1 h", "Cost of model calls, for models with a price.", f"sum(increase(remuda_model_cost_usd_total{{{TENANT}}}[1h]))", "currencyUSD", width=6)
    board.stat("Cost, 24 h", "Cost of model calls, for models with a price.", f"sum(increase(remuda_model_cost_usd_total{{{TENANT}}}[24h]))", "currencyUSD", width=6)
    board.stat("Tokens, 24 h", "Input and output tokens, as counted by providers.", f'sum(increase(remuda_model_tokens_total{{{TENANT}, direction=~"input|output"}}[24h]))', "short", width=6)
    board.stat("Cached input, 24 h", "Share of input tokens that providers read from their caches.",
               f'sum(increase(remuda_model_tokens_total{{{TENANT}, direction="cached"}}[24h])) / sum(increase(remuda_model_tokens_total{{{TENANT}, direction="input"}}[24h]))',
               "percentunit", width=6)
    board.graph("Dollars per hour by model", "At the current rate.",
                [(f'3600 * {rate("remuda_model_cost_usd_total", "provider, model", TENANT)}', "{{provider}}/{{model}}")], "currencyUSD", stack=True)
    board.graph("Dollars per hour by tenant", "The ten tenants with the highest cost. Needs telemetry.tenant_label.",
                [(f'topk(10, 3600 * {rate("remuda_model_cost_usd_total", "tenant", TENANT)})', "{{tenant}}")], "currencyUSD")
    board.graph("Tokens", "Per second, by direction. Cached tokens are part of the input.",
                [(rate("remuda_model_tokens_total", "direction", TENANT), "{{direction}}")], "cps")
    board.graph("Tokens by model", "Input and output per second.",
                [(rate("remuda_model_tokens_total", "provider, model", f'{TENANT}, direction=~"input|output"'), "{{provider}}/{{model}}")], "cps", stack=True)
    board.row("Models")
    board.graph("Latency", "Duration of model calls, including all attempts.",
                quantiles("remuda_model_duration_seconds", "provider, model", levels=(0.5, 0.95)), "s", log=True)
    board.graph("First token", "Time from a model call to the first part of its response.",
                quantiles("remuda_model_first_token_seconds", "provider, model", levels=(0.5, 0.95)), "s", log=True)
    board.graph("Failed calls", "Share of model calls that failed after all attempts.",
                [(ratio("remuda_model_duration_seconds_count", 'status="failed"', "provider, model"), "{{provider}}/{{model}}")], "percentunit", limit=0.2)
    board.graph("Retried requests", "Requests per second retried after a provider error.",
                [(rate("remuda_model_retries_total", "provider, model"), "{{provider}}/{{model}}")], "cps")
    board.row("Tools")
    board.graph("Calls", "Tool calls per second, by tool.", [(rate("remuda_tool_calls_total", "tool"), "{{tool}}")], "cps", width=8, stack=True)
    board.graph("Calls by outcome", "Per second. A command that exits with a non-zero code counts as completed.",
                [(rate("remuda_tool_calls_total", "status"), "{{status}}")], "cps", width=8, stack=True)
    board.graph("Duration", "95th percentile, by tool.", quantiles("remuda_tool_duration_seconds", "tool", levels=(0.95,)), "s", width=8, log=True)
    return board


def workers():
    board = Board("remuda-workers", "Remuda / Workers and sandboxes", "Slots of the workers, lost leases, and the sandboxes in which tools execute.")
    board.row("Slots")
    board.stat("Slots", "Slots of all workers.", f"sum(remuda_worker_slots{{{POOL}}})", "short", width=6)
    board.stat("In use", "Sessions that workers are executing.", f"sum(remuda_worker_busy{{{POOL}}})", "short", width=6)
    board.stat("Workers", "Workers that Prometheus can scrape.", f"count(remuda_worker_slots{{{POOL}}})", "short", width=6)
    board.stat("Leases lost, 24 h", "Times that a worker lost its lease and killed its tools.", "sum(increase(remuda_worker_lives_lost_total[24h]))", "short",
               [(1, "orange")], width=6)
    board.graph("Slots by pool", "Total slots, and slots in use.",
                [(f"sum by (pool) (remuda_worker_slots{{{POOL}}})", "{{pool}} slots"), (f"sum by (pool) (remuda_worker_busy{{{POOL}}})", "{{pool}} in use")])
    board.graph("Slot usage by worker", "Share of slots in use. A worker that stays at 1 has no free slot; a worker that stays at 0 gets no work.",
                [(f"max by (instance) (remuda_worker_busy{{{POOL}}}) / max by (instance) (remuda_worker_slots{{{POOL}}})", "{{instance}}")], "percentunit")
    board.row("Losses")
    board.graph("Leases lost", "By worker. A worker that cannot renew its lease kills its tools.",
                [("sum by (instance) (increase(remuda_worker_lives_lost_total[$__rate_interval]))", "{{instance}}")], width=8)
    board.graph("Sessions reclaimed", "Sessions reclaimed from workers whose lease expired.", [("sum(increase(remuda_sessions_taken_back_total[$__rate_interval]))", "sessions")], width=8)
    board.graph("Fenced writes", "Writes rejected because the worker no longer owned the session.",
                [("sum(increase(remuda_fenced_writes_total[$__rate_interval]))", "writes")], width=8)
    board.row("Sandboxes")
    board.graph("Sandboxes", "Registered sandboxes, by backend and state.", [("max by (backend, state) (remuda_sandboxes)", "{{backend}} {{state}}")], width=8, stack=True)
    board.graph("Leaks", "Containers that outlived their worker and had to be removed, by worker that removed them.",
                [("sum by (instance) (increase(remuda_sandbox_leaks_total[$__rate_interval]))", "{{instance}}")], width=8)
    board.graph("Calls by backend", "Tool calls per second.", [(rate("remuda_tool_calls_total", "backend"), "{{backend}}")], "cps", width=8, stack=True)
    board.graph("Duration by backend", "Duration of tool calls.", quantiles("remuda_tool_duration_seconds", "backend", levels=(0.5, 0.95)), "s", log=True)
    board.heatmap("Tool durations", "Distribution over all tool calls.", "remuda_tool_duration_seconds")
    return board


def streams():
    board = Board("remuda-streams", "Remuda / Streams and webhooks", "Delivery of events to stream readers and webhooks.", pool=False)
    board.row("Streams")
    board.graph("Readers", "Connected readers, by process.", [("sum by (instance) (remuda_stream_readers)", "{{instance}}")], width=8, stack=True)
    board.graph("Sessions followed", "By process. A session counts once, regardless of its number of readers.", [("sum by (instance) (remuda_stream_sessions)", "{{instance}}")], width=8, stack=True)
    board.graph("Events", "Events sent to readers per second, by process.", [(rate("remuda_stream_events_total", "instance"), "{{instance}}")], "cps", width=8, stack=True)
    board.graph("Lag", "Time from the commit of events to their arrival at stream services. The line marks the alert threshold.",
                quantiles("remuda_stream_lag_seconds"), "s", width=8, limit=1, log=True)
    board.heatmap("Lag", "Distribution of the time from commit to arrival.", "remuda_stream_lag_seconds", width=8)
    board.graph("Slow readers", "Times per second that a reader was too slow for live events and fell back to the store.",
                [(rate("remuda_stream_slow_readers_total", "instance"), "{{instance}}")], "cps", width=8)
    board.row("Webhooks")
    board.graph("Deliveries", "Attempts per second, by result.", [(rate("remuda_webhook_deliveries_total", "result"), "{{result}}")], "cps", stack=True)
    board.graph("Failed deliveries", "Share of delivery attempts that failed.", [(ratio("remuda_webhook_deliveries_total", 'result=~"failed|dead|gone"'), "failed")], "percentunit")
    return board


def internals():
    board = Board("remuda-internals", "Remuda / Store and control plane", "Database access, API, background tasks and telemetry.", pool=False)
    board.row("Store")
    board.graph("Time to commit a batch", "Latency of a batch commit, by operation.", quantiles("remuda_store_flush_duration_seconds", "operation", levels=(0.5, 0.99)), "s", width=8, log=True)
    board.graph("Batch size", "Requests per batch. Concurrent requests are committed together, so batches grow with the load.",
                quantiles("remuda_store_batch_size", "operation", levels=(0.5, 0.99)), width=8)
    board.graph("Database connections", "By job and state. If none is idle for long, requests wait for a connection.",
                [("sum by (job, state) (remuda_store_connections)", "{{job}} {{state}}")], width=8)
    board.graph("Commits", "Committed batches per second, by operation.", [(rate("remuda_store_flush_duration_seconds_count", "operation"), "{{operation}}")], "cps")
    board.graph("Connections in use", "Share of open connections in use, by process.",
                [('sum by (job, instance) (remuda_store_connections{state="used"}) / sum by (job, instance) (remuda_store_connections)', "{{job}} {{instance}}")], "percentunit")
    board.row("API")
    board.graph("Latency by method", "95th percentile of API calls.", quantiles("remuda_request_duration_seconds", "method", levels=(0.95,)), "s", log=True)
    board.graph("API responses", "Per second, by code. Most error codes are client errors.", [(rate("remuda_request_duration_seconds_count", "code"), "{{code}}")], "reqps", stack=True)
    board.row("Refused")
    board.graph("Requests without a valid key", "Per second, by reason. limited: too many wrong keys from one address.",
                [(rate("remuda_auth_failures_total", "reason"), "{{reason}}")], "reqps", width=8)
    board.graph("Messages on the bus", "Not proven, per second, by kind and reason. Above zero for longer than an upgrade: somebody else sends them.",
                [(rate("remuda_bus_rejected_total", "kind, reason"), "{{kind}} {{reason}}")], "cps", width=8)
    board.graph("Memory for bodies", "Bytes of requests in flight, by process. The limit is server.body_memory.",
                [("sum by (job, instance) (remuda_request_body_memory_bytes)", "{{job}} {{instance}}")], "bytes", width=8)
    board.graph("Time until certificates expire", "By process, for the certificate of tls.certificate. A new file is loaded without a restart.",
                [("min by (job, instance) (remuda_tls_certificate_expiry_timestamp_seconds) - time()", "{{job}} {{instance}}")], "s")
    board.row("Background tasks")
    board.graph("Time since the last success", "By task. Only the leading control plane runs background tasks.",
                [("time() - max by (task) (remuda_task_last_success_timestamp_seconds)", "{{task}}")], "s", width=8, limit=60)
    board.graph("Failed rounds", "Per second, by task.", [(rate("remuda_task_rounds_total", "task", 'result="error"'), "{{task}}")], "cps", width=8)
    board.graph("Processed items", "Per second, by task and item.", [(rate("remuda_task_items_total", "task, item"), "{{task}} {{item}}")], "cps", width=8)
    board.graph("Orphaned tokens replaced", "Tokens that NATS could never have delivered. Above zero: upgrade NATS.", [("sum(increase(remuda_orphaned_tokens_healed_total[$__rate_interval]))", "tokens")])
    board.row("Telemetry")
    board.graph("Spans", "Per second, by result. failed: the collector did not accept them. dropped: the queue was full.", [(rate("remuda_telemetry_spans_total", "job, result"), "{{job}} {{result}}")], "cps")
    board.graph("Processes", "Processes that Prometheus can scrape, by job.", [('sum by (job) (up{job=~"remuda-.*"})', "{{job}}")])
    return board


def main():
    outdated = []
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for board in (overview(), runs(), models(), workers(), streams(), internals()):
        path, text = OUTPUT / f"{board.uid}.json", json.dumps(board.json(), indent=2, ensure_ascii=False) + "\n"
        if not path.exists() or path.read_text() != text:
            outdated.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(text)
    if outdated and "--check" in sys.argv:
        sys.exit(f"out of date, run deploy/observability/dashboards.py: {', '.join(outdated)}")


if __name__ == "__main__":
    main()
