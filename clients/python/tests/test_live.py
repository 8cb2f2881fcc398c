from __future__ import annotations

from typing import Any, Optional

from remuda import Event, LiveText, Piece


def delta(offset: int, text: str, kind: str = "text", message: str = "msg_1") -> Event:
    data = {"message_id": message, "kind": kind, "offset": offset, "text": text}
    return Event("message.delta", run_id="run_1", data=data)


def other(kind: str, **data: Any) -> Event:
    return Event(kind, cursor=1, run_id="run_1", data=data)


def said(text: str, kind: str = "text", anew: bool = False) -> Optional[Piece]:
    return Piece("msg_1", kind, text, anew)


def test_pieces_follow_each_other() -> None:
    live = LiveText()
    assert live.add(delta(0, "grü")) == said("grü")
    assert live.add(delta(4, "ße ")) == said("ße ")
    assert live.add(delta(0, "hm", "reasoning")) == said("hm", "reasoning")
    assert live.add(delta(8, "🐎")) == said("🐎")
    assert live.text("msg_1") == "grüße 🐎"
    assert live.text("msg_1", "reasoning") == "hm"


def test_what_is_told_again_is_not_given_again() -> None:
    live = LiveText()
    live.add(delta(0, "abcdef"))
    assert live.add(delta(0, "abc")) is None
    assert live.add(delta(0, "abcdef")) is None
    assert live.add(delta(3, "defgh")) == said("gh")
    assert live.add(delta(0, "abcdefghi")) == said("i")
    assert live.text("msg_1") == "abcdefghi"


def test_a_model_that_begins_anew() -> None:
    live = LiveText()
    live.add(delta(0, "abcdef"))
    assert live.add(delta(0, "xy")) == said("xy", anew=True)
    assert live.add(delta(2, "z")) == said("z")
    assert live.add(delta(1, "Y")) == said("xY", anew=True)
    assert live.text("msg_1") == "xY"


def test_a_late_reader() -> None:
    live = LiveText()
    assert live.add(delta(10, "k")) == said("k")
    assert live.add(delta(11, "l")) == said("l")
    assert live.add(delta(20, "u")) == said("u", anew=True)
    assert live.add(delta(0, "abc")) == said("abc", anew=True)
    assert live.text("msg_1") == "abc"


def test_output_of_tools() -> None:
    live = LiveText()
    data = {"call_id": "tool_1", "stream": "stdout", "offset": 0, "text": "hi\n"}
    assert live.add(Event("tool.output", data=data)) == Piece("tool_1", "stdout", "hi\n")
    assert live.add(other("tool.completed", id="tool_1")) is None
    assert live.text("tool_1", "stdout") == ""


def test_texts_are_forgotten_when_the_whole_has_come() -> None:
    live = LiveText()
    live.add(delta(0, "a"))
    live.add(delta(0, "b", message="msg_2"))
    assert live.add(other("message.completed", message="msg_1")) is None
    assert (live.text("msg_1"), live.text("msg_2")) == ("", "b")
    assert live.add(other("run.failed")) is None
    assert live.text("msg_2") == ""
    assert live.add(other("moon.landed")) is None
