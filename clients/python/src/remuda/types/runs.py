"""Runs: the work of a session."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Optional

from ._raw import raw_field
from .spending import Amount, Budget, Total

#: The states of this version.
RunState = Literal["queued", "running", "parked", "completed", "failed", "cancelled", "timed_out"]
#: What to do when the session has unfinished runs: wait for them, refuse the new one, or cancel them.
IfBusy = Literal["enqueue", "reject", "interrupt"]
#: A run in one of these is over, for good.
FINISHED_STATES = frozenset({"completed", "failed", "cancelled", "timed_out"})


@dataclass(frozen=True)
class Failure:
    """Why something ended without a result. The codes are those of errors."""

    code: str
    message: str = ""
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class ToolCall:
    """One call of a tool: ``ToolCall("Bash", {"command": "echo hi"})``."""

    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)
    #: Neighbouring parallel calls run together; one failing does not cancel the others.
    parallel: bool = False
    timeout_ms: Optional[int] = None
    #: Given by the server when left out.
    id: Optional[str] = None
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class ToolsInput:
    """An ordered list of tool calls."""

    calls: list[ToolCall] = field(default_factory=list)
    continue_on_error: bool = False
    record: bool = False
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class Image:
    """A picture: ``data`` (Base64) with its ``media_type``, or a ``url``. Answers tell its size instead of its data."""

    media_type: Optional[str] = None
    data: Optional[str] = None
    url: Optional[str] = None
    bytes: Optional[int] = None
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class MessageInput:
    """A message to an agent."""

    id: Optional[str] = None
    text: Optional[str] = None
    images: list[Image] = field(default_factory=list)
    agent: Optional[str] = None
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class Place:
    """Where a tool call was executed, if that was not on the worker itself."""

    backend: str
    sandbox_id: Optional[str] = None
    image: Optional[str] = None
    digest: Optional[str] = None
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class ToolOutcome:
    """How one tool call ended."""

    id: str
    tool: str
    #: ``completed``, ``failed``, ``timed_out``, ``cancelled``, ``interrupted`` or ``skipped``.
    status: str
    output: Any = None
    failure: Optional[Failure] = None
    duration_ms: int = 0
    place: Optional[Place] = None
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class CancelReceipts:
    """How far a request to stop a run has got. A time is missing until it is so."""

    requested_at: Optional[datetime] = None
    reason: Optional[str] = None
    #: The worker that executes the run knows.
    delivered_at: Optional[datetime] = None
    #: The last process of the run is dead.
    stopped_at: Optional[datetime] = None
    #: The run is over and its slot is free.
    released_at: Optional[datetime] = None
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class Run:
    """One unit of work of a session."""

    id: str
    session_id: str
    #: Place in the session's line; runs start in this order.
    seq: int
    state: str
    #: What it was asked to do: a list of tool calls …
    tools: Optional[ToolsInput] = None
    #: … or a message to an agent.
    message: Optional[MessageInput] = None
    timeout_ms: Optional[int] = None
    #: How many workers have started it. Above one after a crash, a hand-over or a wait.
    attempt: int = 0
    lost_attempts: int = 0
    #: What a parked run waits for: ``approval``, ``children``, ``budget`` or ``external``.
    park_reason: Optional[str] = None
    parent_run_id: Optional[str] = None
    #: What it has spent, without the runs below it.
    spent: Optional[Total] = None
    #: With the runs below it. Not in lists.
    tree_spent: Optional[Total] = None
    budget: Optional[Budget] = None
    created_at: Optional[datetime] = None
    started_at: Optional[datetime] = None
    finished_at: Optional[datetime] = None
    #: How the calls of a tools run ended.
    outcomes: list[ToolOutcome] = field(default_factory=list)
    #: What the agent of a message run said last.
    answer: Optional[str] = None
    #: Set when the run ended without completing.
    failure: Optional[Failure] = None
    cancel: Optional[CancelReceipts] = None
    idempotency_key: Optional[str] = None
    raw: dict[str, Any] = raw_field()

    @property
    def finished(self) -> bool:
        """Whether it is over, for good."""
        return self.state in FINISHED_STATES

    @property
    def completed(self) -> bool:
        """Whether it ended well."""
        return self.state == "completed"


@dataclass(frozen=True)
class Submitted:
    """A run was accepted: it is committed and will reach exactly one final state."""

    run_id: str
    session_id: str
    #: ``queued``, unless an earlier request with the same key made it.
    status: str = "queued"
    #: Of a message: what it is called in the transcript.
    message_id: Optional[str] = None
    seq: int = 0
    #: Cursor of the run's first event; 0 when deduplicated.
    first_cursor: int = 0
    #: An earlier request with the same idempotency key created the run.
    deduplicated: bool = False
    #: Runs cancelled by ``if_busy="interrupt"``.
    interrupted_run_ids: list[str] = field(default_factory=list)
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class CancelledSession:
    """What became of a request to stop everything in a session."""

    #: Nobody executed them: they are over now.
    ended_run_ids: list[str] = field(default_factory=list)
    #: They execute: their workers were told.
    requested_run_ids: list[str] = field(default_factory=list)
    session_ids: list[str] = field(default_factory=list)
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class Receipt:
    """One stage of a request to stop a run: ``requested``, ``delivered``, ``stopped`` or ``released``."""

    name: str
    at: Optional[datetime] = None
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class Wait:
    """One thing that a parked run waits for: an ``approval``, a ``child`` or a ``budget``."""

    kind: str
    id: str
    message: str = ""
    hint: Optional[str] = None
    session_id: Optional[str] = None
    agent: Optional[str] = None
    tool: Optional[str] = None
    state: Optional[str] = None
    since: Optional[datetime] = None
    expires_at: Optional[datetime] = None
    budget: Optional[Budget] = None
    needed: Optional[Amount] = None
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class Estimate:
    """When a run starts, goes on or ends: a guess with what it is made of."""

    #: ``start``, ``resume`` or ``end``.
    of: str
    #: What the guess is made of, or why there is none.
    basis: str = ""
    #: All of it in one sentence.
    message: str = ""
    #: Rounded; ``None`` when nothing can be said, 0 for any moment.
    about_ms: Optional[int] = None
    at_latest: Optional[datetime] = None
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class Explanation:
    """Why a run is not finished."""

    run_id: str
    reason: str
    #: One sentence for people.
    message: str = ""
    state: Optional[str] = None
    #: A run id, a worker id or a pool.
    waits_for: Optional[str] = None
    #: Unfinished runs ahead of it in its session.
    position: int = 0
    #: What to do about it.
    hint: Optional[str] = None
    receipts: list[Receipt] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    #: When it starts, goes on or ends; ``None`` when it is finished.
    estimate: Optional[Estimate] = None
    raw: dict[str, Any] = raw_field()
