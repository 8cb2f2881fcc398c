"""What can be followed or given a budget: a session, or one run of it."""

from __future__ import annotations

from typing import Optional, Union

from ._call import path
from ._options import run_of, session_of
from .types import Run, Session, Submitted

#: A text that begins with ``run_`` names a run, any other a session.
Target = Union[str, Session, Run, Submitted]


def target_path(target: Target) -> tuple[str, Optional[str]]:
    """Its path, and the run's id if it is a run."""
    if isinstance(target, Session):
        return path("sessions", target.id), None
    if isinstance(target, str) and not target.startswith("run_"):
        return path("sessions", session_of(target)), None
    run_id = run_of(target)
    return path("runs", run_id), run_id
