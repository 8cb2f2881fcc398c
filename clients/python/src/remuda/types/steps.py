"""Steps: the stored units of a run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Optional

from ._raw import raw_field
from .runs import Failure, ToolCall, ToolOutcome
from .spending import Usage


@dataclass(frozen=True)
class ModelCall:
    """A call to a model and its response."""

    message_id: Optional[str] = None
    agent: Optional[str] = None
    model: Optional[str] = None
    #: The provider's name of the model.
    model_name: Optional[str] = None
    parameters: Any = None
    definitions_hash: Optional[str] = None
    system_hash: Optional[str] = None
    tools_hash: Optional[str] = None
    messages: Any = None
    #: ``completed``, ``failed``, ``cancelled`` or ``interrupted``; ``None`` while the call runs.
    status: Optional[str] = None
    parts: Any = None
    finish: Optional[str] = None
    usage: Optional[Usage] = None
    failure: Optional[Failure] = None
    duration_ms: Optional[int] = None
    #: Millionths of a dollar; ``None`` if the model has no price.
    cost_micros: Optional[int] = None
    purpose: Optional[str] = None
    #: Number of requests, including retries.
    attempts: Optional[int] = None
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class Step:
    """A ``tool_call`` or a ``model_call``. Skip kinds you do not know."""

    id: str
    index: int
    kind: str
    call: Optional[ToolCall] = None
    #: Outcome of a tool call; ``None`` while the step runs.
    outcome: Optional[ToolOutcome] = None
    model_call: Optional[ModelCall] = None
    approval_id: Optional[str] = None
    #: The child run of a delegation, and its session.
    child_run_id: Optional[str] = None
    child_session_id: Optional[str] = None
    #: Replacement arguments from the approval.
    edited_arguments: Optional[dict[str, Any]] = None
    started_at: Optional[datetime] = None
    finished_at: Optional[datetime] = None
    raw: dict[str, Any] = raw_field()
