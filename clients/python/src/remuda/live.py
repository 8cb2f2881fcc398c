"""Puts together what is told in pieces.

Pieces (``message.delta``, ``tool.output``) say at which byte they begin. A reader that comes late or reconnects is told
the text so far again, and a model may begin anew, so whoever just prints pieces prints some twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from .types import Event

_PIECES = {"message.delta": ("message_id", "kind"), "tool.output": ("call_id", "stream")}
#: The events that bring the whole, and where they name what it is of.
_WHOLES = {"message.completed": "message", "tool.completed": "id", "tool.failed": "id"}


@dataclass(frozen=True)
class Piece:
    """What is new."""

    #: Of the message, or of the tool call.
    id: str
    #: ``text`` or ``reasoning``; of a tool call ``stdout``, ``stderr`` or ``notice``.
    kind: str
    #: Goes after what was given before of the same.
    text: str
    #: What was given before of the same is void: the model began anew, or the beginning was missed.
    anew: bool = False


class LiveText:
    """The texts that are being said. Give it every event; it forgets a text when the whole has come."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str], _Text] = {}

    def add(self, event: Event) -> Optional[Piece]:
        """What an event adds to a text, if it does."""
        if event.type in _PIECES:
            return self._add_piece(event)
        if event.type in _WHOLES:
            done = event.data.get(_WHOLES[event.type])
            self._texts = {key: text for key, text in self._texts.items() if key[0] != done}
        elif event.terminal_state is not None:
            self._texts = {key: text for key, text in self._texts.items() if text.run_id != event.run_id}
        return None

    def text(self, id_: str, kind: str = "text") -> str:
        """What was said so far of a message or a tool call; empty when it is not being said."""
        text = self._texts.get((id_, kind))
        return text.said.decode("utf-8", "replace") if text else ""

    def _add_piece(self, event: Event) -> Optional[Piece]:
        id_field, kind_field = _PIECES[event.type]
        id_, kind = str(event.data.get(id_field, "")), str(event.data.get(kind_field, ""))
        offset, more = event.data.get("offset", 0), str(event.data.get("text", "")).encode()
        text = self._texts.setdefault((id_, kind), _Text(event.run_id))
        begin = offset - text.begin
        if not 0 <= begin <= len(text.said):
            # Pieces between were missed, or it begins before all we have.
            anew = bool(text.said)
            text.begin, text.said = offset, more
            return Piece(id_, kind, more.decode(), anew)
        now = text.said[:begin] + more
        if text.said.startswith(now):
            return None
        before, text.said = text.said, now
        if now.startswith(before):
            return Piece(id_, kind, now[len(before) :].decode("utf-8", "replace"))
        return Piece(id_, kind, now.decode("utf-8", "replace"), anew=True)


@dataclass
class _Text:
    run_id: Optional[str]
    begin: int = 0
    said: bytes = b""
