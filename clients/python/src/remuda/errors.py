"""The exceptions of this package.

Every exception has a stable ``code``, as listed in the server's documentation of error codes. Match on codes, never on
texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from .types import Run


class RemudaError(Exception):
    """Base class of all errors about a server or its responses."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        #: The field of the request that is wrong, such as ``tools.calls[1].tool``.
        self.field: Optional[str] = None
        #: Identifies the request in questions to the operator.
        self.request_id: Optional[str] = None
        #: The HTTP status; ``None`` if no server answered.
        self.status: Optional[int] = None
        #: Seconds to wait before a retry.
        self.retry_after: Optional[float] = None

    def __str__(self) -> str:
        place = f"{self.field}: " if self.field else ""
        request = f" (request {self.request_id})" if self.request_id else ""
        return f"[{self.code}] {place}{self.message}{request}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are pickled between processes; the default would call __init__ with the message alone.
        return (type(self).__new__, (type(self),), {**self.__dict__, "args": self.args})


class ApiError(RemudaError):
    """The server answered with an error."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: Optional[int] = None,
        details: Optional[Mapping[str, Any]] = None,
        request_id: Optional[str] = None,
        retry_after: Optional[float] = None,
    ) -> None:
        super().__init__(code, message)
        self.status = status
        self.details: Mapping[str, Any] = details or {}
        field = self.details.get("field")
        self.field = field if isinstance(field, str) else None
        self.request_id = request_id
        self.retry_after = retry_after


class InvalidRequestError(ApiError):
    """The request is invalid, so a retry does not help: 400, 413, 415, 416 and 422."""


class UnauthenticatedError(ApiError):
    """The request has no valid API key: 401."""


class PermissionDeniedError(ApiError):
    """The key's scopes do not cover the request: 403."""


class NotFoundError(ApiError):
    """The object does not exist, or belongs to another tenant: 404 and 410."""


class ConflictError(ApiError):
    """The request conflicts with the current state: 409."""


class PreconditionFailedError(ApiError):
    """The object has changed since you read it: 412."""


class OverloadedError(ApiError):
    """Too many requests, or a full queue: 429."""


class ServerError(ApiError):
    """The server, or a service behind it, fails at the moment: 5xx."""


class ConnectionFailedError(RemudaError):
    """No server answered, or the connection was lost."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__("unavailable", message)
        #: Whether the request may have reached a server.
        self.sent = sent


class ProtocolError(RemudaError):
    """This version does not understand the response. Is this address a Remuda server?"""

    def __init__(self, message: str) -> None:
        super().__init__("protocol_error", message)


class WaitTimeoutError(RemudaError, TimeoutError):
    """The run did not finish within ``max_wait``. It continues."""

    def __init__(self, run: Run) -> None:
        super().__init__("deadline_exceeded", f"{run.id} is still {run.state}")
        self.run = run


class RunNotCompletedError(RemudaError):
    """The run ended in another state than completed: see ``run.state``."""

    def __init__(self, run: Run) -> None:
        failure = run.failure
        super().__init__(
            failure.code if failure else run.state, failure.message if failure else f"{run.id} was {run.state}"
        )
        self.run = run


_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: InvalidRequestError,
    401: UnauthenticatedError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    410: NotFoundError,
    412: PreconditionFailedError,
    413: InvalidRequestError,
    415: InvalidRequestError,
    416: InvalidRequestError,
    422: InvalidRequestError,
    429: OverloadedError,
}


def from_answer(status: int, body: object, retry_after: Optional[float] = None) -> ApiError:
    """The exception for a response with ``{"error": {...}}``, or for an error response of a proxy without it."""
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else ApiError)
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        return kind(
            f"http_{status}", f"the server answered with status {status}", status=status, retry_after=retry_after
        )
    details = error.get("details")
    details = details if isinstance(details, Mapping) else {}
    millis = details.get("retry_after_ms")
    if isinstance(millis, (int, float)) and not isinstance(millis, bool):
        retry_after = millis / 1000
    request_id = error.get("request_id")
    return kind(
        str(error.get("code", f"http_{status}")),
        str(error.get("message", "")),
        status=status,
        details=details,
        request_id=request_id if isinstance(request_id, str) else None,
        retry_after=retry_after,
    )
