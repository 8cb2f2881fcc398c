"""What both clients are made of: options, headers, and the decision to try again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Optional
from urllib.parse import urlsplit

import httpx

from ._call import Call, Duration, read_error, seconds
from ._retry import Retry
from ._version import VERSION
from .errors import ConnectionFailedError, ProtocolError, RemudaError

DEFAULT_ENDPOINT = "http://127.0.0.1:7777"
#: One request for the end of a run. Shorter than what proxies allow a silent request.
ONE_WAIT = 30.0
#: A server that answers "not yet" faster than this does not really wait.
SHORT_WAIT = 0.5


class Core:
    """The part of a client that does no input and output."""

    def __init__(
        self,
        endpoint: Optional[str],
        api_key: Optional[str],
        *,
        stream_endpoint: Optional[str],
        connect_timeout: Duration,
        request_timeout: Duration,
        idle_timeout: Duration,
        give_up_after: Duration,
        max_connections: int,
    ) -> None:
        # An empty variable in the environment means that it is not set.
        self.endpoint = _address("endpoint", endpoint or os.environ.get("REMUDA_ENDPOINT") or DEFAULT_ENDPOINT)
        stream_endpoint = stream_endpoint or os.environ.get("REMUDA_STREAM_ENDPOINT") or None
        #: Where streams are served; asked of the server when it is not known.
        self.stream_endpoint = stream_endpoint and _address("stream_endpoint", stream_endpoint)
        key = os.environ.get("REMUDA_API_KEY") if api_key is None else api_key
        self._key = _checked_key(key) if key else None
        self._connect_timeout = seconds(connect_timeout)
        self._request_timeout = seconds(request_timeout)
        self._idle_timeout = seconds(idle_timeout)
        self.give_up_after = seconds(give_up_after)
        self.limits = httpx.Limits(max_connections=max_connections, max_keepalive_connections=min(20, max_connections))
        # Whether a server has answered at all. One that has not is a wrong address, not a restart.
        self._reached = False

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        headers = {"accept": "application/json", "user-agent": f"remuda-python/{VERSION}"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        return headers

    def request_arguments(self, call: Call[Any]) -> dict[str, Any]:
        """The arguments of httpx for one call."""
        return {
            "method": call.method,
            "url": self.endpoint + call.path,
            "params": call.params,
            "json": call.body,
            "headers": call.headers,
            "timeout": self._timeout(read=self._request_timeout + call.patience),
        }

    def stream_arguments(self, endpoint: str, where: str, params: Mapping[str, str]) -> dict[str, Any]:
        """The arguments of httpx for a stream of events."""
        return {
            "method": "GET",
            "url": endpoint + where,
            "params": params,
            # Compressed streams tend to be held back by whoever compresses them.
            "headers": {"accept": "text/event-stream", "accept-encoding": "identity", "cache-control": "no-store"},
            # Servers send comments while nothing happens: silence means that nobody is there.
            "timeout": self._timeout(read=self._idle_timeout),
        }

    def _timeout(self, *, read: float) -> httpx.Timeout:
        return httpx.Timeout(
            read, connect=self._connect_timeout, write=self._request_timeout, pool=self._request_timeout
        )

    def retry(self) -> Retry:
        """A new count of tries."""
        return Retry(self.give_up_after)

    def answered(self) -> None:
        """A server has answered."""
        self._reached = True

    def worth_waiting(self, error: RemudaError) -> None:
        """Raises the error if it does not look like a server that comes back."""
        if isinstance(error, ConnectionFailedError) and not self._reached:
            raise error

    def allowed_stream_endpoint(self, named: Optional[str]) -> str:
        """Where to read streams, given what the server says of itself."""
        if not named:
            return self.endpoint
        address = _address("stream_endpoint", named)
        # The key was meant for an encrypted connection: the answer of a server must not bring it onto an open one.
        if self._key and self.endpoint.startswith("https:") and not address.startswith("https:"):
            raise ProtocolError("the server names an unencrypted stream endpoint; set stream_endpoint to allow it")
        return address


def not_waiting() -> ConnectionFailedError:
    """A server on its way down answers a long wait at once: slow down instead of asking in a tight loop."""
    return ConnectionFailedError("the server does not wait for the run")


def check_stream(response: httpx.Response) -> None:
    """Raises when the answer is neither a stream of events nor 204, which says that there are none to come."""
    if not response.is_success:
        raise read_error(response)
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if response.status_code != 204 and kind != "text/event-stream":
        raise ProtocolError(f"{response.request.url.path}: expected a stream of events, found {kind or 'nothing'}")


def _address(field: str, text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{field}: expected a URL such as {DEFAULT_ENDPOINT}, found {text!r}")
    return text.rstrip("/")


def _checked_key(key: str) -> str:
    # The value is not in the message: it is a secret, even if a broken one.
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ValueError("api_key: expected visible ASCII characters")
    return key
