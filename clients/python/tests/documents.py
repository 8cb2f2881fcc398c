"""Documents as the server sends them."""

from __future__ import annotations

import json
from typing import Any

AT = "2026-11-17T01:02:03.123456Z"


def run(state: str = "queued", **more: Any) -> dict[str, Any]:
    document = {"id": "run_1", "session_id": "ses_1", "seq": 1, "state": state, "attempt": 1, "lost_attempts": 0}
    return {**document, "created_at": AT, "outcomes": [], **more}


def session(**more: Any) -> dict[str, Any]:
    document = {"id": "ses_1", "workspace_id": "ws_1", "pool": "default", "status": "open", "pending_runs": 0}
    return {**document, "last_cursor": 3, "created_at": AT, **more}


def submitted(**more: Any) -> dict[str, Any]:
    document = {"run_id": "run_1", "session_id": "ses_1", "status": "queued", "seq": 1, "first_cursor": 2}
    return {**document, "deduplicated": False, "interrupted_run_ids": [], **more}


def event(cursor: int, kind: str = "tool.started", **more: Any) -> dict[str, Any]:
    document = {"id": f"evt_{cursor}", "cursor": cursor, "session_id": "ses_1", "run_id": "run_1", "type": kind}
    return {**document, "at": AT, **more}


def sse_event(document: dict[str, Any]) -> bytes:
    """An event in the format of a stream."""
    name = document["type"]
    head = f"id: {document['cursor']}\n" if "cursor" in document else ""
    return f"{head}event: {name}\ndata: {json.dumps(document)}\n\n".encode()


def control(name: str, document: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(document)}\n\n".encode()
