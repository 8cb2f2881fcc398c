"""Webhooks and dead letters."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Optional

from ._raw import raw_field


@dataclass(frozen=True)
class DeliveryFailure:
    """Why a delivery failed."""

    message: str
    #: HTTP status of the receiver, if it answered.
    status: Optional[int] = None
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class Webhook:
    """Sends the events of a session, or of one run, to a URL."""

    id: str
    session_id: str
    url: str
    state: str
    run_id: Optional[str] = None
    #: All types if empty.
    types: list[str] = field(default_factory=list)
    #: Cursor of the last delivered event.
    cursor: int = 0
    #: Attempts for the current event.
    attempts: int = 0
    next_attempt_at: Optional[datetime] = None
    #: Failure of the last attempt; ``None`` after a success.
    last_failure: Optional[DeliveryFailure] = None
    delivered_at: Optional[datetime] = None
    dead_letters: int = 0
    dropped_dead_letters: int = 0
    #: Until then, deliveries are also signed with the previous secret.
    previous_secret_until: Optional[datetime] = None
    created_at: Optional[datetime] = None
    #: ``whsec_…`` for ``webhooks.verify``. Only in the responses of ``create_webhook`` and ``rotate_webhook_secret``.
    secret: Optional[str] = field(default=None, repr=False)
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class DeadLetter:
    """An event that could not be delivered after all attempts."""

    id: str
    webhook_id: str
    event_id: str
    event_type: str
    cursor: int
    attempts: int = 0
    run_id: Optional[str] = None
    event_at: Optional[datetime] = None
    failure: Optional[DeliveryFailure] = None
    died_at: Optional[datetime] = None
    #: Set if the event will be delivered again.
    next_attempt_at: Optional[datetime] = None
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class WebhookTest:
    """The result of a test delivery."""

    delivery_id: str
    accepted: bool
    status: Optional[int] = None
    failure: Optional[DeliveryFailure] = None
    duration_ms: Optional[int] = None
    raw: dict[str, Any] = raw_field()
