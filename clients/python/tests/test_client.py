"""Requests, responses and retries of both clients."""

from __future__ import annotations

import socket
from datetime import datetime, timedelta, timezone

import documents
import pytest
from conftest import ClientFactory
from fake_server import FakeServer, Hangup, Reply, Request, refusal

from remuda import (
    ConflictError,
    ConnectionFailedError,
    Image,
    InvalidRequestError,
    Limit,
    NotFoundError,
    OverloadedError,
    PermissionRule,
    Permissions,
    PreconditionFailedError,
    ProtocolError,
    RunNotCompletedError,
    ServerError,
    ToolCall,
    UnauthenticatedError,
    WaitTimeoutError,
)

MESSAGES = "/api/v1/sessions/s1/messages"
RUNS = "/api/v1/sessions/s1/runs"
RUN = "/api/v1/runs/run_1"
UNAVAILABLE = refusal(503, "unavailable")


def test_message_is_sent_with_a_generated_idempotency_key(fake: FakeServer, make_client: ClientFactory) -> None:
    fake.on("POST", MESSAGES, Reply(documents.submitted(message_id="msg_1"), 202))
    client = make_client(fake.url, "rmd_secret")
    answer = client.send("s1", "hi", create_session=True, timeout=timedelta(minutes=2), budget=Limit(tokens=9))
    assert (answer.run_id, answer.message_id, answer.first_cursor, answer.deduplicated) == ("run_1", "msg_1", 2, False)
    client.send("s1", "hi", images=[Image(url="https://x/y.png")], idempotency_key="mine", timeout=1.5)

    first, second = fake.of("POST", MESSAGES)
    assert first.body == {"text": "hi", "create_session": True, "timeout_ms": 120000, "budget": {"tokens": 9}}
    assert first.headers["authorization"] == "Bearer rmd_secret"
    assert first.headers["content-type"] == "application/json"
    assert first.headers["idempotency-key"].startswith("py-")
    assert second.body == {"text": "hi", "images": [{"url": "https://x/y.png"}], "timeout_ms": 1500}
    assert second.headers["idempotency-key"] == "mine"


def test_tool_calls_are_submitted(fake: FakeServer, make_client: ClientFactory) -> None:
    fake.on("POST", RUNS, Reply(documents.submitted(), 202))
    make_client(fake.url).call_tools("s1", [ToolCall("Bash", {"command": "ls"}, parallel=True), {"tool": "noop"}])
    (request,) = fake.of("POST", RUNS)
    calls = [{"tool": "Bash", "arguments": {"command": "ls"}, "parallel": True}, {"tool": "noop"}]
    assert request.body == {"tools": {"calls": calls, "continue_on_error": False, "record": False}}


def test_submit_is_retried_with_the_same_idempotency_key(fake: FakeServer, make_client: ClientFactory) -> None:
    fake.on("GET", RUN, Reply(documents.run()))
    fake.on("POST", MESSAGES, Hangup(), UNAVAILABLE, Reply(documents.submitted(deduplicated=True), 202))
    client = make_client(fake.url)
    client.get_run("run_1")
    assert client.send("s1", "hi").deduplicated
    keys = {request.headers["idempotency-key"] for request in fake.of("POST", MESSAGES)}
    assert (len(fake.of("POST", MESSAGES)), len(keys)) == (3, 1)


def test_request_that_is_not_idempotent_is_not_retried(fake: FakeServer, make_client: ClientFactory) -> None:
    fake.on("GET", RUN, Reply(documents.run()))
    fake.on("POST", "/api/v1/sessions", Hangup(), UNAVAILABLE, Reply(documents.session(), 201))
    client = make_client(fake.url)
    client.get_run("run_1")
    with pytest.raises(ConnectionFailedError):
        client.create_session("s1")
    with pytest.raises(ServerError) as caught:
        client.create_session("s1")
    assert (caught.value.code, caught.value.status) == ("unavailable", 503)
    assert client.create_session("s1").id == "ses_1"
    assert len(fake.of("POST", "/api/v1/sessions")) == 3


