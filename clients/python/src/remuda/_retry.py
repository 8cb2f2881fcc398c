"""Bounded retries with backoff. Only decides; the clients do the sleeping."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Optional

from .errors import ApiError, ConnectionFailedError, RemudaError

FIRST_DELAY = 0.05
MAX_DELAY = 2.0
#: Statuses of transient failures. 429 is handled apart: without Retry-After it means that the request asks too much.
_TRANSIENT_STATUSES = frozenset({502, 503, 504})


class Retry:
    """Returns the delay before the next attempt, or raises the error if a retry cannot help.

    Delays double from 50 ms to 2 s. Each is drawn from the upper half of its range, so that clients which lost the same
    server do not reconnect simultaneously. ``Retry-After`` is respected.
    """

    def __init__(self, give_up_after: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._give_up_after = give_up_after
        self._clock = clock
        self._delay = FIRST_DELAY
        self._stalled_since: Optional[float] = None

    def progress(self) -> None:
        """Resets the delays after a success."""
        self._delay = FIRST_DELAY
        self._stalled_since = None

    def delay_after(self, error: RemudaError, *, repeatable: bool = True, at_least: float = 0.0) -> float:
        """Seconds to wait before the next attempt. Raises ``error`` if there should be none."""
        if not _is_retryable(error, repeatable):
            raise error
        now = self._clock()
        if self._stalled_since is None:
            self._stalled_since = now
        left = self._stalled_since + self._give_up_after - now
        requested = max(error.retry_after or 0.0, at_least)
        # An earlier attempt than the server allows would be refused again.
        if left <= 0 or requested > left:
            raise error
        # Jitter, not a secret.
        delay = self._delay * random.uniform(0.5, 1.0)  # noqa: S311
        self._delay = min(self._delay * 2, MAX_DELAY)
        return min(max(delay, requested), left)


def _is_retryable(error: RemudaError, repeatable: bool) -> bool:
    if isinstance(error, ConnectionFailedError):
        return repeatable or not error.sent
    if not isinstance(error, ApiError):
        return False
    if error.status == 429:
        # The request was refused and had no effect, so any request may be repeated.
        return error.retry_after is not None
    return repeatable and error.status in _TRANSIENT_STATUSES
