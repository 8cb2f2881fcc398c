"""Both clients against a real server."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from conftest import ClientFactory
from fake_server import FakeServer, Reply
from server import Server, start_server, team_workspace, wait_for

from remuda import (
    Client,
    ConflictError,
    Event,
    InvalidRequestError,
    LiveText,
    NotFoundError,
    PermissionDeniedError,
    PermissionRule,
    Permissions,
    PreconditionFailedError,
    RunNotCompletedError,
    ToolCall,
    UnauthenticatedError,
    WaitTimeoutError,
    webhooks,
)
from remuda.sse import Parser

NOOP = ToolCall("noop")
_numbers = itertools.count(1)


def bash(command: str) -> ToolCall:
    return ToolCall("Bash", {"command": command})


@pytest.fixture
def name() -> str:
    """A unique session name."""
    return f"test-{next(_numbers)}-{time.time_ns()}"


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server that the test may kill."""
    with start_server(tmp_path) as running:
        yield running


def test_run_is_submitted_followed_and_read(server: Server, make_client: ClientFactory, name: str) -> None:
    client = make_client(server.url)
    submitted = client.call_tools(name, [bash("echo hi"), NOOP], create_session=True)
    assert (submitted.status, submitted.deduplicated) == ("queued", False)
    events = list(client.follow(submitted))
    assert events[0].type == "run.queued"
    assert events[0].cursor == submitted.first_cursor
    assert events[-1].type == "run.completed"
    assert [event.terminal_state for event in events].count("completed") == 1
    cursors = [event.cursor for event in events if event.cursor is not None]
    assert cursors == list(range(cursors[0], cursors[0] + len(events)))

    run = client.wait(submitted)
    assert (run.state, run.finished, run.completed) == ("completed", True, True)
    assert run.finished_at is not None
    assert run.started_at is not None
    assert run.finished_at >= run.started_at
    assert run.outcomes[0].output["exit_code"] == 0
    assert [step.call.tool for step in client.list_steps(run) if step.call] == ["Bash", "noop"]
    assert client.explain(run).reason == "finished"
    assert client.get_session(name).last_cursor == cursors[-1]


def test_same_idempotency_key_returns_the_same_run(server: Server, make_client: ClientFactory, name: str) -> None:
    client = make_client(server.url)
    first = client.call_tools(name, [NOOP], create_session=True, idempotency_key=name)
    again = client.call_tools(name, [NOOP], create_session=True, idempotency_key=name)
    assert (again.run_id, again.deduplicated) == (first.run_id, True)
    with pytest.raises(ConflictError, match="idempotency_conflict"):
        client.call_tools(name, [NOOP, NOOP], create_session=True, idempotency_key=name)


def test_streams_resume_with_last_event_id(server: Server, name: str) -> None:
    """What clients without this package rely on: Last-Event-ID, ids, and an explicit end."""
    with Client(server.url) as client:
        run = client.run_tools(name, [NOOP], create_session=True)
        everything = list(client.follow(run))
    url = f"{server.url}/api/v1/runs/{run.id}/events"
    for seen, headers, query in ((0, {}, ""), (1, {"last-event-id": "1"}, ""), (2, {}, "?cursor=2")):
        with httpx.stream("GET", url + query, headers=headers, timeout=10) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            assert (
                "no-transform" in response.headers["cache-control"] or "no-cache" in response.headers["cache-control"]
            )
            parser = Parser()
            messages = [message for chunk in response.iter_bytes() for message in parser.feed(chunk)]
        assert messages[-1].event == "end"
        assert "reason" in json.loads(messages[-1].data)
        expected = [event for event in everything if (event.cursor or 0) > seen]
        assert [message.id for message in messages[:-1]] == [str(event.cursor) for event in expected]
        assert [json.loads(message.data) for message in messages[:-1]] == [event.raw for event in expected]
        assert [message.event for message in messages[:-1]] == [event.type for event in expected]