def test_retry_after_is_respected(fake: FakeServer, make_client: ClientFactory) -> None:
    soon = refusal(429, "overloaded", retry_after_ms=1)
    fake.on("POST", "/api/v1/sessions", soon, soon, Reply(documents.session(), 201))
    assert make_client(fake.url).create_session("s1").id == "ses_1"


def test_retry_after_beyond_the_limit_raises_immediately(fake: FakeServer, make_client: ClientFactory) -> None:
    headers = {"retry-after": "120"}
    fake.on("GET", RUN, Reply({"error": {"code": "unavailable", "message": "later", "request_id": "r"}}, 503, headers))
    with pytest.raises(ServerError) as caught:
        make_client(fake.url, give_up_after=5).get_run("run_1")
    assert (caught.value.retry_after, len(fake.of("GET", RUN))) == (120, 1)


def test_full_queue_is_not_retried(fake: FakeServer, make_client: ClientFactory) -> None:
    fake.on("POST", MESSAGES, refusal(429, "queue_full"))
    with pytest.raises(OverloadedError, match="queue_full"):
        make_client(fake.url).send("s1", "hi")
    assert len(fake.of("POST", MESSAGES)) == 1


def test_retries_end_after_give_up_after(fake: FakeServer, make_client: ClientFactory) -> None:
    fake.on("GET", RUN, UNAVAILABLE)
    with pytest.raises(ServerError, match="unavailable"):
        make_client(fake.url, give_up_after=0.2).get_run("run_1")
    assert 2 <= len(fake.of("GET", RUN)) <= 8


def test_unreachable_server_fails_immediately(make_client: ClientFactory) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        client = make_client(f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(ConnectionFailedError, match="cannot reach the server at http://127") as caught:
            client.get_run("run_1")
    assert (caught.value.code, caught.value.status, caught.value.sent) == ("unavailable", None, False)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequestError),
        (401, UnauthenticatedError),
        (404, NotFoundError),
        (409, ConflictError),
        (412, PreconditionFailedError),
        (413, InvalidRequestError),
        (500, ServerError),
    ],
)
def test_error_responses_raise_exceptions_with_codes(
    fake: FakeServer, make_client: ClientFactory, status: int, kind: type[Exception]
) -> None:
    fake.on("GET", RUN, refusal(status, "some_code", "no good", field="tools.calls[1].tool"))
    with pytest.raises(kind) as caught:
        make_client(fake.url).get_run("run_1")
    error = caught.value
    assert str(error) == "[some_code] tools.calls[1].tool: no good (request req_1)"
    assert {
        "status": status,
        "code": "some_code",
        "field": "tools.calls[1].tool",
        "request_id": "req_1",
    }.items() <= vars(error).items()


@pytest.mark.parametrize("body", [None, "text", {"error": "text"}, []])
def test_error_responses_of_proxies_have_http_codes(fake: FakeServer, make_client: ClientFactory, body: object) -> None:
    fake.on("GET", RUN, Reply(body, 418))
    with pytest.raises(Exception, match=r"\[http_418\] the server answered with status 418"):
        make_client(fake.url).get_run("run_1")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "run.id is missing"),
        ({**documents.run(), "seq": "1"}, "run.seq in the server's response: expected int, found str"),
        ({**documents.run(), "seq": True}, "run.seq in the server's response: expected int, found bool"),
        ({**documents.run(), "created_at": "now"}, "run.created_at in the server's response: expected an RFC 3339"),
        ({**documents.run(), "outcomes": [{"id": "a"}]}, r"run.outcomes\[0\].tool is missing"),
        ([], "run in the server's response: expected dict, found list"),
    ],
)
def test_invalid_responses_raise_protocol_errors(
    fake: FakeServer, make_client: ClientFactory, body: object, message: str
) -> None:
    fake.on("GET", RUN, Reply(body))
    with pytest.raises(ProtocolError, match=message):
        make_client(fake.url).get_run("run_1")


