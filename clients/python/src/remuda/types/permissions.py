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

    #: A tool or a kind of them, such as edit or bash; may hold ``*``.
    permission: str
    action: str
    #: What of it, such as a path or a command; may hold ``*`` and ``?``.
    pattern: str = "*"
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class Permissions:
    """What agents may do in a session."""

    #: ``default``, ``plan`` (nothing is changed) or ``full_auto`` (what would be asked is allowed).
    mode: Optional[str] = None
    #: In order; the last one that fits decides.
    rules: list[PermissionRule] = field(default_factory=list)
    #: What becomes of calls that should be asked about: ``wait``, ``refuse`` or ``fail``.
    unattended: Optional[str] = None
    #: Names of the keys that may decide; every key with the scope approve when empty.
    approvers: list[str] = field(default_factory=list)
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class Decision:
    """What someone decided about a call."""

    by: str
    at: Optional[datetime] = None
    message: Optional[str] = None
    #: What the call was made with instead of its own arguments.
    arguments: Optional[dict[str, Any]] = None
    always: bool = False
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class Approval:
    """A call that is not made before someone has decided about it."""

    id: str
    session_id: str
    run_id: str
    #: ``pending``, ``approved``, ``denied``, ``expired`` or ``withdrawn``.
    state: str
    permission: str
    #: Send it back with the decision, and what you decide about is what you have seen.
    call_hash: str
    call: Optional[ToolCall] = None
    #: The agent that wants it.
    agent: Optional[str] = None
    patterns: list[str] = field(default_factory=list)
    #: Rules that the session gets when someone answers always.
    always: list[PermissionRule] = field(default_factory=list)
    #: Which rule asks.
    why: Optional[str] = None
    approvers: list[str] = field(default_factory=list)
    created_at: Optional[datetime] = None
    expires_at: Optional[datetime] = None
    decision: Optional[Decision] = None
    raw: dict[str, Any] = raw_field()
