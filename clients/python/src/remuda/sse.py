"""An incremental parser for server-sent events.

It follows the parsing rules of the HTML standard: lines end with LF, CR or CRLF, also if a CRLF is split over two
chunks; a leading byte order mark is skipped; data over several lines is joined. In addition, the sizes of lines and
events are limited, so that a broken server cannot fill the memory of a reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

from .errors import ProtocolError

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"
#: Maximum size of a line and of the data of an event. Servers stay far below this.
MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Message:
    """One dispatched event."""

    event: str
    data: str
    #: Set only if this event had an ``id:``; see ``Parser.last_event_id`` for the position to resume from.
    id: Optional[str] = None


class Parser:
    """Parses the bytes of one connection into messages."""

    def __init__(self, *, max_line: int = MAX_BYTES, max_event: int = MAX_BYTES) -> None:
        self._max_line = max_line
        self._max_event = max_event
        self._tail: list[bytes] = []
        self._tail_bytes = 0
        self._at_start = True
        self._skip_lf = False
        self._event = ""
        self._data: list[str] = []
        self._data_bytes = 0
        self._id: Optional[str] = None
        #: The id of the last complete block with an id, even if the block had no data.
        self.last_event_id: Optional[str] = None
        #: Reconnect delay requested by the server, in milliseconds.
        self.retry_ms: Optional[int] = None

    def feed(self, chunk: bytes) -> Iterator[Message]:
        """Adds bytes and yields the messages that they complete."""
        if self._skip_lf and chunk:
            self._skip_lf = False
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
        if not chunk:
            return
        self._skip_lf = chunk.endswith(b"\r")
        *lines, rest = _LINE_END.split(chunk)
        for line in lines:
            message = self._process_line(self._complete_line(line))
            if message is not None:
                yield message
        self._keep(rest)

    def _keep(self, piece: bytes) -> None:
        self._tail_bytes += len(piece)
        if self._tail_bytes > self._max_line:
            raise ProtocolError(f"the event stream has a line of more than {self._max_line} bytes")
        if piece:
            self._tail.append(piece)

    def _complete_line(self, end: bytes) -> bytes:
        self._keep(end)
        line = b"".join(self._tail)
        self._tail.clear()
        self._tail_bytes = 0
        if self._at_start:
            self._at_start = False
            if line.startswith(_BOM):
                line = line[len(_BOM) :]
        return line

    def _process_line(self, line: bytes) -> Optional[Message]:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if name == b"data":
            self._data_bytes += len(value) + 1
            if self._data_bytes > self._max_event:
                raise ProtocolError(f"the event stream has an event of more than {self._max_event} bytes")
            self._data.append(value.decode("utf-8", "replace"))
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif name == b"id":
            if b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) <= 9:
            self.retry_ms = int(value)
        # Ignore comments, which serve as keepalive, and unknown fields.
        return None

    def _dispatch(self) -> Optional[Message]:
        if self._id is not None:
            self.last_event_id = self._id
        message = None
        if self._data:
            message = Message(event=self._event or "message", data="\n".join(self._data), id=self._id)
        self._event = ""
        self._data = []
        self._data_bytes = 0
        self._id = None
        return message
