"""Servers, workers and pools."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Optional

from ._raw import raw_field


@dataclass(frozen=True)
class Worker:
    """A process that executes runs."""

    id: str
    #: ``active``, ``draining`` or ``gone``.
    state: str
    host: str = ""
    version: str = ""
    pool: str = ""
    slots: int = 0
    #: Slots in use at the last heartbeat.
    busy: int = 0
    started_at: Optional[datetime] = None
    lease_until: Optional[datetime] = None
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class Pool:
    """The queue of one pool."""

    pool: str
    #: Sessions with a run that could start now.
    runnable_sessions: int = 0
    #: Sessions that a worker owns now.
    running_sessions: int = 0
    queued_runs: int = 0
    workers: int = 0
    slots: int = 0
    oldest_runnable_at: Optional[datetime] = None
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class ServerInfo:
    """Version and mode of a server."""

    version: str
    #: ``embedded`` or ``split``.
    mode: str
    #: Address of the stream service; ``None`` if it is the same address.
    stream_endpoint: Optional[str] = None
    keys_required: bool = False
    #: The tools that runs may call.
    tools: list[str] = field(default_factory=list)
    raw: dict[str, Any] = raw_field()
