"""Unit tests without a server."""

from __future__ import annotations

import copy
import email.utils
import inspect
import pickle
import time
from datetime import datetime, timedelta, timezone

import pytest

import remuda
from remuda import AsyncClient, AsyncEventStream, Client, EventStream, RunNotCompletedError, WaitTimeoutError
from remuda._call import millis, retry_after
from remuda._core import Core
from remuda._decode import decode, decode_time, encode
from remuda._retry import Retry
from remuda.errors import ApiError, ConnectionFailedError, ProtocolError, from_answer
from remuda.types import Message, Run, Session, ToolCall


def public(kind: type) -> dict[str, object]:
    return {name: member for name, member in vars(kind).items() if not name.startswith("_")}


@pytest.mark.parametrize(("blocking", "asynchronous"), [(Client, AsyncClient), (EventStream, AsyncEventStream)])
def test_both_clients_have_the_same_methods(blocking: type, asynchronous: type) -> None:
    assert list(public(blocking)) == list(public(asynchronous))
    for name, member in public(blocking).items():
        if not callable(member):
            continue
        other = getattr(asynchronous, name)
        mine, theirs = inspect.signature(member), inspect.signature(other)
        assert mine.parameters == theirs.parameters, name
        if name not in {"follow", "each"}:
            assert mine.return_annotation == theirs.return_annotation, name
            assert inspect.iscoroutinefunction(other), name
            assert member.__doc__ == other.__doc__, name


def test_all_exports_exist_and_are_sorted() -> None:
    assert all(hasattr(remuda, name) for name in remuda.__all__)
    assert list(remuda.__all__) == sorted(remuda.__all__)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-17T01:02:03Z", datetime(2026, 11, 17, 1, 2, 3, tzinfo=timezone.utc)),
        ("2026-11-17T01:02:03.5Z", datetime(2026, 11, 17, 1, 2, 3, 500000, tzinfo=timezone.utc)),
        ("2026-11-17t03:02:03.123456789+02:00", datetime(2026, 11, 17, 1, 2, 3, 123456, tzinfo=timezone.utc)),
    ],
)
def test_rfc_3339_times_are_parsed(text: str, expected: datetime) -> None:
    assert decode_time(text) == expected


@pytest.mark.parametrize("text", ["", "now", "2026-11-17", "2026-11-17T01:02:03", "2026-13-17T01:02:03Z"])
def test_invalid_times_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_time(text)


def test_durations_are_converted_to_milliseconds() -> None:
    assert [millis(value) for value in (None, 2, 0.25, timedelta(hours=1))] == [None, 2000, 250, 3600000]
    for value in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="expected a duration"):
            millis(value)


def test_absent_fields_are_not_sent() -> None:
    assert encode(ToolCall("Bash", {"a": None})) == {"tool": "Bash", "arguments": {"a": None}, "parallel": False}


def test_message_text_joins_text_parts() -> None:
    parts = [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}, "?"]
    message = decode(Message, {"id": "msg_1", "session_id": "ses_1", "role": "assistant", "parts": parts})
    assert message.text == "ab"


def test_raw_is_ignored_in_comparisons() -> None:
    document = {"id": "ses_1", "workspace_id": "ws_1", "pool": "default"}
    assert decode(Session, document) == decode(Session, {**document, "unknown": 1})
    assert "raw" not in repr(decode(Session, document))


def test_errors_can_be_pickled() -> None:
    run = Run("run_1", "ses_1", 1, "parked")
    api = from_answer(404, {"error": {"code": "c", "message": "m", "details": {"field": "f"}, "request_id": "r"}})
    for error in (api, WaitTimeoutError(run), RunNotCompletedError(run), ConnectionFailedError("gone", sent=False)):
        for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(other) is type(error)
            assert str(other) == str(error)
            assert vars(other) == vars(error)


def test_retry_after_is_a_number_or_a_date() -> None:
    assert retry_after({"retry-after": "7"}) == 7
    soon = email.utils.formatdate(time.time() + 60, usegmt=True)
    assert 55 < (retry_after({"retry-after": soon}) or 0) <= 60
    for text in ("", "soon", "-1", "1e999"):
        assert retry_after({"retry-after": text}) is None


def unavailable(after: float = 0.0) -> ApiError:
    return ApiError("unavailable", "down", status=503, retry_after=after or None)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_retry_delays_grow_until_the_limit() -> None:
    clock = Clock()
    retry = Retry(10, clock=clock)
    delays: list[float] = []

    def go_on() -> None:
        while True:
            delays.append(retry.delay_after(unavailable()))
            clock.now += delays[-1]

    with pytest.raises(ApiError):
        go_on()
    assert clock.now == pytest.approx(10)
    assert 0.025 <= delays[0] <= 0.05
    assert max(delays) <= 2
    assert 8 < len(delays) < 40
    retry.progress()
    assert retry.delay_after(unavailable()) <= 0.05


def test_retry_waits_for_retry_after() -> None:
    retry = Retry(10, clock=Clock())
    assert retry.delay_after(unavailable(after=5)) == 5
    assert retry.delay_after(unavailable(), at_least=3) == 3
    with pytest.raises(ApiError):
        retry.delay_after(unavailable(after=11))


@pytest.mark.parametrize(
    ("error", "repeatable", "expected"),
    [
        (ConnectionFailedError("lost"), True, True),
        (ConnectionFailedError("lost"), False, False),
        (ConnectionFailedError("refused", sent=False), False, True),
        (unavailable(), True, True),
        (unavailable(), False, False),
        (ApiError("internal", "", status=500), True, False),
        (ApiError("run_not_found", "", status=404), True, False),
        (ApiError("overloaded", "", status=429), True, False),
        (ApiError("overloaded", "", status=429, retry_after=1), False, True),
        (ProtocolError("?"), True, False),
    ],
)
def test_only_transient_errors_of_safe_requests_are_retried(
    error: remuda.RemudaError, repeatable: bool, expected: bool
) -> None:
    retry = Retry(10)
    if expected:
        assert retry.delay_after(error, repeatable=repeatable) > 0
    else:
        with pytest.raises(type(error)):
            retry.delay_after(error, repeatable=repeatable)


def test_api_key_is_not_sent_to_an_unencrypted_stream_endpoint() -> None:
    def core(endpoint: str, key: str) -> Core:
        return Core(
            endpoint,
            key,
            stream_endpoint=None,
            connect_timeout=1,
            request_timeout=1,
            idle_timeout=1,
            give_up_after=1,
            max_connections=1,
        )

    with pytest.raises(ProtocolError, match="unencrypted stream endpoint"):
        core("https://a", "rmd_key").allowed_stream_endpoint("http://b")
    assert core("https://a", "rmd_key").allowed_stream_endpoint("https://b") == "https://b"
    assert core("https://a", "").allowed_stream_endpoint("http://b") == "http://b"
    assert core("http://a", "rmd_key").allowed_stream_endpoint(None) == "http://a"
