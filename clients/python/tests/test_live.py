from __future__ import annotations

from typing import Any, Optional

from remuda import Event, LiveText, Piece


def delta(offset: int, text: str, kind: str = "text", message: str = "msg_1") -> Event:
    data = {"message_id": message, "kind": kind, "offset": offset, "text": text}
    return Event("message.delta", run_id="run_1", data=data)


def other(kind: str, **data: Any) -> Event:
    return Event(kind, cursor=1, run_id="run_1", data=data)


def piece(text: str, kind: str = "text", anew: bool = False) -> Optional[Piece]:
    return Piece("msg_1", kind, text, anew)


def test_consecutive_deltas_are_returned() -> None:
    live = LiveText()
    assert live.add(delta(0, "grü")) == piece("grü")
    assert live.add(delta(4, "ße ")) == piece("ße ")
    assert live.add(delta(0, "hm", "reasoning")) == piece("hm", "reasoning")
    assert live.add(delta(8, "🐎")) == piece("🐎")
    assert live.text("msg_1") == "grüße 🐎"
    assert live.text("msg_1", "reasoning") == "hm"


def test_repeated_text_is_not_returned_again() -> None:
    live = LiveText()
    live.add(delta(0, "abcdef"))
    assert live.add(delta(0, "abc")) is None
    assert live.add(delta(0, "abcdef")) is None
    assert live.add(delta(3, "defgh")) == piece("gh")
    assert live.add(delta(0, "abcdefghi")) == piece("i")
    assert live.text("msg_1") == "abcdefghi"


def test_restart_of_the_model_replaces_the_text() -> None:
    live = LiveText()
    live.add(delta(0, "abcdef"))
    assert live.add(delta(0, "xy")) == piece("xy", anew=True)
    assert live.add(delta(2, "z")) == piece("z")
    assert live.add(delta(1, "Y")) == piece("xY", anew=True)
    assert live.text("msg_1") == "xY"


def test_missed_beginning_replaces_the_text() -> None:
    live = LiveText()
    assert live.add(delta(10, "k")) == piece("k")
    assert live.add(delta(11, "l")) == piece("l")
    assert live.add(delta(20, "u")) == piece("u", anew=True)
    assert live.add(delta(0, "abc")) == piece("abc", anew=True)
    assert live.text("msg_1") == "abc"


def test_tool_output_is_joined_per_stream() -> None:
    live = LiveText()
    data = {"call_id": "tool_1", "stream": "stdout", "offset": 0, "text": "hi\n"}
    assert live.add(Event("tool.output", data=data)) == Piece("tool_1", "stdout", "hi\n")
    assert live.add(other("tool.completed", id="tool_1")) is None
    assert live.text("tool_1", "stdout") == ""


def test_complete_texts_are_dropped() -> None:
    live = LiveText()
    live.add(delta(0, "a"))
    live.add(delta(0, "b", message="msg_2"))
    assert live.add(other("message.completed", message="msg_1")) is None
    assert (live.text("msg_1"), live.text("msg_2")) == ("", "b")
    assert live.add(other("run.failed")) is None
    assert live.text("msg_2") == ""
    assert live.add(other("moon.landed")) is None