def test_long_polls_and_streams_return_the_same_events(server: Server, make_client: ClientFactory, name: str) -> None:
    client = make_client(server.url)
    client.run_tools(name, [NOOP], create_session=True)
    last = client.get_session(name).last_cursor
    streamed: list[Event] = []
    with client.follow(name) as stream:
        while stream.cursor < last:
            streamed.append(next(stream))
    polled: list[Event] = []
    cursor = 0
    while cursor < last:
        page = client.poll_events(name, after=cursor, max_wait=5)
        polled += page.items
        assert page.next_cursor > cursor
        cursor = page.next_cursor
    assert polled == streamed
    started = time.monotonic()
    empty = client.poll_events(name, after=last, max_wait=0.3)
    assert (len(empty), empty.next_cursor) == (0, last)
    assert time.monotonic() - started >= 0.25


def test_types_filter_events(server: Server, make_client: ClientFactory, name: str) -> None:
    client = make_client(server.url)
    run = client.run_tools(name, [NOOP], create_session=True)
    assert [event.type for event in client.follow(run, types=["tool.*", "run.completed"])][-1] == "run.completed"
    assert [event.type for event in client.follow(run, types=["run.queued"])] == ["run.queued"]
    assert list(client.follow(run, after=client.get_session(name).last_cursor)) == []


def test_cursor_beyond_the_last_event_is_rejected(server: Server, make_client: ClientFactory, name: str) -> None:
    client = make_client(server.url)
    client.create_session(name)
    with pytest.raises(InvalidRequestError, match="cursor_out_of_range") as caught:
        next(client.follow(name, after=1_000_000))
    assert caught.value.request_id


def test_reconnect_after_every_event_loses_nothing(server: Server, make_client: ClientFactory, name: str) -> None:
    client = make_client(server.url)
    client.create_session(name)
    with Client(server.url) as other:
        submits = threading.Thread(target=lambda: [other.call_tools(name, [NOOP]) for _ in range(25)])
        submits.start()
        seen = 0
        finished = 0
        while finished < 25:
            with client.follow(name, after=seen) as events:
                event = next(events)
            assert event.cursor == seen + 1
            seen = event.cursor
            finished += event.terminal_state is not None
        submits.join()


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_server_restart_loses_no_event_and_no_run(own_server: Server, make_client: ClientFactory, how: str) -> None:
    """After a kill or a stop with queued runs, readers continue, every event is received once, every run ends."""
    client = make_client(own_server.url)
    client.create_session("s")
    runs = [client.call_tools("s", [bash("sleep 0.2")]) for _ in range(6)]
    last = runs[-1].run_id

    def restart() -> None:
        getattr(own_server, how)()
        own_server.start()

    restarting = threading.Thread(target=restart)
    cursors: list[int] = []
    ended: list[str] = []
    with client.follow("s") as events:
        for event in events:
            assert event.cursor is not None
            cursors.append(event.cursor)
            if event.terminal_state:
                assert event.run_id is not None
                ended.append(event.run_id)
                if len(ended) == 2:
                    restarting.start()
            if ended and ended[-1] == last:
                break
    restarting.join()
    assert cursors == list(range(1, len(cursors) + 1))
    assert ended == [run.run_id for run in runs]
    assert client.wait(last).finished


def test_wait_continues_across_a_restart(own_server: Server, make_client: ClientFactory) -> None:
    client = make_client(own_server.url)
    submitted = client.call_tools("s", [bash("sleep 1"), NOOP], create_session=True)
    with Client(own_server.url) as other:
        wait_for(lambda: other.get_run(submitted).state == "running", "the run to start")

    def restart() -> None:
        own_server.kill()
        own_server.start()

    restarting = threading.Thread(target=restart)
    restarting.start()
    run = client.wait(submitted)
    restarting.join()
    assert run.finished


