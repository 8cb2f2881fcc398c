"""The common part of both clients: options, headers and retry decisions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Optional
from urllib.parse import urlsplit

import httpx

from ._call import Call, Duration, Texts, read_error, seconds
from ._retry import Retry
from ._version import VERSION
from .errors import ConnectionFailedError, ProtocolError, RemudaError

DEFAULT_ENDPOINT = "http://127.0.0.1:7777"
#: Seconds of one long poll for the end of a run. Shorter than the idle timeout of common proxies.
LONG_POLL_SECONDS = 30.0
#: A server that reports an unfinished run faster than this does not support long polls at the moment.
MIN_POLL_SECONDS = 0.5


class Core:
    """The part of a client without I/O."""

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
        # An empty environment variable counts as not set.
        self.endpoint = _address("endpoint", endpoint or os.environ.get("REMUDA_ENDPOINT") or DEFAULT_ENDPOINT)
        stream_endpoint = stream_endpoint or os.environ.get("REMUDA_STREAM_ENDPOINT") or None
        #: The address of the stream service; requested from the server if ``None``.
        self.stream_endpoint = stream_endpoint and _address("stream_endpoint", stream_endpoint)
        key = os.environ.get("REMUDA_API_KEY") if api_key is None else api_key
        self._key = _checked_key(key) if key else None
        self._connect_timeout = seconds(connect_timeout)
        self._request_timeout = seconds(request_timeout)
        self._idle_timeout = seconds(idle_timeout)
        self.give_up_after = seconds(give_up_after)
        self.limits = httpx.Limits(max_connections=max_connections, max_keepalive_connections=min(20, max_connections))
        # Whether a server has answered before. If not, the address is probably wrong, so retries are useless.
        self._reached = False

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request."""
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
            "timeout": self._timeout(read=self._request_timeout + call.extra_timeout),
        }

    def stream_arguments(self, endpoint: str, where: str, params: Mapping[str, Texts]) -> dict[str, Any]:
        """The arguments of httpx for an event stream."""
        return {
            "method": "GET",
            "url": endpoint + where,
            "params": params,
            # Proxies tend to buffer compressed streams.
            "headers": {"accept": "text/event-stream", "accept-encoding": "identity", "cache-control": "no-store"},
            # Servers send keepalive comments, so a silent connection is dead.
            "timeout": self._timeout(read=self._idle_timeout),
        }

    def _timeout(self, *, read: float) -> httpx.Timeout:
        return httpx.Timeout(
            read, connect=self._connect_timeout, write=self._request_timeout, pool=self._request_timeout
        )

    def retry(self) -> Retry:
        """A new retry state."""
        return Retry(self.give_up_after)

    def answered(self) -> None:
        """Records that a server has answered."""
        self._reached = True

    def raise_if_never_reached(self, error: RemudaError) -> None:
        """Raises the error if no server has ever answered, since a retry would not help."""
        if isinstance(error, ConnectionFailedError) and not self._reached:
            raise error

    def allowed_stream_endpoint(self, named: Optional[str]) -> str:
        """The address for streams, given the stream endpoint that the server announces."""
        if not named:
            return self.endpoint
        address = _address("stream_endpoint", named)
        # A server must not redirect the key from an encrypted to an unencrypted connection.
        if self._key and self.endpoint.startswith("https:") and not address.startswith("https:"):
            raise ProtocolError("the server names an unencrypted stream endpoint; set stream_endpoint to allow it")
        return address


def long_poll_ignored() -> ConnectionFailedError:
    """The error for a server that answers a long poll immediately, as during shutdown. It makes the client back off."""
    return ConnectionFailedError("the server did not wait for the end of the run")


def check_stream(response: httpx.Response) -> None:
    """Raises if the response is neither an event stream nor 204, which means that no more events will follow."""
    if not response.is_success:
        raise read_error(response)
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if response.status_code != 204 and kind != "text/event-stream":
        raise ProtocolError(f"{response.request.url.path}: expected an event stream, found {kind or 'nothing'}")


def _address(field: str, text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{field}: expected a URL such as {DEFAULT_ENDPOINT}, found {text!r}")
    return text.rstrip("/")


def _checked_key(key: str) -> str:
    # Do not put the secret into the message.
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ValueError("api_key: expected visible ASCII characters")
    return key
