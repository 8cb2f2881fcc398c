"""Trying again, with bounds. Decides only: who asks does the sleeping, in the way of its own kind."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Optional

from .errors import ApiError, ConnectionFailedError, RemudaError

FIRST_DELAY = 0.05
MAX_DELAY = 2.0
#: Statuses that say: not now. 429 is not among them, because without a time to come again it means: ask for less.
_NOT_NOW = frozenset({502, 503, 504})


class Retry:
    """Says how long to wait before the next try, or gives the error back when it will not go away by trying.

    Delays double from 50 ms to 2 s. Each is drawn from its upper half, so that clients which lost the same server do
    not come back together. What the server says about when to come again is honoured.
    """

    def __init__(self, give_up_after: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._give_up_after = give_up_after
        self._clock = clock
        self._delay = FIRST_DELAY
        self._stalled_since: Optional[float] = None

    def progress(self) -> None:
        """Something went well: the next failure starts anew."""
        self._delay = FIRST_DELAY
        self._stalled_since = None

    def delay_after(self, error: RemudaError, *, repeatable: bool = True, at_least: float = 0.0) -> float:
        """Seconds to wait before the next try. Raises ``error`` when there should be none."""
        if not _may_pass(error, repeatable):
            raise error
        now = self._clock()
        if self._stalled_since is None:
            self._stalled_since = now
        left = self._stalled_since + self._give_up_after - now
        asked = max(error.retry_after or 0.0, at_least)
        # To come back earlier than the server asked for would only be refused again.
        if left <= 0 or asked > left:
            raise error
        # Jitter, not a secret.
        delay = self._delay * random.uniform(0.5, 1.0)  # noqa: S311
        self._delay = min(self._delay * 2, MAX_DELAY)
        return min(max(delay, asked), left)


def _may_pass(error: RemudaError, repeatable: bool) -> bool:
    if isinstance(error, ConnectionFailedError):
        return repeatable or not error.sent
    if not isinstance(error, ApiError):
        return False
    if error.status == 429:
        # Refused, so nothing was done: safe to repeat whatever it was.
        return error.retry_after is not None
    return repeatable and error.status in _NOT_NOW
