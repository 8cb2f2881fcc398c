#!/usr/bin/env python3
"""Writes the Grafana dashboards in grafana/dashboards/ from the panels below. `--check` only says whether they are up to date.

Change panels here, run this, commit both. Every metric and label is checked against the registry of metrics by a test
(crates/telemetry/tests), as is that every metric of the registry is on some panel.

Gauges of the whole installation are told by the control plane that leads, so they are taken with `max`: for a moment two may
think that they lead. What processes tell of themselves is added up.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent / "grafana" / "dashboards"
WIDTH = 24  # of Grafana's grid
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

POOL = 'pool=~"$pool"'
TENANT = 'tenant=~"$tenant"'


def rate(metric, by="", matchers="", window="$__rate_interval"):
    """Events per second of a counter, added up over processes."""
    selector = f"{metric}{{{matchers}}}" if matchers else metric
    return f"sum{group(by)} (rate({selector}[{window}]))"


def share(metric, of, by="", matchers=""):
    """The share of a counter's events that match `of`."""
    both = ", ".join(part for part in (matchers, of) if part)
    return f"{rate(metric, by, both)} / {rate(metric, by, matchers)}"


def quantiles(metric, by="", matchers="", which=(0.5, 0.95, 0.99)):
    """Quantiles of a histogram as targets, with a legend."""
    grouping = f"le, {by}" if by else "le"
    name = " ".join(f"{{{{{label.strip()}}}}}" for label in by.split(",")) + " " if by else ""
    return [
        (f"histogram_quantile({q}, {rate(metric + '_bucket', grouping, matchers)})", f"{name}p{q * 100:g}") for q in which
    ]


def group(by):
    return f" by ({by})" if by else ""


