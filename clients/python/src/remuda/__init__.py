"""Client of Remuda, a distributed run executor for AI agents.

``Client`` is blocking, ``AsyncClient`` is for asyncio; both have the same methods. ``webhooks.verify`` checks webhook
deliveries.
"""

from . import webhooks
from ._version import VERSION as __version__
from .aio import AsyncClient
from .client import Client
from .errors import (
    ApiError,
    ConflictError,
    ConnectionFailedError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    PreconditionFailedError,
    ProtocolError,
    RemudaError,
    RunNotCompletedError,
    ServerError,
    UnauthenticatedError,
    WaitTimeoutError,
)
from .live import LiveText, Piece
from .streams import AsyncEventStream, EventStream
from .types import (
    Approval,
    Estimate,
    Event,
    EventPage,
    Execution,
    Explanation,
    Image,
    Limit,
    Message,
    Page,
    PermissionRule,
    Permissions,
    Run,
    Session,
    Step,
    Submitted,
    ToolCall,
    ToolOutcome,
)

__all__ = [
    "ApiError",
    "Approval",
    "AsyncClient",
    "AsyncEventStream",
    "Client",
    "ConflictError",
    "ConnectionFailedError",
    "Estimate",
    "Event",
    "EventPage",
    "EventStream",
    "Execution",
    "Explanation",
    "Image",
    "InvalidRequestError",
    "Limit",
    "LiveText",
    "Message",
    "NotFoundError",
    "OverloadedError",
    "Page",
    "PermissionDeniedError",
    "PermissionRule",
    "Permissions",
    "Piece",
    "PreconditionFailedError",
    "ProtocolError",
    "RemudaError",
    "Run",
    "RunNotCompletedError",
    "ServerError",
    "Session",
    "Step",
    "Submitted",
    "ToolCall",
    "ToolOutcome",
    "UnauthenticatedError",
    "WaitTimeoutError",
    "__version__",
    "webhooks",
]
