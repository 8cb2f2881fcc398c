"""What callers may say about runs and sessions, beside the work itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, Union

from ._call import Duration
from .types import Execution, IfBusy, Limit, Permissions, Run, Session, Submitted

#: An id, a name, or what the server answered with.
SessionRef = Union[str, Session]
RunRef = Union[str, Run, Submitted]
#: The type itself, or the same as JSON.
ExecutionLike = Union[Execution, Mapping[str, Any]]
PermissionsLike = Union[Permissions, Mapping[str, Any]]
LimitLike = Union[Limit, Mapping[str, Any]]


class SubmitOptions(TypedDict, total=False):
    """Options of every call that submits a run."""

    #: Create the session under that name when it does not exist.
    create_session: bool
    #: What to do when the session has unfinished runs; ``enqueue`` when left out.
    if_busy: IfBusy
    #: Time that the run may execute, 1 ms to 24 h; one hour when left out.
    timeout: Duration
    #: Makes your own retries safe too: the same key with the same request gives the same run. Made when left out.
    idempotency_key: str
    #: How much the run and those below it may spend.
    budget: LimitLike
    #: These four are for a session that ``create_session`` makes. One that exists must have been made with the same.
    workspace: str
    model: str
    execution: ExecutionLike
    permissions: PermissionsLike


def session_of(session: SessionRef) -> str:
    """What to call it in a path."""
    return session if isinstance(session, str) else session.id


def run_of(run: RunRef) -> str:
    """What to call it in a path."""
    if isinstance(run, str):
        return run
    return run.run_id if isinstance(run, Submitted) else run.id