def test_cancel_ends_a_run_and_the_next_one_starts(server: Server, make_client: ClientFactory, name: str) -> None:
    client = make_client(server.url)
    running = client.call_tools(name, [bash("sleep 60")], create_session=True)
    queued = client.call_tools(name, [NOOP])
    with pytest.raises(WaitTimeoutError) as caught:
        client.wait(queued, max_wait=0.2)
    assert caught.value.run.state == "queued"
    assert client.explain(queued).reason == "behind_other_runs"
    assert [run.id for run in client.list_queue(name)] == [running.run_id, queued.run_id]
    client.cancel(running, reason="enough")
    run = client.wait(running, max_wait=20)
    assert run.state == "cancelled"
    assert run.cancel is not None
    assert run.cancel.reason == "enough"
    assert client.wait(queued, max_wait=20).state == "completed"
    assert client.cancel(queued).state == "completed"


def test_failed_runs_have_failure_codes(server: Server, make_client: ClientFactory, name: str) -> None:
    client = make_client(server.url)
    with pytest.raises(RunNotCompletedError) as caught:
        client.run_tools(name, [ToolCall("Read", {"file_path": "nope"})], create_session=True)
    assert caught.value.run.state == "failed"
    assert caught.value.code == "tool_failed"
    with pytest.raises(NotFoundError) as missing:
        client.send(f"{name}-other", "hi")
    assert (missing.value.status, missing.value.code) == (404, "session_not_found")
    assert missing.value.request_id


def test_session_update_checks_the_etag(server: Server, make_client: ClientFactory, name: str) -> None:
    client = make_client(server.url)
    created = client.create_session(name, title="one")
    with pytest.raises(ConflictError, match="already_exists"):
        client.create_session(name)
    seen = client.get_session(created)
    assert (seen.title, seen.etag is not None) == ("one", True)
    changed = client.update_session(seen, title="two", if_match=seen.etag)
    assert changed.title == "two"
    with pytest.raises(PreconditionFailedError):
        client.update_session(seen, title="three", if_match=seen.etag)
    # Runs do not change the etag.
    client.run_tools(name, [NOOP])
    assert client.update_session(changed, title="four", if_match=changed.etag).title == "four"
    assert client.close_session(name).status == "closed"
    with pytest.raises(ConflictError, match="session_closed"):
        client.call_tools(name, [NOOP])


def test_deleting_a_session_ends_its_streams(server: Server, make_client: ClientFactory, name: str) -> None:
    client = make_client(server.url)
    session = client.create_session(name)
    client.call_tools(name, [bash("sleep 60")])
    with pytest.raises(ConflictError):
        client.delete_session(name)
    with client.follow(session) as events:
        assert next(events).type == "session.created"
        client.delete_session(name, cancel_runs=True)
        with pytest.raises(NotFoundError, match="session_not_found"):
            list(events)
    with pytest.raises(NotFoundError, match="session_not_found"):
        client.get_session(name)


def test_lists_are_paged(server: Server, make_client: ClientFactory, name: str) -> None:
    client = make_client(server.url)
    parent = client.create_session(name)
    children = [client.create_session(f"{name}-{number}", parent=parent).id for number in range(5)]
    assert [child.id for child in client.each(client.list_children(name, page_size=2))] == children
    runs = [client.run_tools(name, [NOOP]).id for _ in range(5)]
    assert [run.id for run in client.each(client.list_runs(name, page_size=2))] == runs[::-1]
    assert [run.id for run in client.list_runs(name, states=["queued", "running"])] == []


def test_runs_are_found_by_all_their_labels(server: Server, make_client: ClientFactory, name: str) -> None:
    client = make_client(server.url)
    labels = {"team": name, "env": "a, b=c&d"}
    core = client.call_tools(name, [NOOP], create_session=True, labels=labels)
    docs = client.call_tools(name, [NOOP], labels={"team": name})
    assert client.get_run(core).labels == labels
    assert [run.id for run in client.list_runs(labels={"team": name})] == [docs.run_id, core.run_id]
    assert [run.id for run in client.list_runs(labels=labels)] == [core.run_id]
    with pytest.raises(InvalidRequestError) as caught:
        client.call_tools(name, [NOOP], labels={"a b": "c"})
    assert (caught.value.code, caught.value.field) == ("invalid_argument", "labels")


