"""Verifies webhook deliveries, according to Standard Webhooks (https://www.standardwebhooks.com).

The signature covers the id, the time and the exact bytes of the body: pass the unparsed body to ``verify``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any, Optional, Union

#: Maximum difference between the time of a message and the local clock, in seconds.
TOLERANCE = 300.0
_PREFIX = "whsec_"


class WebhookVerificationError(Exception):
    """The message is not authentic. Do not process it."""


def verify(
    headers: Mapping[str, str],
    body: Union[bytes, str],
    secret: Union[str, Iterable[str]],
    *,
    tolerance: float = TOLERANCE,
    now: Optional[float] = None,
) -> dict[str, Any]:
    """Returns the event in ``body`` if one of the signatures matches. Raises ``WebhookVerificationError`` otherwise.

    ``secret`` is the secret of the webhook (``whsec_…``); pass both while you rotate it. A message may be delivered
    more than once: the header ``webhook-id`` stays the same.
    """
    by_name = {name.lower(): value for name, value in headers.items()}
    message_id = _header(by_name, "webhook-id")
    timestamp = _header(by_name, "webhook-timestamp")
    signatures = _header(by_name, "webhook-signature")
    _check_time(timestamp, tolerance, time.time() if now is None else now)

    raw = body.encode() if isinstance(body, str) else bytes(body)
    expected = [sign(one, message_id, timestamp, raw) for one in ([secret] if isinstance(secret, str) else secret)]
    if not expected:
        raise ValueError("secret: expected at least one")
    # Compare every pair, so that the duration does not reveal which one matches.
    matches = [hmac.compare_digest(given.encode(), one.encode()) for given in signatures.split(" ") for one in expected]
    if not any(matches):
        raise WebhookVerificationError("no signature matches: wrong secret or changed body")
    try:
        event = json.loads(raw)
    except ValueError as error:
        raise WebhookVerificationError("the body is signed but is not JSON") from error
    if not isinstance(event, dict):
        raise WebhookVerificationError("the body is signed but is not a JSON object")
    return event


def sign(secret: str, message_id: str, timestamp: Union[str, int], body: bytes) -> str:
    """Computes the signature of a message, as in ``webhook-signature``. Useful for tests of a receiver."""
    text = secret[len(_PREFIX) :] if secret.startswith(_PREFIX) else secret
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"secret: expected {_PREFIX} and base64") from error
    if not key:
        # Anyone could compute signatures with an empty key.
        raise ValueError(f"secret: expected {_PREFIX} and base64")
    content = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()


def _header(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name)
    if not value:
        raise WebhookVerificationError(f"the header {name} is missing")
    return value


def _check_time(timestamp: str, tolerance: float, now: float) -> None:
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        raise WebhookVerificationError("webhook-timestamp: expected seconds since 1970")
    sent_at = int(timestamp)
    if sent_at < now - tolerance:
        raise WebhookVerificationError("the message is too old")
    if sent_at > now + tolerance:
        raise WebhookVerificationError("the message is from the future: check the clocks")