class Board:
    """One dashboard: panels flow from left to right and from top to bottom."""

    def __init__(self, uid, title, description, tenant=False, pool=True):
        self.uid, self.title, self.description = uid, title, description
        self.variables = [datasource_variable()]
        if pool:
            self.variables.append(label_variable("pool", "Pool", "remuda_sessions_runnable"))
        if tenant:
            self.variables.append(label_variable("tenant", "Tenant", "remuda_runs_submitted_total"))
        self.panels, self.x, self.y, self.line = [], 0, 0, 0

    def place(self, width, height):
        if self.x + width > WIDTH:
            self.break_line()
        place = {"h": height, "w": width, "x": self.x, "y": self.y}
        self.x, self.line = self.x + width, max(self.line, height)
        return place

    def break_line(self):
        self.x, self.y, self.line = 0, self.y + self.line, 0

    def row(self, title):
        if self.x:
            self.break_line()
        place = self.place(WIDTH, 1)
        self.break_line()
        self.panels.append({"type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []})

    def panel(self, kind, title, description, targets, unit, width, height, defaults, options):
        self.panels.append({
            "type": kind,
            "title": title,
            "description": description,
            "datasource": DATASOURCE,
            "gridPos": self.place(width, height),
            "fieldConfig": {"defaults": {"unit": unit, **defaults}, "overrides": []},
            "options": options,
            "targets": [target(at, *one) for at, one in enumerate(targets)],
        })

    def stat(self, title, description, expr, unit, steps=None, width=4):
        """One number, coloured by thresholds: [(from, colour)]."""
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
        """Lines over time; `limit` is drawn across."""
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
        """How a histogram of seconds is spread, over time."""
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
            "type": "alertlist", "title": title, "description": "Alerts of deploy/observability/rules.yml; runbooks are in docs/observability.md.",
            "gridPos": self.place(width, height),
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
            "annotations": {"list": [restarts()]},
            "links": [{
                "type": "dashboards", "title": "Remuda", "tags": ["remuda"], "asDropdown": True, "includeVars": True, "keepTime": True,
                "targetBlank": False, "icon": "external link", "tooltip": "", "url": "",
            }],
            "templating": {"list": self.variables},
            "panels": self.panels,
        }


def target(at, expr, legend):
    return {
        "refId": chr(ord("A") + at), "datasource": DATASOURCE, "expr": expr, "legendFormat": legend or "__auto",
        "editorMode": "code", "range": True, "instant": False,
    }


def restarts():
    """Marks where workers lost their leases: much else that one sees follows from that."""
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
        # What has no such label matches too: metrics tell tenants apart only where the configuration says so.
        "includeAll": True, "allValue": ".*", "multi": True, "refresh": 2, "skipUrlSync": False, "options": [],
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def overview():
    board = Board("remuda-overview", "Remuda / Overview", "Is it well, and if not, where to look next.")
    board.stat("Oldest runnable", "How long the oldest run has waited that could start now. The objective is a minute.",
               f"max(remuda_queue_oldest_age_seconds{{{POOL}}})", "s", [(60, "orange"), (600, "red")])
    board.stat("Runnable sessions", "Sessions that wait for a worker.", f"sum(max by (pool) (remuda_sessions_runnable{{{POOL}}}))", "short")
    board.stat("Running sessions", "Sessions that a worker has in hand.", f"sum(max by (pool) (remuda_sessions_running{{{POOL}}}))", "short")
    board.stat("Slots in use", "Share of the slots of all workers that are in use.",
               f"sum(remuda_worker_busy{{{POOL}}}) / sum(remuda_worker_slots{{{POOL}}})", "percentunit", [(0.8, "orange"), (0.95, "red")])
    board.stat("Failed runs, 1 h", "Share of runs that failed or timed out within the last hour. The objective is 1 %.",
               "remuda:run_errors:ratio1h", "percentunit", [(0.01, "orange"), (0.144, "red")])
    board.stat("Failing calls", "Share of API calls that fail by our fault. The objective is 1 %.",
               share("remuda_request_duration_seconds_count", 'code=~"internal|unavailable|deadline_exceeded"'), "percentunit",
               [(0.001, "orange"), (0.01, "red")])
    board.stat("Processes", "Control planes, workers and stream services that answer Prometheus.", 'sum(up{job=~"remuda-.*"})', "short")
    board.stat("Processes away", "Those that do not.", 'count(up{job=~"remuda-.*"} == 0) or vector(0)', "short", [(1, "red")])
    board.stat("Slowest task", "How long ago the background task succeeded that has not for the longest time.",
               'max(time() - max by (task) (remuda_task_last_success_timestamp_seconds{task!~"delete_expired_keys|trim_events|gc"}))', "s",
               [(30, "orange"), (60, "red")])
    board.stat("Spent, 24 h", "What model calls cost within a day, where models have a price.",
               "sum(increase(remuda_model_cost_usd_total[24h]))", "currencyUSD")
    board.stat("Parked runs", "Runs that wait for people, children or money, and hold no worker.", "sum(max by (reason) (remuda_runs_parked))", "short")
    board.stat("Readers", "Readers of event streams.", "sum(remuda_stream_readers)", "short")
    board.row("Objectives")
    board.alerts("Alerts")
    board.graph("Failed or timed out", "Share of runs, in windows of five minutes and an hour. Both above 14.4 times the objective wake somebody.",
                [("remuda:run_errors:ratio5m", "5 minutes"), ("remuda:run_errors:ratio1h", "1 hour"), ("remuda:run_errors:ratio6h", "6 hours")],
                "percentunit", width=8, limit=0.01)
    board.graph("Oldest runnable by pool", "The line is the objective.",
                [(f"max by (pool) (remuda_queue_oldest_age_seconds{{{POOL}}})", "{{pool}}")], "s", width=8, limit=60)
    board.row("Traffic")
    board.graph("Runs ended", "By their last state.", [(rate("remuda_runs_ended_total", "state"), "{{state}}")], "cps", stack=True)
    board.graph("Queue wait", "From the submission of a run to its first start.",
                quantiles("remuda_queue_wait_seconds", matchers=POOL), "s", log=True)
    board.graph("API calls", "Per second, by protocol.",
                [(rate("remuda_request_duration_seconds_count", "protocol"), "{{protocol}}")], "reqps", stack=True)
    board.graph("API latency", "Until the answer, or its first part, was ready.", quantiles("remuda_request_duration_seconds"), "s", log=True)
    return board


def runs():
    board = Board("remuda-runs", "Remuda / Runs and queues", "What comes in, what waits, what ends, and how long it takes.", tenant=True)
    board.row("Runs")
    board.graph("Submitted", "Runs that were accepted, by kind.",
                [(rate("remuda_runs_submitted_total", "kind", f"{POOL}, {TENANT}"), "{{kind}}")], "cps", width=8, stack=True)
    board.graph("Submitted by tenant", "Only where telemetry.tenant_label is on.",
                [(f'topk(10, {rate("remuda_runs_submitted_total", "tenant", f"{POOL}, {TENANT}")})', "{{tenant}}")], "cps", width=8)
    board.graph("Taken up and ended", "A run is taken up more than once after a wait, a hand-over or a crash.",
                [(rate("remuda_runs_started_total", "", POOL), "taken up"), (rate("remuda_runs_ended_total", "state", TENANT), "{{state}}")],
                "cps", width=8)
    board.graph("Run duration", "From start to end, waits included.", quantiles("remuda_run_duration_seconds", "kind", which=(0.5, 0.95)), "s", log=True)
    board.heatmap("Run durations", "All runs that ended, waits included.", "remuda_run_duration_seconds")
    board.graph("Step duration", "Questions to models and calls of tools.",
                quantiles("remuda_step_duration_seconds", "kind", which=(0.5, 0.95, 0.99)), "s", log=True)
    board.graph("Steps", "Per second, by kind and how they ended.",
                [(rate("remuda_step_duration_seconds_count", "kind, status"), "{{kind}} {{status}}")], "cps", stack=True)
    board.row("Queues")
    board.graph("Runnable sessions", "What wants workers: autoscaling should look at this.",
                [(f"max by (pool) (remuda_sessions_runnable{{{POOL}}})", "{{pool}}")], width=8, stack=True)
    board.graph("Running sessions", "Sessions that a worker owns.", [(f"max by (pool) (remuda_sessions_running{{{POOL}}})", "{{pool}}")], width=8, stack=True)
    board.graph("Queued runs", "All that wait for their turn, also behind others of their session.",
                [(f"max by (pool) (remuda_runs_queued{{{POOL}}})", "{{pool}}")], width=8, stack=True)
    board.graph("Oldest runnable", "How long the oldest run has waited that could start now.",
                [(f"max by (pool) (remuda_queue_oldest_age_seconds{{{POOL}}})", "{{pool}}")], "s", width=8, limit=60)
    board.heatmap("Queue wait", "From submission to the first start.", "remuda_queue_wait_seconds", POOL, width=8)
    board.graph("Parked runs", "They hold no worker.", [("max by (reason) (remuda_runs_parked)", "{{reason}}")], width=8, stack=True)
    board.row("Wake-ups and claims")
    board.graph("Tokens published", "already_scheduled is a success: the session has one.",
                [(rate("remuda_tokens_published_total", "result"), "{{result}}")], "cps", width=8, stack=True)
    board.graph("Tokens delivered", "And those among them that came again.",
                [(rate("remuda_tokens_delivered_total", "pool", POOL), "{{pool}}"),
                 (rate("remuda_tokens_redelivered_total", "pool", POOL), "{{pool}} again")], "cps", width=8)
    board.graph("Claims", "refused: another worker has it. taken_back: its worker was lost.",
                [(rate("remuda_claims_total", "result"), "{{result}}")], "cps", width=8, stack=True)
    board.row("Cancels")
    board.graph("Receipts of cancels", "From the request to: its worker knows, its processes are dead, it has ended.",
                quantiles("remuda_cancel_receipt_seconds", "receipt", which=(0.5, 0.95)), "s", log=True)
    board.graph("Cancels", "Per second.", [(rate("remuda_cancel_receipt_seconds_count", "receipt"), "{{receipt}}")], "cps")
    return board


def models():
    board = Board("remuda-models", "Remuda / Models, tokens and cost", "What models and tools do, how fast, and for how much.", tenant=True, pool=False)
    board.row("Cost")
    board.stat("Spent, 1 h", "Where models have a price.", f"sum(increase(remuda_model_cost_usd_total{{{TENANT}}}[1h]))", "currencyUSD", width=6)
    board.stat("Spent, 24 h", "Where models have a price.", f"sum(increase(remuda_model_cost_usd_total{{{TENANT}}}[24h]))", "currencyUSD", width=6)
    board.stat("Tokens, 24 h", "As providers count them.", f'sum(increase(remuda_model_tokens_total{{{TENANT}, direction=~"input|output"}}[24h]))', "short", width=6)
    board.stat("From caches, 24 h", "Share of the input that providers had in their caches.",
               f'sum(increase(remuda_model_tokens_total{{{TENANT}, direction="cached"}}[24h])) / sum(increase(remuda_model_tokens_total{{{TENANT}, direction="input"}}[24h]))',
               "percentunit", width=6)
    board.graph("Dollars per hour by model", "At the present pace.",
                [(f'3600 * {rate("remuda_model_cost_usd_total", "provider, model", TENANT)}', "{{provider}}/{{model}}")], "currencyUSD", stack=True)
    board.graph("Dollars per hour by tenant", "The ten that spend most; only where telemetry.tenant_label is on.",
                [(f'topk(10, 3600 * {rate("remuda_model_cost_usd_total", "tenant", TENANT)})', "{{tenant}}")], "currencyUSD")
    board.graph("Tokens", "Per second, by direction. Cached ones are part of the input.",
                [(rate("remuda_model_tokens_total", "direction", TENANT), "{{direction}}")], "cps")
    board.graph("Tokens by model", "Input and output per second.",
                [(rate("remuda_model_tokens_total", "provider, model", f'{TENANT}, direction=~"input|output"'), "{{provider}}/{{model}}")], "cps", stack=True)
    board.row("Models")
    board.graph("Latency", "Of whole calls, with all their attempts.",
                quantiles("remuda_model_duration_seconds", "provider, model", which=(0.5, 0.95)), "s", log=True)
    board.graph("First token", "From a question to the first piece of its answer.",
                quantiles("remuda_model_first_token_seconds", "provider, model", which=(0.5, 0.95)), "s", log=True)
    board.graph("Failed calls", "Share of calls that failed after all their attempts.",
                [(share("remuda_model_duration_seconds_count", 'status="failed"', "provider, model"), "{{provider}}/{{model}}")], "percentunit", limit=0.2)
    board.graph("Repeated requests", "Requests that were made again after a fault of the provider.",
                [(rate("remuda_model_retries_total", "provider, model"), "{{provider}}/{{model}}")], "cps")
    board.row("Tools")
    board.graph("Calls", "Per second, by tool.", [(rate("remuda_tool_calls_total", "tool"), "{{tool}}")], "cps", width=8, stack=True)
    board.graph("Calls by outcome", "A command that exits with another code than 0 is completed.",
                [(rate("remuda_tool_calls_total", "status"), "{{status}}")], "cps", width=8, stack=True)
    board.graph("Duration", "95 % of calls are faster.", quantiles("remuda_tool_duration_seconds", "tool", which=(0.95,)), "s", width=8, log=True)
    return board


def workers():
    board = Board("remuda-workers", "Remuda / Workers and sandboxes", "The fleet: how full it is, what it lost, where tools execute.")
    board.row("Slots")
    board.stat("Slots", "Of all workers.", f"sum(remuda_worker_slots{{{POOL}}})", "short", width=6)
    board.stat("In use", "Sessions that workers have in hand.", f"sum(remuda_worker_busy{{{POOL}}})", "short", width=6)
    board.stat("Workers", "That answer Prometheus.", f"count(remuda_worker_slots{{{POOL}}})", "short", width=6)
    board.stat("Leases lost, 24 h", "Times that workers killed what they had in hand.", "sum(increase(remuda_worker_lives_lost_total[24h]))", "short",
               [(1, "orange")], width=6)
    board.graph("Slots by pool", "What there is, and what is in use.",
                [(f"sum by (pool) (remuda_worker_slots{{{POOL}}})", "{{pool}} slots"), (f"sum by (pool) (remuda_worker_busy{{{POOL}}})", "{{pool}} in use")])
    board.graph("Use by worker", "One that stays at 1 has no room, one that stays at 0 gets nothing.",
                [(f"max by (instance) (remuda_worker_busy{{{POOL}}}) / max by (instance) (remuda_worker_slots{{{POOL}}})", "{{instance}}")], "percentunit")
    board.row("Losses")
    board.graph("Leases lost", "A worker that cannot renew its lease kills what it has in hand.",
                [("sum by (instance) (increase(remuda_worker_lives_lost_total[$__rate_interval]))", "{{instance}}")], width=8)
    board.graph("Sessions taken back", "From workers whose lease ended.", [("sum(increase(remuda_sessions_taken_back_total[$__rate_interval]))", "sessions")], width=8)
    board.graph("Refused writes", "Of workers that no longer owned what they wrote to.",
                [("sum(increase(remuda_fenced_writes_total[$__rate_interval]))", "writes")], width=8)
    board.row("Sandboxes")
    board.graph("Sandboxes", "On record, by backend and state.", [("max by (backend, state) (remuda_sandboxes)", "{{backend}} {{state}}")], width=8, stack=True)
    board.graph("Leaks", "Containers that outlived their worker and had to be removed.",
                [("sum by (instance) (increase(remuda_sandbox_leaks_total[$__rate_interval]))", "{{instance}}")], width=8)
    board.graph("Calls by backend", "Where tools execute.", [(rate("remuda_tool_calls_total", "backend"), "{{backend}}")], "cps", width=8, stack=True)
    board.graph("Duration by backend", "Calls of tools.", quantiles("remuda_tool_duration_seconds", "backend", which=(0.5, 0.95)), "s", log=True)
    board.heatmap("Tool durations", "All calls of tools.", "remuda_tool_duration_seconds")
    return board


def streams():
    board = Board("remuda-streams", "Remuda / Streams and webhooks", "How what happened comes to those who want to know.", pool=False)
    board.row("Streams")
    board.graph("Readers", "By process.", [("sum by (instance) (remuda_stream_readers)", "{{instance}}")], width=8, stack=True)
    board.graph("Sessions followed", "By process, each once however many read it.", [("sum by (instance) (remuda_stream_sessions)", "{{instance}}")], width=8, stack=True)
    board.graph("Events", "Given to readers, per second.", [(rate("remuda_stream_events_total", "instance"), "{{instance}}")], "cps", width=8, stack=True)
    board.graph("Lag", "From the commit of events to their arrival at stream services. The line is where an alert begins.",
                quantiles("remuda_stream_lag_seconds"), "s", width=8, limit=1, log=True)
    board.heatmap("Lag", "How it is spread.", "remuda_stream_lag_seconds", width=8)
    board.graph("Slow readers", "Times that a reader was too slow for live events and went back to the store.",
                [(rate("remuda_stream_slow_readers_total", "instance"), "{{instance}}")], "cps", width=8)
    board.row("Webhooks")
    board.graph("Deliveries", "Attempts per second, by result.", [(rate("remuda_webhook_deliveries_total", "result"), "{{result}}")], "cps", stack=True)
    board.graph("Not delivered", "Share of attempts that failed.", [(share("remuda_webhook_deliveries_total", 'result=~"failed|dead|gone"'), "not delivered")], "percentunit")
    return board


def internals():
    board = Board("remuda-internals", "Remuda / Store and control plane", "What the platform does for itself.", pool=False)
    board.row("Store")
    board.graph("Time to commit a batch", "By operation.", quantiles("remuda_store_flush_duration_seconds", "operation", which=(0.5, 0.99)), "s", width=8, log=True)
    board.graph("Requests in a batch", "Concurrent requests are committed together: batches grow with the load.",
                quantiles("remuda_store_batch_size", "operation", which=(0.5, 0.99)), width=8)
    board.graph("Database connections", "No idle one for long means that requests wait.",
                [("sum by (job, state) (remuda_store_connections)", "{{job}} {{state}}")], width=8)
    board.graph("Commits", "Batches per second.", [(rate("remuda_store_flush_duration_seconds_count", "operation"), "{{operation}}")], "cps")
    board.graph("Connections in use", "Share, by process.",
                [('sum by (job, instance) (remuda_store_connections{state="used"}) / sum by (job, instance) (remuda_store_connections)', "{{job}} {{instance}}")], "percentunit")
    board.row("API")
    board.graph("Latency by method", "95 % of calls are faster.", quantiles("remuda_request_duration_seconds", "method", which=(0.95,)), "s", log=True)
    board.graph("Answers", "Per second, by code. Most codes are the callers' mistakes.", [(rate("remuda_request_duration_seconds_count", "code"), "{{code}}")], "reqps", stack=True)
    board.row("Background tasks")
    board.graph("Since the last success", "One control plane at a time runs these.",
                [("time() - max by (task) (remuda_task_last_success_timestamp_seconds)", "{{task}}")], "s", width=8, limit=60)
    board.graph("Rounds that failed", "By task.", [(rate("remuda_task_rounds_total", "task", 'result="error"'), "{{task}}")], "cps", width=8)
    board.graph("What tasks did", "By task and item.", [(rate("remuda_task_items_total", "task, item"), "{{task}} {{item}}")], "cps", width=8)
    board.graph("Tokens healed", "Above zero means a NATS that should be upgraded.", [("sum(increase(remuda_orphaned_tokens_healed_total[$__rate_interval]))", "tokens")])
    board.row("Telemetry itself")
    board.graph("Spans", "failed: the collector did not take them. dropped: there was no room.", [(rate("remuda_telemetry_spans_total", "job, result"), "{{job}} {{result}}")], "cps")
    board.graph("Processes", "That answer Prometheus.", [('sum by (job) (up{job=~"remuda-.*"})', "{{job}}")])
    return board


def main():
    outdated = []
    HERE.mkdir(parents=True, exist_ok=True)
    for board in (overview(), runs(), models(), workers(), streams(), internals()):
        path, text = HERE / f"{board.uid}.json", json.dumps(board.json(), indent=2, ensure_ascii=False) + "\n"
        if not path.exists() or path.read_text() != text:
            outdated.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(text)
    if outdated and "--check" in sys.argv:
        sys.exit(f"run deploy/observability/dashboards.py: {', '.join(outdated)}")


if __name__ == "__main__":
    main()
