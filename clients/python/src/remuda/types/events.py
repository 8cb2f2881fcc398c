"""Events: what happens in a session."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Optional

from ._raw import raw_field
from .runs import FINISHED_STATES

#: The events that end a run, and the state that each reports.
TERMINAL_EVENTS = {f"run.{state}": state for state in FINISHED_STATES}


@dataclass(frozen=True)
class Event:
    """One entry of a session's event stream. Skip types you do not know.

    Events with a ``cursor`` are durable: each comes once and in order. Those without (``message.delta``,
    ``tool.output``) are pieces of what is being said, told live; the whole follows as a durable event.
    """

    type: str
    #: Within the session: 1, 2, 3 … without a hole.
    cursor: Optional[int] = None
    id: Optional[str] = None
    session_id: Optional[str] = None
    #: Missing for events of the session itself.
    run_id: Optional[str] = None
    at: Optional[datetime] = None
    #: Belongs to the type.
    data: dict[str, Any] = field(default_factory=dict)
    raw: dict[str, Any] = raw_field()

    @property
    def durable(self) -> bool:
        """Whether it is kept, and can be read again by its cursor."""
        return self.cursor is not None

    @property
    def terminal_state(self) -> Optional[str]:
        """The final state of its run, if this is the event that ends it."""
        return TERMINAL_EVENTS.get(self.type)


@dataclass(frozen=True)
class EventPage:
    """The answer to a long poll."""

    #: Where the next poll goes on.
    next_cursor: int
    items: list[Event] = field(default_factory=list)
    #: Of a run: it is over, and nothing more will come.
    ended: bool = False
    raw: dict[str, Any] = raw_field()

    def __iter__(self) -> Iterator[Event]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)
