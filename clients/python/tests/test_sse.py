from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from remuda.errors import ProtocolError
from remuda.sse import Message, Parser


def parse(*chunks: bytes) -> list[Message]:
    parser = Parser()
    return [message for chunk in chunks for message in parser.feed(chunk)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"data: one\n\n", [Message("message", "one")]),
        (b"event: run.queued\nid: 7\ndata: {}\n\n", [Message("run.queued", "{}", "7")]),
        (b"data: a\ndata: b\ndata\n\n", [Message("message", "a\nb\n")]),
        (b"data:a\n\ndata:  two spaces\n\n", [Message("message", "a"), Message("message", " two spaces")]),
        (b": keep-alive\n\n:\n\ndata: x\n\n", [Message("message", "x")]),
        (b"\xef\xbb\xbfdata: after a mark\n\n", [Message("message", "after a mark")]),
        (b"data: \xef\xbb\xbfinside\n\n", [Message("message", "\ufeffinside")]),
        (b"event: lost without data\n\ndata: x\n\n", [Message("message", "x")]),
        (b"data: no blank line follows\n", []),
        (b"future: field\ndata: x\n\n", [Message("message", "x")]),
        (b"data: x\nid: a\0b\n\n", [Message("message", "x")]),
        (b"data: \xff\n\n", [Message("message", "\ufffd")]),
        (b"data: \xe2\x80\xa8 no line end\n\n", [Message("message", "\u2028 no line end")]),
        ("data: grüße 🐎\n\n".encode(), [Message("message", "grüße 🐎")]),
        (b"\n\n\n", []),
        (b"", []),
    ],
)
def test_parses_according_to_the_standard(text: bytes, expected: list[Message]) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_line_ends_may_be_split_anywhere(end: bytes) -> None:
    text = end.join([b"event: a", b"data: 1", b"data: 2", b"id: 9", b"", b"data: 3", b"", b""])
    expected = [Message("a", "1\n2", "9"), Message("message", "3")]
    assert parse(text) == expected
    for place in range(len(text) + 1):
        assert parse(text[:place], text[place:]) == expected, place
    assert parse(*(bytes([byte]) for byte in text)) == expected
    assert parse(*(bytes([byte]) for byte in text), b"") == expected


def test_split_crlf_is_not_a_blank_line() -> None:
    assert parse(b"data: 1\r", b"\ndata: 2\r", b"\n\r", b"\n") == [Message("message", "1\n2")]
    assert parse(b"data: 1\r", b"", b"\ndata: 2\r\n\r\n") == [Message("message", "1\n2")]


def test_message_is_returned_with_its_last_byte() -> None:
    parser = Parser()
    assert list(parser.feed(b"data: 1\r\n")) == []
    # Do not wait for the line feed after a carriage return, which may never come.
    assert list(parser.feed(b"\r")) == [Message("message", "1")]


def test_random_chunks_give_the_same_messages() -> None:
    chance = random.Random(6)
    for _ in range(300):
        text = b"".join(
            chance.choices([b"data: x", b"id: 1", b"event: e", b": c", b"\n", b"\r", b"\r\n", b"\xc3\xa4"], k=30)
        )
        assert parse(*random_chunks(text, chance)) == parse(text)


def random_chunks(text: bytes, chance: random.Random) -> Iterable[bytes]:
    while text:
        place = chance.randint(1, 7)
        yield text[:place]
        text = text[place:]


def test_last_event_id_and_retry_are_kept() -> None:
    parser = Parser()
    assert list(parser.feed(b"retry: 1500\nid: 4\ndata: x\n\ndata: y\n\n")) == [
        Message("message", "x", "4"),
        Message("message", "y"),
    ]
    assert (parser.last_event_id, parser.retry_ms) == ("4", 1500)
    list(parser.feed(b"id: 5\n\nretry: soon\nretry: 99999999999\nid: 6\ndata: torn off"))
    assert (parser.last_event_id, parser.retry_ms) == ("5", 1500)


def test_too_long_lines_and_events_are_rejected() -> None:
    with pytest.raises(ProtocolError, match="a line of more than 10 bytes"):
        list(Parser(max_line=10).feed(b"data: 0123456789\n"))
    parser = Parser(max_line=10)
    assert list(parser.feed(b"data:")) == []
    with pytest.raises(ProtocolError):
        list(parser.feed(b"012345"))
    with pytest.raises(ProtocolError, match="an event of more than 20 bytes"):
        list(Parser(max_event=20).feed(b"data: 0123456789\n" * 3))
    assert len(list(Parser(max_line=16, max_event=20).feed(b"data: 0123456789\n\n" * 100))) == 100
