"""Webhooks: events that a server sends to you."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Optional

from ._raw import raw_field


@dataclass(frozen=True)
class DeliveryFailure:
    """Why a message was not accepted."""

    message: str
    #: What the receiver answered with, if it did.
    status: Optional[int] = None
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class Webhook:
    """Sends the events of a session, or of one run, to an address."""

    id: str
    session_id: str
    url: str
    state: str
    run_id: Optional[str] = None
    #: Everything when empty.
    types: list[str] = field(default_factory=list)
    #: Up to where events were delivered.
    cursor: int = 0
    #: Of the event that is delivered now.
    attempts: int = 0
    next_attempt_at: Optional[datetime] = None
    #: What the last attempt failed of, until one succeeds.
    last_failure: Optional[DeliveryFailure] = None
    delivered_at: Optional[datetime] = None
    dead_letters: int = 0
    dropped_dead_letters: int = 0
    #: Until then messages are signed with the secret before this one too.
    previous_secret_until: Optional[datetime] = None
    created_at: Optional[datetime] = None
    #: ``whsec_…`` for ``webhooks.verify``. Told once: when the webhook is made, and when its secret is changed.
    secret: Optional[str] = field(default=None, repr=False)
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class DeadLetter:
    """An event that was not accepted, however often it was sent."""

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
    #: Set when it is to be sent again.
    next_attempt_at: Optional[datetime] = None
    raw: dict[str, Any] = raw_field()


@dataclass(frozen=True)
class WebhookTest:
    """How a receiver answered to a message that was sent to try it."""

    delivery_id: str
    accepted: bool
    status: Optional[int] = None
    failure: Optional[DeliveryFailure] = None
    duration_ms: Optional[int] = None
    raw: dict[str, Any] = raw_field()
