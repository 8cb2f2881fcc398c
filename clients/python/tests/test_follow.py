"""Event streams of both clients: every durable event once and in order, also across lost connections."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from typing import Any

import documents
import pytest
from conftest import ClientFactory
from documents import control, event, sse_event
from fake_server import FakeServer, Hangup, Reply, Request, Stream, refusal

from remuda import ConnectionFailedError, InvalidRequestError, NotFoundError, ProtocolError, UnauthenticatedError

RUN = "/api/v1/runs/run_1/events"
SESSION = "/api/v1/sessions/s1/events"
END = control("end", {"reason": "run_finished"})
RETRY_AT_ONCE = b"retry: 1\n\n"


def cursors(stream: Any) -> list[int]:
    return [one.cursor for one in stream]


def test_stream_of_a_run_ends_with_the_run(fake: FakeServer, make_client: ClientFactory) -> None:
    data = {"call": "tool_1", "tool": "Bash"}
    first = sse_event(event(1, "run.queued")) + b": keep-alive\n\n" + sse_event(event(2, "tool.started", data=data))
    fake.on("GET", RUN, Stream([first, sse_event(event(3, "run.completed")), END]))
    stream = make_client(fake.url).follow("run_1")
    events = list(stream)
    assert [one.type for one in events] == ["run.queued", "tool.started", "run.completed"]
    assert events[1].data == data
    assert events[1].raw == event(2, "tool.started", data=data)
    assert (events[2].terminal_state, stream.cursor) == ("completed", 3)
    assert fake.of("GET", RUN)[0].query == {"cursor": "0"}
    assert fake.of("GET", RUN)[0].headers["accept"] == "text/event-stream"
    assert list(stream) == []


def test_target_may_be_an_id_a_name_or_an_object(fake: FakeServer, make_client: ClientFactory) -> None:
    fake.on("POST", "/api/v1/sessions/s1/messages", Reply(documents.submitted(), 202))
    fake.on("GET", "/api/v1/runs/run_1", Reply(documents.run()))
    fake.on("GET", "/api/v1/sessions/s1", Reply(documents.session()))
    for path in (RUN, "/api/v1/sessions/ses_1/events"):
        fake.on("GET", path, Stream([sse_event(event(1, "run.completed")), END]))
    client = make_client(fake.url)
    for target in (client.send("s1", "hi"), client.get_run("run_1"), client.get_session("s1"), "run_1", "ses_1"):
        assert cursors(client.follow(target)) == [1]


def test_lost_connection_resumes_after_the_last_event(fake: FakeServer, make_client: ClientFactory) -> None:
    torn = sse_event(event(3))
    fake.on(
        "GET",
        SESSION,
        Stream([RETRY_AT_ONCE, sse_event(event(1)), sse_event(event(2)), torn[: len(torn) // 2]], cut=True),
        Hangup(),
        refusal(503, "unavailable", retry_after_ms=1),
        Reply("a proxy", 502),
        # A server may repeat events.
        Stream([RETRY_AT_ONCE, sse_event(event(2)), sse_event(event(3)), sse_event(event(4))]),
        Stream([sse_event(event(5)), END]),
    )
    stream = make_client(fake.url).follow("s1")
    assert cursors(stream) == [1, 2, 3, 4, 5]
    assert stream.end_reason == "run_finished"
    assert [request.query["cursor"] for request in fake.of("GET", SESSION)] == ["0", "2", "2", "2", "2", "4"]


def test_status_204_ends_the_stream(fake: FakeServer, make_client: ClientFactory) -> None:
    fake.on("GET", RUN, Reply(status=204))
    assert cursors(make_client(fake.url).follow("run_1", after=3)) == []


def test_cursor_of_filtered_events_is_kept(fake: FakeServer, make_client: ClientFactory) -> None:
    fake.on(
        "GET",
        SESSION,
        Stream([RETRY_AT_ONCE, sse_event(event(2)), b"id: 90\n\n"], cut=True),
        Stream([sse_event(event(95)), END]),
    )
    stream = make_client(fake.url).follow("s1", types=["tool.started"])
    assert next(stream).cursor == stream.cursor == 2
    assert cursors(stream) == [95]
    assert fake.of("GET", SESSION)[1].query["cursor"] == "90"


def test_goodbye_reconnects(fake: FakeServer, make_client: ClientFactory) -> None:
    goodbye = b"retry: 20\n" + control("goodbye", {"reason": "shutting_down"})
    fake.on("GET", SESSION, Stream([sse_event(event(1)), goodbye]), Stream([sse_event(event(2)), END]))
    assert cursors(make_client(fake.url).follow("s1")) == [1, 2]


def test_reconnects_at_every_byte_lose_and_repeat_nothing(fake: FakeServer, make_client: ClientFactory) -> None:
    """The server closes connections anywhere, also within an event, and sometimes repeats earlier events."""
    chance = random.Random(20261117)
    last = 200
    whole = {
        cursor: sse_event(
            event(cursor, "run.completed" if cursor == last else "tool.started", data={"ä": "x" * (cursor % 50)})
        )
        for cursor in range(1, last + 1)
    }

    def serve(request: Request) -> Any:
        after = int(request.query["cursor"])
        if chance.random() < 0.1:
            return Hangup()
        begin = max(0, after - chance.choice([0, 0, 0, 2]))
        text = RETRY_AT_ONCE + b"".join(whole[cursor] for cursor in range(begin + 1, last + 1)) + END
        text = text[: chance.randint(1, 4000)]
        pieces = [text[place : place + 97] for place in range(0, len(text), 97)]
        return Stream(pieces, cut=chance.random() < 0.5)

    fake.on("GET", RUN, serve)
    stream = make_client(fake.url).follow("run_1")
    assert cursors(stream) == list(range(1, last + 1))
    assert len(fake.of("GET", RUN)) > 10


def test_stream_starts_after_the_given_cursor(fake: FakeServer, make_client: ClientFactory) -> None:
    fake.on("GET", SESSION, Stream([sse_event(event(8)), END]))
    stream = make_client(fake.url).follow("s1", after=7, types=["run.*", "message.completed"], deltas=True)
    assert cursors(stream) == [8]
    assert fake.of("GET", SESSION)[0].query == {"cursor": "7", "types": "run.*,message.completed", "deltas": "true"}


def test_deltas_do_not_change_the_cursor(fake: FakeServer, make_client: ClientFactory) -> None:
    piece = {"run_id": "run_1", "message_id": "msg_1", "kind": "text", "offset": 0, "text": "hel"}
    delta = control("message.delta", {"type": "message.delta", **piece})
    fake.on("GET", RUN, Stream([sse_event(event(1)), delta], cut=True), Stream([sse_event(event(2, "run.failed"))]))
    first, second, third = make_client(fake.url).follow("run_1", deltas=True)
    assert (first.durable, second.durable, third.durable) == (True, False, True)
    assert (second.type, second.run_id, second.data["offset"], second.data["text"]) == (
        "message.delta",
        "run_1",
        0,
        "hel",
    )
    assert fake.of("GET", RUN)[1].query["cursor"] == "1"


def test_unknown_event_types_are_returned(fake: FakeServer, make_client: ClientFactory) -> None:
    fake.on("GET", SESSION, Stream([sse_event(event(1, "moon.landed", data=[1], extra=2)), b"data: {}\n\n", END]))
    landed, nameless = make_client(fake.url).follow("s1")
    assert (landed.type, landed.data, landed.raw["data"], landed.raw["extra"]) == ("moon.landed", {}, [1], 2)
    assert nameless.type == "message"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("unauthenticated", UnauthenticatedError),
        ("session_not_found", NotFoundError),
        ("cursor_out_of_range", InvalidRequestError),
        ("code_of_the_future", InvalidRequestError),
    ],
)
def test_permanent_error_within_a_stream_raises(
    fake: FakeServer, make_client: ClientFactory, code: str, kind: type[Exception]
) -> None:
    body = {"error": {"code": code, "message": "the key was revoked", "request_id": "req_9"}}
    fake.on("GET", SESSION, Stream([sse_event(event(1)), control("error", body)]))
    stream = make_client(fake.url).follow("s1")
    assert next(stream).cursor == 1
    with pytest.raises(kind, match="the key was revoked") as caught:
        next(stream)
    assert vars(caught.value)["request_id"] == "req_9"
    assert list(stream) == []


def test_transient_error_within_a_stream_reconnects(fake: FakeServer, make_client: ClientFactory) -> None:
    body = {"error": {"code": "unavailable", "message": "come again", "details": {"retry_after_ms": 1}}}
    fake.on("GET", SESSION, Stream([sse_event(event(1)), control("error", body)]), Stream([sse_event(event(2)), END]))
    assert cursors(make_client(fake.url).follow("s1")) == [1, 2]


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (refusal(404, "session_not_found"), NotFoundError, "session_not_found"),
        (refusal(416, "cursor_out_of_range"), InvalidRequestError, "cursor_out_of_range"),
        (Reply({"items": []}), ProtocolError, "expected an event stream, found application/json"),
        (Stream([b"data: no json\n\n"]), ProtocolError, "is not JSON"),
        (Stream([b"data: []\n\n"]), ProtocolError, "is not a JSON object"),
    ],
)
def test_permanent_errors_raise_immediately(
    fake: FakeServer, make_client: ClientFactory, answer: Any, kind: type[Exception], message: str
) -> None:
    fake.on("GET", SESSION, answer)
    with pytest.raises(kind, match=message):
        next(make_client(fake.url).follow("s1"))
    assert len(fake.of("GET", SESSION)) == 1


def test_retries_end_without_progress(fake: FakeServer, make_client: ClientFactory) -> None:
    fake.on("GET", SESSION, Stream([sse_event(event(1))], cut=True), Stream([RETRY_AT_ONCE]))
    stream = make_client(fake.url, give_up_after=0.3).follow("s1")
    assert next(stream).cursor == 1
    with pytest.raises(ConnectionFailedError, match="ended the event stream"):
        next(stream)


def test_silent_connection_reconnects_after_idle_timeout(fake: FakeServer, make_client: ClientFactory) -> None:
    release = threading.Event()

    def silence() -> Iterator[bytes]:
        yield sse_event(event(1))
        release.wait(10)

    fake.on("GET", SESSION, Stream(silence()), Stream([sse_event(event(2)), END]))
    try:
        assert cursors(make_client(fake.url, idle_timeout=0.2).follow("s1")) == [1, 2]
    finally:
        release.set()


def test_leaving_a_stream_early_closes_its_connection(fake: FakeServer, make_client: ClientFactory) -> None:
    def endless() -> Iterator[bytes]:
        for cursor in itertools.count(1):
            yield sse_event(event(cursor))

    fake.on("GET", SESSION, lambda _: Stream(endless()))
    client = make_client(fake.url, max_connections=1, request_timeout=5)
    for _ in range(3):
        with client.follow("s1") as stream:
            assert next(stream).cursor == 1
        assert list(stream) == []


def test_stream_endpoint_of_the_server_is_used(make_client: ClientFactory) -> None:
    control_plane, streams = FakeServer(), FakeServer()
    streams.on("GET", SESSION, Stream([sse_event(event(1)), END]))
    with streams.running(), control_plane.running():
        info = {"version": "0", "mode": "split", "stream_endpoint": streams.url, "keys_required": True, "tools": []}
        control_plane.on("GET", "/api/v1", refusal(503, "unavailable", retry_after_ms=1), Reply(info))
        client = make_client(control_plane.url, "rmd_key")
        assert cursors(client.follow("s1")) == [1]
        assert cursors(client.follow("s1")) == [1]
        assert len(control_plane.of("GET", "/api/v1")) == 2
        assert cursors(make_client("http://127.0.0.1:1", stream_endpoint=streams.url).follow("s1")) == [1]


def test_long_poll_returns_events_and_the_next_cursor(fake: FakeServer, make_client: ClientFactory) -> None:
    fake.on("GET", SESSION, Reply({"items": [event(4), event(5)], "next_cursor": 5, "ended": True}))
    page = make_client(fake.url).poll_events("s1", after=3, types=["tool.*"], max_wait=0.5)
    assert ([one.cursor for one in page], page.next_cursor, page.ended) == ([4, 5], 5, True)
    assert fake.of("GET", SESSION)[0].query == {"cursor": "3", "types": "tool.*", "wait": "500ms"}


def test_types_must_be_a_list(fake: FakeServer, make_client: ClientFactory) -> None:
    with pytest.raises(TypeError, match="types: expected a list"):
        make_client(fake.url).follow("s1", types="run.queued")
