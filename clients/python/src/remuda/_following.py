"""The state of an event stream across connections, without I/O.

The clients open connections and sleep. This module decides for both what to request, which events to return and when to
stop.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Optional

from ._call import Texts, joined, query
from ._decode import decode
from ._retry import Retry
from ._target import Target, target_path
from .errors import ConnectionFailedError, ProtocolError, RemudaError, from_answer
from .sse import Message, Parser
from .types import Event

#: A connection that lasted this long counts as progress, even without events.
GOOD_CONNECTION = 10.0
#: Upper limit for the ``retry:`` delay of a server.
MAX_RECONNECT_DELAY = 10.0
#: The statuses of error codes that may occur within a stream. Other codes are not retried.
_STATUS_OF = {
    "unavailable": 503,
    "deadline_exceeded": 504,
    "overloaded": 503,
    "unauthenticated": 401,
    "permission_denied": 403,
    "session_not_found": 404,
    "run_not_found": 404,
    "cursor_out_of_range": 416,
    "internal": 500,
}


class Following:
    """The position of a reader in an event stream."""

    def __init__(
        self,
        target: Target,
        *,
        after: int = 0,
        types: Optional[Iterable[str]] = None,
        deltas: bool = False,
        give_up_after: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        base, self._run_id = target_path(target)
        self.path = f"{base}/events"
        self._params = query(types=joined("types", types), deltas=deltas or None)
        self._received = after
        self._clock = clock
        self._retry = Retry(give_up_after, clock=clock)
        self._parser = Parser()
        self._opened_at: Optional[float] = None
        self._ready: deque[Event] = deque()
        self._over = False
        #: The cursor of the last event that was returned.
        self.cursor = after
        #: The reason that the server gave for the end of the stream.
        self.end_reason: Optional[str] = None

    @property
    def params(self) -> dict[str, Texts]:
        """The query string of the next connection."""
        return {**self._params, "cursor": str(self._received)}

    @property
    def done(self) -> bool:
        """Whether the stream has ended and all events were returned."""
        return self._over and not self._ready

    def opened(self) -> None:
        """Records that a server has accepted the connection."""
        self._parser = Parser()
        self._opened_at = self._clock()

    def nothing_more(self) -> None:
        """Records that no more events will follow."""
        self._over = True

    def feed(self, chunk: bytes) -> None:
        """Processes bytes of the connection."""
        for message in self._parser.feed(chunk):
            if self._over:
                return
            self._process(message)
        # For filtered events the server only sends their cursor from time to time.
        position = self._parser.last_event_id
        if position is not None and position.isascii() and position.isdigit():
            self._received = max(self._received, int(position))

    def next_event(self) -> Optional[Event]:
        """The next received event, if there is one."""
        if not self._ready:
            return None
        event = self._ready.popleft()
        if event.cursor is not None:
            self.cursor = event.cursor
        return event

    def delay_after(self, error: RemudaError) -> float:
        """Seconds until the next connection attempt. Raises the error if there should be none."""
        at_least = 0.0
        if self._opened_at is not None:
            if self._clock() - self._opened_at >= GOOD_CONNECTION:
                self._retry.progress()
            self._opened_at = None
            at_least = min((self._parser.retry_ms or 0) / 1000, MAX_RECONNECT_DELAY)
        return self._retry.delay_after(error, at_least=at_least)

    def _process(self, message: Message) -> None:
        document = _document(message)
        if message.event == "end":
            self._over = True
            reason = document.get("reason")
            self.end_reason = reason if isinstance(reason, str) else None
        elif message.event == "error":
            error = document.get("error")
            code = error.get("code") if isinstance(error, dict) else None
            raise from_answer(_STATUS_OF.get(str(code), 400), document)
        elif message.event == "goodbye":
            raise ConnectionFailedError("the server is going down")
        else:
            self._add_event(read_event(document, message.event))

    def _add_event(self, event: Event) -> None:
        if event.cursor is not None:
            if event.cursor <= self._received:
                return
            self._received = event.cursor
            self._retry.progress()
            # Events after the end of a run do not belong to the run.
            self._over = self._run_id is not None and event.run_id == self._run_id and event.terminal_state is not None
        self._ready.append(event)


def read_event(document: dict[str, Any], name: str = "") -> Event:
    """Decodes an event. Deltas have no cursor, and their data may be at the top level of the document."""
    if document.get("cursor") is not None:
        data = document.get("data")
        # Unknown types may have other data here, which is available in raw.
        event = decode(Event, {**document, "data": data if isinstance(data, dict) else {}})
        return dataclasses.replace(event, raw=document)
    about = {key: document[key] for key in ("session_id", "run_id") if isinstance(document.get(key), str)}
    kind = document.get("type")
    kind = kind if isinstance(kind, str) else name
    data = document.get("data")
    if not isinstance(data, dict):
        data = {key: value for key, value in document.items() if key not in {"type", "session_id", "run_id"}}
    return Event(type=kind, data=data, raw=document, **about)


def _document(message: Message) -> dict[str, Any]:
    try:
        document = json.loads(message.data)
    except ValueError as error:
        raise ProtocolError(f"the event {message.event} is not JSON") from error
    if not isinstance(document, dict):
        raise ProtocolError(f"the event {message.event} is not a JSON object")
    return document
