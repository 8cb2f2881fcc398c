"""Events of a session."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Optional

from ._raw import raw_field
from .runs import FINISHED_STATES

#: The events that end a run, with the final state of each.
TERMINAL_EVENTS = {f"run.{state}": state for state in FINISHED_STATES}


@dataclass(frozen=True)
class Event:
    """One entry of a session's event stream. Skip types you do not know.

    Events with a ``cursor`` are durable: each is delivered once and in order. Events without one (``message.delta``,
    ``tool.output``) are live deltas; the complete text follows in a durable event.
    """

    type: str
    #: Position within the session: 1, 2, 3 … without gaps.
    cursor: Optional[int] = None
    id: Optional[str] = None
    session_id: Optional[str] = None
    #: ``None`` for events of the session itself.
    run_id: Optional[str] = None
    at: Optional[datetime] = None
    #: Fields that depend on the type.
    data: dict[str, Any] = field(default_factory=dict)
    raw: dict[str, Any] = raw_field()

    @property
    def durable(self) -> bool:
        """Whether the event is stored and can be read again by its cursor."""
        return self.cursor is not None

    @property
    def terminal_state(self) -> Optional[str]:
        """The final state of the run, if this event ends it."""
        return TERMINAL_EVENTS.get(self.type)


@dataclass(frozen=True)
class EventPage:
    """The response to a long poll."""

    #: The cursor for the next poll.
    next_cursor: int
    items: list[Event] = field(default_factory=list)
    #: The run has ended; no more events will follow.
    ended: bool = False
    raw: dict[str, Any] = raw_field()

    def __iter__(self) -> Iterator[Event]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)