def test_call_that_needs_approval_waits_for_the_decision(
    server: Server, make_client: ClientFactory, name: str, tmp_path: Path
) -> None:
    client = make_client(server.url)
    client.create_workspace(name, str(team_workspace(tmp_path)))
    asking = Permissions(rules=[PermissionRule("bash", "ask", "sh *")])
    client.create_session(name, workspace=name, permissions=asking)
    submitted = client.send(name, "count.sh should be able to count lines, with -l.")
    with client.follow(submitted) as events:
        requested = next(event for event in events if event.type == "approval.requested")
        (approval,) = client.list_approvals(state="pending", run=submitted)
        assert approval.id == requested.data["approval"]
        assert approval.call is not None
        assert approval.call.arguments["command"] == "sh test.sh"
        assert client.decide(approval, approve=True, always=True).state == "approved"
        assert list(events)[-1].type == "run.completed"
    with pytest.raises(ConflictError, match="approval_decided"):
        client.decide(approval, approve=False)
    run = client.get_run(submitted)
    assert run.answer is not None
    assert run.answer.startswith("Done")
    messages = list(client.each(client.list_messages(name, page_size=5)))
    assert messages[0].text == "count.sh should be able to count lines, with -l."
    assert messages[-1].text == run.answer
    models = [step.model_call for step in client.list_steps(run) if step.model_call]
    assert models[0].system_hash is not None
    assert "count.sh" in client.get_content(models[0].system_hash)


def test_message_deltas_are_streamed(server: Server, make_client: ClientFactory, name: str, tmp_path: Path) -> None:
    client = make_client(server.url)
    client.create_workspace(name, str(team_workspace(tmp_path)))
    client.create_session(name, workspace=name)
    live = LiveText()
    pieces: dict[str, str] = {}
    whole: dict[str, str] = {}
    submitted = client.send(name, "count.sh should be able to count lines, with -l.")
    for event in client.follow(submitted, deltas=True):
        piece = live.add(event)
        if piece is not None and piece.kind == "text":
            pieces[piece.id] = ("" if piece.anew else pieces.get(piece.id, "")) + piece.text
            assert pieces[piece.id] == live.text(piece.id)
        elif event.type == "message.completed":
            texts = [part["text"] for part in event.data["parts"] if part.get("type") == "text"]
            whole[event.data["message"]] = "".join(texts)
    assert pieces
    for message, text in pieces.items():
        assert text == whole[message]


def test_command_output_is_streamed_while_it_runs(
    server: Server, make_client: ClientFactory, name: str, tmp_path: Path
) -> None:
    client = make_client(server.url)
    gate = tmp_path / "go on"
    command = f"echo one; while [ ! -e '{gate}' ]; do sleep 0.05; done; echo two"
    submitted = client.call_tools(name, [bash(command)], create_session=True, timeout=30)
    live = LiveText()
    printed = ""
    with client.follow(submitted, deltas=True) as events:
        for event in events:
            piece = live.add(event)
            if piece is not None and piece.kind == "stdout":
                printed += piece.text
                if printed == "one\n":
                    # The command continues only after its first output was received.
                    gate.touch()
    assert printed in {"one\n", "one\ntwo\n"}
    assert client.get_run(submitted).outcomes[0].output["stdout"] == "one\ntwo\n"


def test_workers_pools_and_server_info_are_listed(server: Server, make_client: ClientFactory) -> None:
    client = make_client(server.url)
    info = client.server_info()
    assert info.mode == "embedded"
    assert "Bash" in info.tools
    assert [worker.state for worker in client.list_workers()] == ["active"]
    assert [pool.pool for pool in client.list_pools()] == ["default"]