def test_unknown_fields_of_newer_servers_are_kept(fake: FakeServer, make_client: ClientFactory) -> None:
    outcome = {"id": "tool_1", "tool": "Bash", "status": "completed", "output": {"exit_code": 0}, "duration_ms": 3}
    document = documents.run("hibernating", outcomes=[outcome], later="x", spent={"model_calls": 1, "input_tokens": 5})
    fake.on("GET", RUN, Reply(document))
    run = make_client(fake.url).get_run("run_1")
    assert (run.state, run.finished, run.raw["later"]) == ("hibernating", False, "x")
    assert run.created_at == datetime(2026, 11, 17, 1, 2, 3, 123456, tzinfo=timezone.utc)
    assert run.outcomes[0].output == {"exit_code": 0}
    assert run.spent is not None
    assert (run.spent.model_calls, run.spent.input_tokens, run.spent.cost_micros) == (1, 5, 0)


def test_names_are_quoted_as_one_path_segment(fake: FakeServer, make_client: ClientFactory) -> None:
    fake.on("GET", "/api/v1/sessions/a%2F..%2F%3Fb%20%C3%A4", Reply(documents.session()))
    client = make_client(fake.url)
    assert client.get_session("a/../?b ä").id == "ses_1"
    for name in ("", ".", ".."):
        with pytest.raises(ValueError, match="expected an id or a name"):
            client.get_session(name)


def test_update_with_a_stale_etag_fails(fake: FakeServer, make_client: ClientFactory) -> None:
    where = "/api/v1/sessions/ses_1"
    fake.on("GET", where, Reply(documents.session(), headers={"etag": '"7"'}))
    fake.on("PATCH", where, Reply(documents.session(title="t")), refusal(412, "precondition_failed"))
    client = make_client(fake.url)
    seen = client.get_session("ses_1")
    rules = Permissions(mode="plan", rules=[PermissionRule("bash", "ask", "rm *")])
    assert client.update_session(seen, title="t", permissions=rules, if_match=seen.etag).title == "t"
    with pytest.raises(PreconditionFailedError):
        client.update_session(seen, title="t", if_match=seen.etag)
    request = fake.of("PATCH", where)[0]
    assert request.headers["if-match"] == '"7"'
    rule = {"permission": "bash", "action": "ask", "pattern": "rm *"}
    assert request.body == {"title": "t", "permissions": {"mode": "plan", "rules": [rule], "approvers": []}}


def test_each_iterates_over_all_pages(fake: FakeServer, make_client: ClientFactory) -> None:
    def page(request: Request) -> Reply:
        number = int(request.query.get("page_token", "0"))
        more = {} if number == 2 else {"next_page_token": str(number + 1)}
        return Reply({"items": [documents.session(id=f"ses_{number}")], **more})

    fake.on("GET", "/api/v1/sessions", page)
    client = make_client(fake.url)
    first = client.list_sessions(status="open", page_size=1)
    assert (len(first), first.next_page_token) == (1, "1")
    assert [session.id for session in client.each(first)] == ["ses_0", "ses_1", "ses_2"]
    assert fake.of("GET", "/api/v1/sessions")[-1].query == {"status": "open", "page_size": "1", "page_token": "2"}


def test_run_submits_waits_and_returns_the_answer(fake: FakeServer, make_client: ClientFactory) -> None:
    fake.on("POST", MESSAGES, Reply(documents.submitted(), 202))
    done = {"run": documents.run("completed", answer="hello"), "finished": True}
    fake.on("GET", f"{RUN}/wait", UNAVAILABLE, Hangup(), Reply(done))
    assert make_client(fake.url).run("s1", "hi").answer == "hello"
    assert fake.of("GET", f"{RUN}/wait")[0].query == {"timeout": "30000ms"}


