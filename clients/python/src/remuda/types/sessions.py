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
    """Where the tools of a session execute. Missing fields use the default of the tenant."""

    #: ``none`` (no tools), ``local`` or ``docker``.
    backend: Optional[str] = None
    image: Optional[str] = None
    #: ``none``, or a network that the operator allows.
    network: Optional[str] = None
    #: How a container accesses the workspace: ``mount`` or ``copy``.
    workspace_access: Optional[str] = None
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class Session:
    """A session: a queue of runs that execute one after another."""

    id: str
    workspace_id: str
    pool: str
    #: ``open`` or ``closed``.
    status: str = "open"
    #: The name that the caller chose, unique within the tenant.
    name: Optional[str] = None
    title: Optional[str] = None
    #: Number of unfinished runs.
    pending_runs: int = 0
    #: The run that executes now.
    current_run_id: Optional[str] = None
    #: The worker that owns the session now.
    worker_id: Optional[str] = None
    #: The parent session.
    parent_id: Optional[str] = None
    agent: Optional[str] = None
    model: Optional[str] = None
    execution: Optional[Execution] = None
    permissions: Optional[Permissions] = None
    #: Number of ancestors.
    depth: int = 0
    budget: Optional[Budget] = None
    #: Spending of its runs. Not in lists.
    spent: Optional[Total] = None
    #: Spending including all child sessions. Not in lists.
    tree_spent: Optional[Total] = None
    #: Cursor of the newest event.
    last_cursor: int = 0
    created_at: Optional[datetime] = None
    #: Pass it to ``update_session`` as ``if_match`` to avoid overwriting a concurrent change. Not in lists.
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
        """The text of the message, without reasoning, tool calls and results."""
        texts = (part.get("text") for part in self.parts if isinstance(part, dict) and part.get("type") == "text")
        return "".join(text for text in texts if isinstance(text, str))


@dataclass(frozen=True)
class Workspace:
    """A directory that defines agents, models and skills, and in which tools work."""

    id: str
    name: str
    #: The directory on the workers.
    root: str
    created_at: Optional[datetime] = None
    raw: dict[str, Any] = raw_field()
