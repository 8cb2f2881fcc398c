"""Sessions, their transcripts, and workspaces."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Optional

from ._raw import raw_field
from .permissions import Permissions
from .spending import Budget, Total


@dataclass(frozen=True)
class Execution:
    """Where the tools of a session execute. What is left out is the tenant's default."""

    #: ``none`` (the session only talks), ``local`` or ``docker``.
    backend: Optional[str] = None
    image: Optional[str] = None
    #: ``none``, or a network that the operator has made and allowed.
    network: Optional[str] = None
    #: How a container gets at the workspace: ``mount`` or ``copy``.
    workspace_access: Optional[str] = None
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class Session:
    """A serial line of runs."""

    id: str
    workspace_id: str
    pool: str
    #: ``open`` or ``closed``.
    status: str = "open"
    #: The caller's own name for it, unique within the tenant.
    name: Optional[str] = None
    title: Optional[str] = None
    #: Runs that are not over.
    pending_runs: int = 0
    #: The run that executes now.
    current_run_id: Optional[str] = None
    #: The worker that owns the session now.
    worker_id: Optional[str] = None
    #: The session that this one works for.
    parent_id: Optional[str] = None
    agent: Optional[str] = None
    model: Optional[str] = None
    execution: Optional[Execution] = None
    permissions: Optional[Permissions] = None
    #: How many sessions are above it.
    depth: int = 0
    budget: Optional[Budget] = None
    #: What its runs have spent. Not in lists.
    spent: Optional[Total] = None
    #: The same with all sessions below it. Not in lists.
    tree_spent: Optional[Total] = None
    #: Cursor of the newest event.
    last_cursor: int = 0
    created_at: Optional[datetime] = None
    #: Give it to ``update_session`` as ``if_match``, and nobody's change in between is overwritten. Not in lists.
    etag: Optional[str] = field(default=None, compare=False)
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class Message:
    """One entry of a session's transcript."""

    id: str
    session_id: str
    #: ``system``, ``user``, ``assistant`` or ``tool``.
    role: str
    #: ``text``, ``image``, ``reasoning``, ``tool_use``, ``tool_result``.
    parts: list[Any] = field(default_factory=list)
    run_id: Optional[str] = None
    agent: Optional[str] = None
    created_at: Optional[datetime] = None
    raw: dict[str, Any] = raw_field()

    @property
    def text(self) -> str:
        """The text in it, without thoughts, calls and results."""
        texts = (part.get("text") for part in self.parts if isinstance(part, dict) and part.get("type") == "text")
        return "".join(text for text in texts if isinstance(text, str))


@dataclass(frozen=True)
class Workspace:
    """A directory that declares agents, models and skills, and in which tools work."""

    id: str
    name: str
    #: The directory on the workers.
    root: str
    created_at: Optional[datetime] = None
    raw: dict[str, Any] = raw_field()