def test_failed_run_raises_unless_check_is_false(fake: FakeServer, make_client: ClientFactory) -> None:
    fake.on("POST", RUNS, Reply(documents.submitted(), 202))
    failed = documents.run("failed", failure={"code": "tool_failed", "message": "Read failed"})
    fake.on("GET", f"{RUN}/wait", Reply({"run": failed, "finished": True}))
    client = make_client(fake.url)
    with pytest.raises(RunNotCompletedError, match=r"\[tool_failed\] Read failed") as caught:
        client.run_tools("s1", [{"tool": "Read"}])
    assert caught.value.run.state == "failed"
    assert client.run_tools("s1", [{"tool": "Read"}], check=False).failure == caught.value.run.failure


def test_wait_ends_after_max_wait(fake: FakeServer, make_client: ClientFactory) -> None:
    fake.on("GET", f"{RUN}/wait", Reply({"run": documents.run("parked"), "finished": False}))
    with pytest.raises(WaitTimeoutError, match="run_1 is still parked") as caught:
        make_client(fake.url).wait("run_1", max_wait=0.2)
    assert isinstance(caught.value, TimeoutError)
    # The client backs off if the server does not support long polls.
    assert len(fake.of("GET", f"{RUN}/wait")) <= 8


def test_wait_for_an_unknown_run_raises_not_found(fake: FakeServer, make_client: ClientFactory) -> None:
    fake.on("GET", f"{RUN}/wait", refusal(404, "run_not_found"))
    with pytest.raises(NotFoundError, match="run_not_found"):
        make_client(fake.url).wait("run_1")


def test_decision_contains_the_hash_of_the_call(fake: FakeServer, make_client: ClientFactory) -> None:
    about = {"session_id": "ses_1", "run_id": "run_1", "permission": "bash", "patterns": ["rm *"], "always": []}
    pending = {"id": "apr_1", "state": "pending", "call_hash": "abc", "approvers": [], **about}
    fake.on("GET", "/api/v1/approvals", Reply({"items": [pending]}))
    fake.on("POST", "/api/v1/approvals/apr_1/decision", Reply({**pending, "state": "approved"}))
    client = make_client(fake.url)
    (approval,) = client.list_approvals(state="pending")
    assert client.decide(approval, approve=True, always=True).state == "approved"
    client.decide("apr_1", approve=False, message="no")
    first, second = fake.of("POST", "/api/v1/approvals/apr_1/decision")
    assert first.body == {"approve": True, "always": True, "call_hash": "abc"}
    assert second.body == {"approve": False, "message": "no"}


@pytest.mark.parametrize("endpoint", ["localhost:7777", "ftp://x", "http://", "http://h/?q"])
def test_invalid_endpoints_are_rejected(make_client: ClientFactory, endpoint: str) -> None:
    with pytest.raises(ValueError, match="endpoint: expected a URL such as"):
        make_client(endpoint)


def test_api_key_is_not_in_repr_or_errors(make_client: ClientFactory) -> None:
    with pytest.raises(ValueError, match="api_key: expected visible ASCII") as caught:
        make_client("http://127.0.0.1:1", "secret\nvalue")
    assert "secret" not in str(caught.value)
    assert "rmd_secret" not in repr(make_client("http://127.0.0.1:1", "rmd_secret"))


def test_endpoint_and_key_come_from_the_environment(
    fake: FakeServer, make_client: ClientFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.on("GET", RUN, Reply(documents.run()))
    monkeypatch.setenv("REMUDA_ENDPOINT", fake.url)
    monkeypatch.setenv("REMUDA_API_KEY", "rmd_env")
    make_client().get_run("run_1")
    assert fake.of("GET", RUN)[0].headers["authorization"] == "Bearer rmd_env"
    monkeypatch.setenv("REMUDA_API_KEY", "")
    make_client().get_run("run_1")
    assert "authorization" not in fake.of("GET", RUN)[1].headers


def test_unknown_options_raise_type_errors(make_client: ClientFactory) -> None:
    with pytest.raises(TypeError, match="if_bussy"):
        make_client("http://127.0.0.1:1").send("s1", "hi", if_bussy="reject")  # type: ignore[call-arg]
