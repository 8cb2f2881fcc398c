"""Joins deltas into texts.

Deltas (``message.delta``, ``tool.output``) contain their byte offset. After a reconnect the server repeats the text so
far, and a model may start again. A program that just prints deltas therefore prints some text twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from .types import Event

_DELTAS = {"message.delta": ("message_id", "kind"), "tool.output": ("call_id", "stream")}
#: The events with the complete text, and the fields with the id of the message or call.
_COMPLETE = {"message.completed": "message", "tool.completed": "id", "tool.failed": "id"}


@dataclass(frozen=True)
class Piece:
    """New text of a message or of a command's output."""

    #: Id of the message or of the tool call.
    id: str
    #: ``text`` or ``reasoning``; for a tool call ``stdout``, ``stderr`` or ``notice``.
    kind: str
    #: Continues the text returned before for the same id and kind.
    text: str
    #: The text returned before is void: the model started again, or the beginning was missed.
    anew: bool = False


class LiveText:
    """The texts that are currently streamed. Pass every event to ``add``; complete texts are dropped."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str], _Text] = {}

    def add(self, event: Event) -> Optional[Piece]:
        """Returns the text that an event adds, if any."""
        if event.type in _DELTAS:
            return self._add_piece(event)
        if event.type in _COMPLETE:
            done = event.data.get(_COMPLETE[event.type])
            self._texts = {key: text for key, text in self._texts.items() if key[0] != done}
        elif event.terminal_state is not None:
            self._texts = {key: text for key, text in self._texts.items() if text.run_id != event.run_id}
        return None

    def text(self, id_: str, kind: str = "text") -> str:
        """The text so far of a message or a tool call; empty if it is not being streamed."""
        text = self._texts.get((id_, kind))
        return text.content.decode("utf-8", "replace") if text else ""

    def _add_piece(self, event: Event) -> Optional[Piece]:
        id_field, kind_field = _DELTAS[event.type]
        id_, kind = str(event.data.get(id_field, "")), str(event.data.get(kind_field, ""))
        offset, more = event.data.get("offset", 0), str(event.data.get("text", "")).encode()
        text = self._texts.setdefault((id_, kind), _Text(event.run_id))
        begin = offset - text.begin
        if not 0 <= begin <= len(text.content):
            # Deltas were missed, or this one begins before the known text.
            anew = bool(text.content)
            text.begin, text.content = offset, more
            return Piece(id_, kind, more.decode(), anew)
        now = text.content[:begin] + more
        if text.content.startswith(now):
            return None
        before, text.content = text.content, now
        if now.startswith(before):
            return Piece(id_, kind, now[len(before) :].decode("utf-8", "replace"))
        return Piece(id_, kind, now.decode("utf-8", "replace"), anew=True)


@dataclass
class _Text:
    run_id: Optional[str]
    begin: int = 0
    content: bytes = b""
