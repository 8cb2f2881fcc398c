"""A request to the server and how to read its response, without I/O."""

from __future__ import annotations

import email.utils
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, Optional, TypeVar, Union
from urllib.parse import quote

import httpx

from ._decode import decode
from .errors import ApiError, ConnectionFailedError, ProtocolError, from_answer

T = TypeVar("T")
#: Seconds, or a ``timedelta``.
Duration = Union[float, int, timedelta]
#: A parameter of the query string; the parameter of a list is repeated.
Texts = Union[str, list[str]]

PREFIX = "/api/v1"


@dataclass(frozen=True)
class Response:
    """A successful response."""

    body: Any
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request and how to read its response."""

    method: str
    path: str
    read: Callable[[Response], T]
    params: Mapping[str, Texts] = field(default_factory=dict)
    body: Optional[Mapping[str, Any]] = None
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Whether the request is idempotent, so that it may be retried.
    repeatable: bool = False
    #: Seconds that the server may wait on purpose, in addition to the usual request timeout.
    extra_timeout: float = 0.0


def as_type(kind: type[T]) -> Callable[[Response], T]:
    """Decodes the whole body as a ``kind``."""
    return lambda response: decode(kind, response.body)


def nothing(_: Response) -> None:
    """Reads a response without a body."""


def path(*parts: str) -> str:
    """A path below the API's prefix. Every part is quoted as one segment."""
    for part in parts:
        if part in {"", ".", ".."}:
            raise ValueError(f"expected an id or a name, found {part!r}")
    return "/".join([PREFIX, *(quote(part, safe="") for part in parts)])


def given(**fields: object) -> dict[str, Any]:
    """The fields that are not ``None``."""
    return {name: value for name, value in fields.items() if value is not None}


def query(**fields: object) -> dict[str, Texts]:
    """The same for the query string. The parameter of a list is repeated."""
    texts: dict[str, Texts] = {}
    for name, value in fields.items():
        if value is None:
            continue
        if isinstance(value, list):
            texts[name] = value
        else:
            texts[name] = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return texts


def joined(field: str, names: Optional[Iterable[str]]) -> Optional[str]:
    """A list of names for the query string."""
    if names is None:
        return None
    if isinstance(names, str):
        raise TypeError(f"{field}: expected a list of names, found a string")
    return ",".join(names) or None


def seconds(value: Duration) -> float:
    """A duration in seconds."""
    number = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"expected a duration, found {value!r}")
    return number


def millis(value: Optional[Duration]) -> Optional[int]:
    """A duration for a request body, in milliseconds."""
    return None if value is None else round(seconds(value) * 1000)


def duration_text(value: Duration) -> str:
    """A duration for the query string."""
    return f"{millis(value)}ms"


def read_error(response: httpx.Response) -> ApiError:
    """The exception for an error response whose body was read."""
    try:
        body = response.json()
    except ValueError:
        body = None
    return from_answer(response.status_code, body, retry_after(response.headers))


def read_response(response: httpx.Response) -> Response:
    """Reads a response whose body was read. Raises the error that it contains."""
    if not response.is_success:
        raise read_error(response)
    if not response.content:
        return Response(None, response.headers)
    if response.headers.get("content-type", "").startswith("text/plain"):
        return Response(response.text, response.headers)
    try:
        body = json.loads(response.content)
    except ValueError as error:
        raise ProtocolError(f"{response.request.url.path}: the response is not JSON") from error
    return Response(body, response.headers)


def retry_after(headers: Mapping[str, str]) -> Optional[float]:
    """The header ``Retry-After`` in seconds; it may also be a date."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit() and len(text) <= 9:
        return float(text)
    try:
        when = email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError):
        return None
    return max(0.0, when.timestamp() - time.time())


def connection_failed(endpoint: str, error: httpx.TransportError) -> ConnectionFailedError:
    """The exception for a failed connection."""
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
        return ConnectionFailedError(f"cannot reach the server at {endpoint}", sent=False)
    if isinstance(error, httpx.PoolTimeout):
        return ConnectionFailedError("all connections of this client are in use; raise max_connections", sent=False)
    if isinstance(error, httpx.UnsupportedProtocol):
        raise ValueError(f"endpoint: expected a URL such as http://127.0.0.1:7777, found {endpoint}") from error
    if isinstance(error, httpx.TimeoutException):
        return ConnectionFailedError(f"the server at {endpoint} did not answer in time")
    return ConnectionFailedError(f"lost the connection to the server at {endpoint}")