def test_keys_limit_scopes_and_tenants(tmp_path: Path, make_client: ClientFactory) -> None:
    with start_server(tmp_path, {"REMUDA_SERVER__REQUIRE_KEYS": "always"}) as server:
        with pytest.raises(UnauthenticatedError) as caught:
            make_client(server.url).list_sessions()
        assert caught.value.status == 401

        acme = make_client(server.url, server.command("keys", "create", "--tenant", "acme", "--name", "worker"))
        globex = make_client(server.url, server.command("keys", "create", "--tenant", "globex"))
        run = acme.run_tools("s", [NOOP], create_session=True)
        assert [event.terminal_state for event in acme.follow(run)][-1] == "completed"
        # Objects of other tenants do not exist.
        for call in (globex.get_run, globex.explain, lambda run: next(globex.follow(run))):
            with pytest.raises(NotFoundError, match="run_not_found"):
                call(run.id)
        with pytest.raises(NotFoundError, match="session_not_found"):
            next(globex.follow("s"))
        with pytest.raises(PermissionDeniedError, match="permission_denied"):
            acme.list_workers()
        # The fleet and the directories of workspaces belong to the operator, who opens no session.
        operator = make_client(server.url, server.command("keys", "create", "--scope", "operator"))
        assert [worker.state for worker in operator.list_workers()] == ["active"]
        with pytest.raises(PermissionDeniedError, match="permission_denied"):
            operator.list_sessions()
        with pytest.raises(PermissionDeniedError, match="workspace_not_allowed"):
            operator.create_workspace("etc", "/etc", tenant="acme")
        with pytest.raises(PermissionDeniedError, match="permission_denied"):
            acme.create_workspace("mine", str(tmp_path), tenant="acme")


def test_revoked_key_ends_its_streams(tmp_path: Path, make_client: ClientFactory) -> None:
    with start_server(tmp_path, {"REMUDA_SERVER__REQUIRE_KEYS": "always"}) as server:
        secret = server.command("keys", "create", "--tenant", "acme")
        key = json.loads(server.command("keys", "list", "--tenant", "acme", "--json"))
        client = make_client(server.url, secret, give_up_after=5)
        client.create_session("s")
        # Without the revocation the stream would never end.
        too_long = threading.Timer(30, server.kill)
        too_long.start()
        with client.follow("s") as events:
            assert next(events).type == "session.created"
            server.command("keys", "revoke", "--tenant", "acme", key["id"])
            with pytest.raises(UnauthenticatedError):
                next(events)
        too_long.cancel()


def test_webhook_is_created_delivered_rotated_and_deleted(tmp_path: Path, make_client: ClientFactory) -> None:
    receiver = FakeServer().on("POST", "/hook", Reply(status=204))
    with contextlib.ExitStack() as stack:
        stack.enter_context(receiver.running())
        allowed = {"REMUDA_WEBHOOKS__ALLOWED": receiver.url.removeprefix("http://")}
        client = make_client(stack.enter_context(start_server(tmp_path, allowed)).url)
        session = client.create_session("s")
        hook = client.create_webhook(session, f"{receiver.url}/hook", types=["run.*"])
        assert hook.secret is not None
        assert hook.secret not in repr(hook)
        assert client.get_webhook(hook).secret is None
        assert client.try_webhook(hook).accepted

        run = client.run_tools("s", [NOOP])
        published = [event.raw for event in client.follow(run, types=["run.*"])]

        def received() -> list[dict[str, object]]:
            # Every delivery is signed, and may be repeated.
            events = [webhooks.verify(one.headers, one.raw, str(hook.secret)) for one in receiver.requests]
            return [event for number, event in enumerate(events) if "cursor" in event and event not in events[:number]]

        wait_for(lambda: [event for event in received() if event.get("run_id")] == published, "the run's events", 20)
        changed = client.rotate_webhook_secret(hook)
        assert changed.secret not in {None, hook.secret}
        assert [one.id for one in client.list_webhooks("s")] == [hook.id]
        assert list(client.list_dead_letters(hook)) == []
        assert client.redeliver(hook) == 0
        assert client.enable_webhook(hook, enabled=False).state == "disabled"
        client.delete_webhook(hook)
        with pytest.raises(NotFoundError, match="webhook_not_found"):
            client.get_webhook(hook)
