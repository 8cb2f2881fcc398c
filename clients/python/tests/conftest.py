from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable, cast

import pytest
from blocking import BlockingClient
from fake_server import FakeServer, Reply
from server import Server, start_server

from remuda import Client

ClientFactory = Callable[..., Client]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes environment variables that would change the tests."""
    for name in ("REMUDA_ENDPOINT", "REMUDA_STREAM_ENDPOINT", "REMUDA_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    server = FakeServer()
    server.on("GET", "/api/v1", Reply({"version": "0", "mode": "embedded", "keys_required": False, "tools": []}))
    with server.running():
        yield server


@pytest.fixture(params=[Client, BlockingClient], ids=["sync", "async"])
def make_client(request: pytest.FixtureRequest) -> Iterator[ClientFactory]:
    """Creates clients of both kinds and closes them."""
    made: list[Client] = []

    def make(*args: Any, **kwargs: Any) -> Client:
        client = cast(Client, request.param(*args, **kwargs))
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real server, shared by tests that do not restart it."""
    with start_server(tmp_path_factory.mktemp("remuda")) as running:
        yield running
