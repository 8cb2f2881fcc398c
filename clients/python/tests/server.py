"""Starts the server binary given by REMUDA_BIN."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Optional

import httpx
import pytest

TEAM = Path(__file__).resolve().parents[3] / "examples" / "team"


def binary() -> str:
    """The binary to test. End-to-end tests are skipped without one."""
    path = os.environ.get("REMUDA_BIN")
    if not path:
        pytest.skip("REMUDA_BIN names no server binary")
    found = shutil.which(path)
    assert found, f"REMUDA_BIN: {path} is not a program"
    return os.path.abspath(found)


class Server:
    """A server with its own data directory, which can be killed and restarted."""

    def __init__(self, directory: Path, settings: Optional[Mapping[str, str]] = None) -> None:
        self.directory = directory
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REMUDA_")}
        self._environment = {**kept, "REMUDA_DATA_DIR": str(directory / "data"), **(settings or {})}
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = directory / "server.log"
        self._process: Optional[subprocess.Popen[bytes]] = None

    def start(self) -> None:
        command = [binary(), "dev", "--listen", f"127.0.0.1:{self.port}"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self._environment, cwd=self.directory
            )
        wait_for(self._is_ready, f"the server at {self.url} to be ready; see {self.log}")

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the server ended: {self.log.read_text()}"
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/readyz", timeout=2).status_code == 200
        return False

    def command(self, *arguments: str) -> str:
        """Runs a command of the same binary with the same settings and returns its output."""
        done = subprocess.run(
            [binary(), *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=30,
            cwd=self.directory,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def kill(self) -> None:
        """Kills the server with SIGKILL."""
        self.stop(signal.SIGKILL)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._process = None


@contextlib.contextmanager
def start_server(directory: Path, settings: Optional[Mapping[str, str]] = None) -> Iterator[Server]:
    binary()
    server = Server(directory, settings)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def team_workspace(directory: Path) -> Path:
    """A workspace whose agents use a scripted model: they need no API key and are deterministic."""
    shutil.copytree(TEAM, directory / "team")
    return directory / "team"


def wait_for(condition: object, what: str, seconds: float = 30.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
