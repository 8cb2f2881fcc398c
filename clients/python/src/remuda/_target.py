"""A session or a run, as the target of an operation."""

from __future__ import annotations

from typing import Optional, Union

from ._call import path
from ._options import run_of, session_of
from .types import Run, Session, Submitted

#: A string that begins with ``run_`` names a run, any other string a session.
Target = Union[str, Session, Run, Submitted]


def target_path(target: Target) -> tuple[str, Optional[str]]:
    """The path of the target, and the run's id if it is a run."""
    if isinstance(target, Session):
        return path("sessions", target.id), None
    if isinstance(target, str) and not target.startswith("run_"):
        return path("sessions", session_of(target)), None
    run_id = run_of(target)
    return path("runs", run_id), run_id
