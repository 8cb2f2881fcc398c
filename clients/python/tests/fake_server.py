"""A local HTTP server with scripted responses."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Optional, Union
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    raw: bytes = b""


@dataclass(frozen=True)
class Reply:
    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stream:
    """An event stream. ``cut`` resets the connection at its end, as a killed server does."""

    chunks: Iterable[bytes]
    cut: bool = False


class Hangup:
    """No response: the connection is reset after the request was read."""


Answer = Union[Reply, Stream, Hangup]
Handler = Callable[[Request], Answer]


def refusal(status: int, code: str, message: str = "no", **details: object) -> Reply:
    error = {"code": code, "message": message, "details": details, "request_id": "req_1"}
    return Reply({"error": error}, status)


class FakeServer:
    """Returns the scripted replies of each path in order, then the last one forever."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._answers: dict[tuple[str, str], deque[Union[Answer, Handler]]] = defaultdict(deque)
        self._lock = threading.Lock()
        self._server: Optional[ThreadingHTTPServer] = None
        self.url = ""

    def on(self, method: str, path: str, *answers: Union[Answer, Handler]) -> FakeServer:
        self._answers[method, path].extend(answers)
        return self

    def of(self, method: str, path: str) -> list[Request]:
        return [request for request in self.requests if (request.method, request.path) == (method, path)]

    def answer(self, request: Request) -> Answer:
        with self._lock:
            self.requests.append(request)
            answers = self._answers.get((request.method, request.path))
            if not answers:
                return refusal(404, "not_found", f"{request.method} {request.path} is not in this test")
            answer = answers[0] if len(answers) == 1 else answers.popleft()
        return answer(request) if callable(answer) else answer

    @contextmanager
    def running(self, port: int = 0) -> Iterator[FakeServer]:
        server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _handler(fake: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def serve(self) -> None:
            url = urlsplit(self.path)
            length = int(self.headers.get("content-length", 0))
            raw = self.rfile.read(length)
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = json.loads(raw) if raw else None
            answer = fake.answer(Request(self.command, url.path, dict(parse_qsl(url.query)), headers, body, raw))
            try:
                if isinstance(answer, Reply):
                    self.reply(answer)
                elif isinstance(answer, Stream):
                    self.stream(answer)
                else:
                    self.reset()
            except OSError:
                self.close_connection = True

        def reply(self, reply: Reply) -> None:
            raw = b"" if reply.body is None else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in {"content-type": "application/json", **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def stream(self, stream: Stream) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for chunk in stream.chunks:
                if chunk:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                    self.wfile.flush()
            if stream.cut:
                self.reset()
            else:
                self.wfile.write(b"0\r\n\r\n")

        def reset(self) -> None:
            self.close_connection = True
            # Closing with a zero linger time sends a reset, as the kernel does for a killed process with unread data.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.shutdown(socket.SHUT_WR)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = serve

    return Handler
