"""Approvals and permissions."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Optional

from ._raw import raw_field
from .runs import ToolCall


@dataclass(frozen=True)
class PermissionRule:
    """One rule: ``allow``, ``ask`` or ``deny``."""

    #: A tool or a group of tools, such as edit or bash; may contain ``*``.
    permission: str
    action: str
    #: Pattern for a path, a command and so on; may contain ``*`` and ``?``.
    pattern: str = "*"
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class Permissions:
    """The permissions of a session's agents."""

    #: ``default``, ``plan`` (read only) or ``full_auto`` (calls that need approval are allowed).
    mode: Optional[str] = None
    #: In order; the last matching rule decides.
    rules: list[PermissionRule] = field(default_factory=list)
    #: What happens to calls that need approval if nobody is available: ``wait``, ``refuse`` or ``fail``.
    unattended: Optional[str] = None
    #: Names of the API keys that may decide; if empty, every key with the scope approve.
    approvers: list[str] = field(default_factory=list)
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class Decision:
    """The decision about a call."""

    by: str
    at: Optional[datetime] = None
    message: Optional[str] = None
    #: Arguments that replace those of the call.
    arguments: Optional[dict[str, Any]] = None
    always: bool = False
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class Approval:
    """A tool call that needs approval."""

    id: str
    session_id: str
    run_id: str
    #: ``pending``, ``approved``, ``denied``, ``expired`` or ``withdrawn``.
    state: str
    permission: str
    #: Sent back with the decision, so that it applies only to this call.
    call_hash: str
    call: Optional[ToolCall] = None
    #: The agent that made the call.
    agent: Optional[str] = None
    patterns: list[str] = field(default_factory=list)
    #: Rules that an approval with ``always`` adds to the session.
    always: list[PermissionRule] = field(default_factory=list)
    #: Why the call needs approval.
    why: Optional[str] = None
    approvers: list[str] = field(default_factory=list)
    created_at: Optional[datetime] = None
    expires_at: Optional[datetime] = None
    decision: Optional[Decision] = None
    raw: dict[str, Any] = raw_field()
